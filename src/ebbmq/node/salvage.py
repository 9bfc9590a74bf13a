"""What is left of a record that does not verify: rows and bodies that do; the rest is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core.row import ROW
from ebbmq.journal.mend import unflipped
from ebbmq.node.log import log
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        bodies = payload[8 + 64 * count :] if bodies is None else bodies
        block = _rows(payload, count, bodies)
        if block is None:
            self._losses.numbering.lost(pid, first, count, position >> 32)
            return
        self._losses.numbering.published(pid, first, count)
        self._engine.note_range(position >> 32, pid, first, count)
        for number in _without_body(block, bodies):
            self._losses.bodiless.setdefault(pid, {})[first + number] = position >> 32
        self._restorer(pid).published(first, memoryview(block), position)


def _verifies(payload: memoryview, count: int, bodies: memoryview) -> bool:
    """Whether rows of a PUBLISH fact and the bodies they are of match their checksums."""
    block = bytes(payload[8 : 8 + 64 * count])
    return crc32c(block) == fact.ROWS_HEAD.unpack_from(payload)[0] and _fit(block, bodies)


def _rows(payload: memoryview, count: int, bodies: memoryview) -> bytes | None:
    """The rows of a PUBLISH fact, one flipped bit of them put right; None if they do not verify."""
    block = bytes(payload[8 : 8 + 64 * count])
    if len(block) < 64 * count:
        return None
    crc, _ = fact.ROWS_HEAD.unpack_from(payload)
    if crc32c(block) == crc:
        return block
    mended = unflipped(block, crc)
    if mended is None or not _fit(mended, bodies):
        return None
    log.warning("mended_rows", messages=count)
    return mended


def _fit(block: bytes, bodies: memoryview) -> bool:
    """Whether these are the bodies of these rows, all of them."""
    total = sum(row[11] for row in ROW.iter_unpack(block))
    return total == len(bodies) and next(_without_body(block, bodies), None) is None


def _without_body(block: bytes, bodies: memoryview) -> Iterator[int]:
    """Which of these rows do not have the body that was published with them."""
    at = 0
    for number, row in enumerate(ROW.iter_unpack(block)):
        body = bytes(bodies[at : at + row[11]])
        at += row[11]
        if len(body) != row[11] or crc32c(body) != row[12]:
            yield number
