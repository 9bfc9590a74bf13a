"""Tells a journal that is a store's own from one that stands beside the wrong identity.

Checksums of headers start from the store's uuid. Under another one no record verifies, so that all
of the log looks like an end that was never finished, which opening would erase. One header that
verifies is proof enough, and mostly the first one does (ADR 0036).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.errors import StorageFailed
from ebbmq.journal import record, walk
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import name_of, numbers
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk


def check(disk: Disk, uuid: bytes, *, has_log: bool) -> None:
    """Return if a journal is blank and may be, or at least one of its records is of this store.

    A log starts with a LINK that is synced before anything follows it. So a store whose first
    opening was cut short has no more than a part of that, and may begin again.

    Raises:
        StorageFailed: none of its records is, or its log is gone; nothing was changed.
        OSError: the disk cannot be read.
    """
    store = record.seed(uuid)
    young = numbers(disk, old=False)
    if any(_starts_with_header(disk, store, number) for number in young):
        return
    if has_log and not any(_used_bytes(disk, number) for number in young):
        raise StorageFailed(
            f"{disk.where} holds no log, and the store that store.json names had one",
            "put the journal back, restore a backup of this directory, or name another directory; "
            "nothing was changed",
        )
    old = numbers(disk, old=True)
    if any(_starts_with_header(disk, store, number) for number in old):
        return
    used = {number: end for number in young + old if (end := _used_bytes(disk, number))}
    if sum(used.values()) <= HEADER_BYTES:
        return
    if any(_has_header(disk, store, number) for number in used):
        return
    raise StorageFailed(
        f"{disk.where} holds {sum(used.values())} bytes in {len(used)} segments, "
        "and no record of the store that store.json names",
        "put back the store.json and the journal that belong together, from a backup of this "
        "directory; nothing was changed",
    )


def _starts_with_header(disk: Disk, store: int, number: int) -> bool:
    file = disk.open(name_of(number))
    data = read_around(file, 0, HEADER_BYTES)
    file.close()
    return record.parse(store, number << 32, data, 0) is not None


def _used_bytes(disk: Disk, number: int) -> int:
    file = disk.open(name_of(number))
    end = walk.blank_from(file, 0)
    file.close()
    return end


def _has_header(disk: Disk, store: int, number: int) -> bool:
    file = disk.open(name_of(number))
    place = walk.Place(store, file, number << 32)
    found = any(item.header is not None for item in walk.every(place, 0, file.size()))
    file.close()
    return found
