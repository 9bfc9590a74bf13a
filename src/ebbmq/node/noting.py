"""Putting what is declared on record: memory and journal change together, or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.journal.segment import OLD
from ebbmq.node.catalog import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.core.facts import Fact
    from ebbmq.node.engine import Engine
    from ebbmq.node.numbering import Spans

#: About what the first and the last message of a partition in a segment take there.
_SPAN_BYTES: Final = 16


def note_catalog(engine: Engine) -> int:
    """Append all that is declared; the last such fact holds."""
    return _append(engine, _fact(engine))


def catalog_bytes(engine: Engine) -> int:
    """What it takes in the journal to append all that is declared."""
    return _bytes(_fact(engine))


def _append(engine: Engine, told: Fact) -> int:
    engine.simple.clear()
    engine.catalog_position = engine.append([told])
    return engine.catalog_position


def _bytes(told: Fact) -> int:
    return told.size() + limits.RECORD_OVERHEAD_BYTES


def _fact(engine: Engine) -> Fact:
    stored = stored_segments(engine)
    return engine.catalog.fact(stored, _spans(engine, stored))


def stored_segments(engine: Engine) -> Stored:
    """The segments there are to be from here on (the lock is held)."""
    there = {segment.number for segment in engine.journal.segments()}
    numbers = sorted((there | engine.doubted.keys()) - engine.leaving)
    old = [number for number in numbers if number & OLD]
    listed = [number for number in old if number not in engine.unlisted]
    return Stored([number for number in numbers if not number & OLD], old, listed)


def _spans(engine: Engine, stored: Stored) -> Spans:
    """Which messages segments have: those beside others that were given back, unlisted old ones.

    Left out where they take much, or there is no space: damage is told less exactly then.
    """
    young = stored.young
    there = {0, *young, young[-1] + 1} if young else set()
    beside = [number for number in young if not {number - 1, number + 1} <= there]
    unlisted = [number for number in stored.old if number not in stored.listed]
    spans = {number: engine.ranges.get(number, {}) for number in beside + unlisted}
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
    told = _fact(engine)
    admit = engine.squeeze_in if makes_room else engine.admit
    admit(_bytes(told))
    _append(engine, told)
