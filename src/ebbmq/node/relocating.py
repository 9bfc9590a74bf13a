"""Writing messages into the old generation with all that is known of them; their rows point there.

Thin segments are emptied so, and a body that was on other devices only comes back to the log so.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from ebbmq.core import facts as fact
from ebbmq.core.row import AT_FLAGS, AT_SEGMENT, ELSEWHERE, RELOCATED, SHARED, log_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.partition import Row
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

_PLACE: Final = Struct("<II")


def relocate(
    engine: Engine, shard: Shard, seqs: Sequence[int], bodies: Sequence[bytes], *, home: bool
) -> None:
    """Copy rows and bodies, then switch the rows (the lock is held).

    The clock fact in front moves the journal's position on, so that a page copied to a checkpoint
    before the switch is older than the relocation, and one copied after is not. Rows in the record
    hold the offset of their body in its payload; recovery knows the rest.

    Args:
        engine: the engine.
        shard: the partition.
        seqs: messages that are there.
        bodies: what to write of each; nothing of a body that is and stays elsewhere.
        home: the bodies come from other devices: from now on the log has them.
    """
    partition = shard.partition
    rows = [row for seq in seqs if (row := partition.index.read(seq))]
    as_of = engine.note_clock()
    images = [bytearray(partition.index.row_bytes(seq)) for seq in seqs]
    at = fact.relocate_bodies_at(len(seqs))
    for image, body in zip(images, bodies, strict=True):
        # The copy is this row's own, also where the body was shared.
        image[AT_FLAGS] = image[AT_FLAGS] & ~(SHARED | ELSEWHERE if home else SHARED) | RELOCATED
        _PLACE.pack_into(image, AT_SEGMENT, 0, at)
        at += len(body)
    told = fact.relocate(partition.pid, as_of, seqs, b"".join(images), bodies)
    segment, payload_at = engine.journal.append_old(*told)
    for seq, row, image in zip(seqs, rows, images, strict=True):
        offset = payload_at + _PLACE.unpack_from(image, AT_SEGMENT)[1]
        _PLACE.pack_into(image, AT_SEGMENT, segment, offset)
        _switch(engine, shard, seq, row, bytes(image))
    engine.note_range(segment, partition.pid, min(seqs), max(seqs) - min(seqs) + 1)
    partition.note_states([seq for seq in seqs if seq in partition.histories])
    engine.settle(shard)


def _switch(engine: Engine, shard: Shard, seq: int, row: Row, image: bytes) -> None:
    partition = shard.partition
    partition.index.write(seq, image)
    segment = _PLACE.unpack_from(image, AT_SEGMENT)[0]
    if row[1] & SHARED:
        engine.let_go([(row[9], row[10], row[11])])
    else:
        partition.ledger[row[9]] -= log_bytes(row[1], row[11])
    now = log_bytes(image[AT_FLAGS], row[11])
    partition.ledger[segment] = partition.ledger.get(segment, 0) + now
