"""What is left of a record that does not verify: rows and bodies that do; the rest is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core.row import ROW
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.core.restore import Restorer
    from ebbmq.journal.found import Damaged
    from ebbmq.journal.record import Header
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses


class Salvage:
    """Puts back what can be proven of damaged records while a data directory is read."""

    def __init__(
        self,
        engine: Engine,
        losses: Losses,
        has: Callable[[int, int], bool],
        restorer: Callable[[int], Restorer],
    ) -> None:
        self._engine = engine
        self._losses = losses
        #: Whether there is a partition, as of a position.
        self._has = has
        self._restorer = restorer

    def keep(self, item: Damaged) -> None:
        """Keep what can be proven of a record whose payload does not verify; name the rest."""
        header = item.header
        if header is None or header.kind in (fact.META, fact.GROUP):
            self._losses.numbering.unread(item.position >> 32)
        everywhere = set(self._engine.catalog.shards)
        self._losses.without_record |= everywhere if header is None else {header.pid}
        if header is None:
            self._losses.report(
                f"{item.nbytes} bytes at {item.position:#x} of the journal cannot be read"
            )
            return
        if header.kind == fact.PUBLISH and item.payload is not None:
            self._keep_rows(header.pid, header.count, header.first, item.payload, item.position)
        elif header.kind == fact.GROUP:
            self._keep_group(header, item)
        elif header.kind == fact.ACK:
            self._losses.report(
                f"{header.count} acks from message {message_id(header.pid, header.first)} on "
                "cannot be read; these messages are delivered again"
            )
        else:
            about = f"at {item.position:#x}"
            if header.count:
                named = message_id(header.pid, header.first)
                about = f"about {header.count} messages from {named} on"
            self._losses.report(f"a record of kind {header.kind} {about} cannot be read")

    def _keep_group(self, header: Header, item: Damaged) -> None:
        """Of a publish to several queues keep the rows that verify; a move is done again."""
        parts = fact.shared_publish(item.payload) if item.payload is not None else []
        if not parts or parts[0][:3] != (header.pid, header.count, header.first):
            self._losses.report(f"a group of facts at {item.position:#x} cannot be read")
            return
        bodies = parts[0][3][fact.publish_bytes(header.count, 0) :]
        self._keep_rows(*parts[0], item.position, bodies)
        # Where rows and bodies are all as they were, it is the others' numbers that are not.
        is_known = not all(_verifies(part, count, bodies) for _, count, _, part in parts)
        for pid, count, first, part in parts[1:]:
            shard = self._engine.catalog.shards.get(pid)
            if is_known and shard is not None and first <= shard.partition.index.next_seq:
                self._keep_rows(pid, count, first, part, item.position, bodies)
            elif shard is not None or not is_known:
                self._losses.report(
                    f"{count} messages of a topic at {item.position:#x} cannot be read, "
                    f"the first of them may be {message_id(pid, first)}"
                )

    def _keep_rows(
        self,
        pid: int,
        count: int,
        first: int,
        payload: memoryview,
        position: int,
        bodies: memoryview | None = None,
    ) -> None:
        """Put back rows that verify, and find which of their bodies do not."""
        if not self._has(pid, position):
            return
        block = payload[8 : 8 + 64 * count]
        crc, _ = fact.ROWS_HEAD.unpack_from(payload) if len(payload) >= 8 else (0, 0)  # noqa: PLR2004
        if len(block) < 64 * count or crc32c(bytes(block)) != crc:
            self._losses.numbering.lost(pid, first, count, position >> 32)
            return
        bodies = payload[8 + 64 * count :] if bodies is None else bodies
        self._losses.numbering.published(pid, first, count)
        self._engine.note_range(position >> 32, pid, first, count)
        at = 0
        for number in range(count):
            row = ROW.unpack_from(block, number * 64)
            body = bytes(bodies[at : at + row[11]])
            at += row[11]
            if len(body) != row[11] or crc32c(body) != row[12]:
                self._losses.bodiless.setdefault(pid, {})[first + number] = position >> 32
        self._restorer(pid).published(first, block, position)


def _verifies(payload: memoryview, count: int, bodies: memoryview) -> bool:
    """Whether rows of a PUBLISH fact and the bodies they are of match their checksums."""
    block = bytes(payload[8 : 8 + 64 * count])
    if crc32c(block) != fact.ROWS_HEAD.unpack_from(payload)[0]:
        return False
    at = 0
    for number in range(count):
        row = ROW.unpack_from(block, number * 64)
        if crc32c(bytes(bodies[at : at + row[11]])) != row[12]:
            return False
        at += row[11]
    return at == len(bodies)
