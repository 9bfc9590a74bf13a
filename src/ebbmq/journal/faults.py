"""Turns an operating system's error into the named error a person can act on."""

from __future__ import annotations

import errno
import os
from typing import Final

from ebbmq.errors import Overloaded, StorageFailed

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: OSError) -> bool:
    """Whether the error says that the disk, or our share of it, is used up."""
    return error.errno in _FULL


def full() -> OSError:
    """The error of a disk without space."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reason(error: OSError) -> str:
    """The error in words, with its number."""
    return f"{error.strerror or type(error).__name__} (errno {error.errno})"


def storage_failed(doing: str, where: str, error: OSError) -> StorageFailed:
    """Name what failed, on which file and why; the log that meets it takes nothing more."""
    return StorageFailed(
        f"{doing} {where} failed: {reason(error)}",
        "free or replace the disk, check the kernel log, then reopen the data directory; "
        "everything confirmed as synced before this is safe",
    )


def cannot_open(where: str, error: OSError) -> Overloaded | StorageFailed:
    """Name what kept a directory from being opened; nothing runs on it."""
    if is_full(error):
        return Overloaded(
            f"{where} cannot be opened: its disk is full",
            "free space on that disk, then open it again; what the directory holds is safe",
            code="disk_full",
        )
    file = f"{error.filename}: " if error.filename else ""
    return StorageFailed(
        f"{where} cannot be opened: {file}{reason(error)}",
        "see that its disk works and that this user may read and write there, then open it again",
    )


def disk_full(where: str) -> Overloaded:
    """Name the directory that has no space for more messages."""
    return Overloaded(
        f"the disk of {where} is full: publishes are refused, leases and acks go on",
        "free space on that disk, or let consumers catch up so that segments can be deleted",
        code="disk_full",
    )
