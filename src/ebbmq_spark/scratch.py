"""Directories for a while: gone when they are not needed, and after kill -9 by who comes next.

A directory is held by a lock on a file in it, which ends with its process. One whose lock nobody
holds was left, and so was one that is empty for a while: it was being made or removed, or Java made
it anew, when its process was ended. Any other without such a file is somebody's to look at, and
stays, as do the last few of those that were kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HELD: Final = "held"
_KEPT: Final = "kept"
#: Of what is left for people to look into, so many stay.
KEPT_MAX: Final = 3
#: One that is being made is empty for less.
_EMPTY_S: Final = 60.0


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
                _remove(place)


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
            told = place.lstat()
            if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid():
                continue
            if not any(place.iterdir()):
                if told.st_mtime < time.time() - _EMPTY_S:
                    place.rmdir()
                continue
            with (place / _HELD).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(place)


def _remove(place: Path) -> None:
    """Remove a directory; what it is held by last, so that the next one goes on where this ends."""
    with contextlib.suppress(OSError):
        for each in place.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != _HELD:
                each.unlink(missing_ok=True)
    # With what Java may have written meanwhile.
    shutil.rmtree(place, ignore_errors=True)
