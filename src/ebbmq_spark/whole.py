"""Files that are seen only once they are whole: written beside their place, then moved there."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def in_place_of(place: Path) -> Iterator[Path]:
    """Where to write what is to be at `place` in the end; until then whatever was there stays.

    What is no ordinary file, such as a terminal, is written to as it is.
    """
    if place.exists() and not place.is_file():
        yield place
        return
    # Who named a link means what it leads to.
    place = place.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        yield beside
        beside.rename(place)
    finally:
        beside.unlink(missing_ok=True)
