"""Directories for a while: gone when they are not needed, and after kill -9 by who comes next.

A directory is held by a lock on a file in it, which ends with its process. One whose lock nobody
holds was left; one without such a file is somebody's to look at, and stays, as do the last few of
those that were kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HELD: Final = "held"
_KEPT: Final = "kept"
#: Of what is left for people to look into, so many stay.
KEPT_MAX: Final = 3


@contextlib.contextmanager
def scratch_directory(prefix: str) -> Iterator[Path]:
    """A directory of one's own; what killed processes left under the same prefix is removed."""
    _clear_left(prefix)
    place = Path(tempfile.mkdtemp(prefix=prefix))
    # It gets its name once it is locked: before, others would take it for left.
    beside = place / f".{_HELD}"
    with beside.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        beside.rename(place / _HELD)
        try:
            yield place
        finally:
            if (place / _HELD).exists():
                shutil.rmtree(place, ignore_errors=True)


def keep(place: Path, prefix: str) -> None:
    """Leave a directory where it is, for people to look into, in place of the oldest of a few."""
    (place / _HELD).rename(place / _KEPT)
    found: list[tuple[int, Path]] = []
    for each in place.parent.glob(f"{prefix}*/{_KEPT}"):
        # Another may clear away the same.
        with contextlib.suppress(OSError):
            told = each.stat()
            if told.st_uid == os.geteuid() and not each.parent.is_symlink():
                found.append((told.st_mtime_ns, each.parent))
    for _, old in sorted(found)[:-KEPT_MAX]:
        shutil.rmtree(old, ignore_errors=True)


def _clear_left(prefix: str) -> None:
    for place in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Another may clear away the same.
        with contextlib.suppress(OSError):
            if place.is_symlink() or place.stat().st_uid != os.geteuid():
                continue
            with (place / _HELD).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
