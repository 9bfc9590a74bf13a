"""Putting what is declared on record: memory and journal change together, or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.node.engine import Engine


def note_catalog(engine: Engine, leaving_out: int = 0) -> int:
    """Append all that is declared; the last such fact holds."""
    engine.simple.clear()
    segments = [s.number for s in engine.journal.segments() if s.number != leaving_out]
    engine.catalog_position = engine.append([engine.catalog.fact(segments)])
    return engine.catalog_position


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
    segments = [segment.number for segment in engine.journal.segments()]
    size = engine.catalog.fact(segments).size() + limits.RECORD_OVERHEAD_BYTES
    if makes_room:
        engine.squeeze_in(size)
    else:
        engine.admit(size)
    note_catalog(engine)
