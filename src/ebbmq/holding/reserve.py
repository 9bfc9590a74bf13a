"""Space on a disk kept for deletes: a file that gives way when the disk is full."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Reserve:
    """A file of so many bytes beside a device's own, so that a delete always has room."""

    def __init__(self, path: Path, nbytes: int) -> None:
        """Name the file; `hold` makes it."""
        self._path = path
        self._nbytes = nbytes

    def hold(self) -> None:
        """Have the file, if there is space for it; after a release this waits for better times."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                if os.fstat(descriptor).st_size < self._nbytes:
                    os.posix_fallocate(descriptor, 0, self._nbytes)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Let the space go to whoever needs it."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
