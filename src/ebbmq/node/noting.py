"""Putting what is declared on record: memory and journal change together, or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.journal.segment import OLD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.core.facts import Fact
    from ebbmq.node.engine import Engine
    from ebbmq.node.numbering import Spans

#: About what the first and the last message of a partition in a segment take there.
_SPAN_BYTES: Final = 16


def note_catalog(engine: Engine, leaving_out: int = 0) -> int:
    """Append all that is declared; the last such fact holds."""
    engine.simple.clear()
    engine.catalog_position = engine.append([_fact(engine, leaving_out)])
    return engine.catalog_position


def _fact(engine: Engine, leaving_out: int = 0) -> Fact:
    segments = [s.number for s in engine.journal.segments() if s.number != leaving_out]
    return engine.catalog.fact(segments, _spans(engine, segments))


def _spans(engine: Engine, segments: list[int]) -> Spans:
    """Which messages the segments have that lie beside segments that were given back.

    Left out where they take much, or there is no space: damage is told less exactly then.
    """
    young = [number for number in segments if not number & OLD]
    there = {0, *young, young[-1] + 1} if young else set()
    beside = [number for number in young if not {number - 1, number + 1} <= there]
    spans = {number: engine.ranges.get(number, {}) for number in beside}
    size = sum(map(len, spans.values())) * _SPAN_BYTES
    return {} if engine.disk_full or size > engine.config.segment_bytes // 16 else spans


@contextlib.contextmanager
def recorded(engine: Engine, *, makes_room: bool = False) -> Iterator[None]:
    """Change the catalog in here, and nothing else: it is appended, or is as before.

    What follows from a change is done afterwards. The lock is held.

    Args:
        engine: whose catalog it is.
        makes_room: it helps where the disk is full, so it may take what is kept for leases.

    Raises:
        Overloaded: code `disk_full`; nothing was changed.
        StorageFailed: the journal has failed; nothing was changed in memory.
    """
    catalog, known = engine.catalog, set(engine.catalog.shards)
    with catalog.restored_on_error():
        try:
            yield
            put_on_record(engine, makes_room=makes_room)
        except BaseException:
            for pid in catalog.shards.keys() - known:
                engine.residency.close(pid)
            raise


def put_on_record(engine: Engine, *, makes_room: bool = False) -> None:
    """Append all that is declared, if there is room for that beside what is reserved.

    Raises:
        Overloaded: code `disk_full`.
    """
    size = _fact(engine).size() + limits.RECORD_OVERHEAD_BYTES
    if makes_room:
        engine.squeeze_in(size)
    else:
        engine.admit(size)
    note_catalog(engine)
