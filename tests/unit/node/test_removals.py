"""The removals log where it is damaged: what is whole is told, what is missing appended again."""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ebbmq.core.facts import REMOVAL_DTYPE
from ebbmq.errors import Overloaded, StorageFailed
from ebbmq.journal.disk import FileDisk
from ebbmq.node.removal_blocks import find_blocks, pack, unreadable_bytes
from ebbmq.node.removals import Removals
from tests.crash.faults import Fault, FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.faults import Operation

BLOCK_BYTES = 24 + REMOVAL_DTYPE.itemsize


def record(seq: int) -> bytes:
    made = np.zeros(1, dtype=REMOVAL_DTYPE)
    made["pid"], made["seq"] = 1, seq
    return made.tobytes()


def filled(directory: Path, count: int, bytes_max: int = 1 << 20) -> Path:
    """A log of so many removals, one to a block, message n at position 10 * n."""
    log = Removals(FileDisk(directory), bytes_max)
    for seq in range(1, count + 1):
        log.note(record(seq), 10 * seq)
        log.flush(10 * seq)
    log.close()
    return directory / "removals.log"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def told(log: Removals) -> Counter[int]:
    return Counter(log.reading().find([1])["seq"].tolist())


@pytest.mark.parametrize("at", [0, 5, 17, 40], ids=["magic", "count", "crc", "record"])
def test_damage_costs_the_block_it_is_in_and_no_other(tmp_path: Path, at: int) -> None:
    path = filled(tmp_path, 5)
    flip(path, 2 * BLOCK_BYTES + at)
    for _ in range(2):
        log = Removals(FileDisk(tmp_path))
        assert told(log) == Counter([1, 2, 4, 5])
        log.close()
    assert unreadable_bytes(path.read_bytes()) == (BLOCK_BYTES, 0)


@pytest.mark.parametrize("damaged", range(1, 6))
@pytest.mark.parametrize("bytes_max", [1 << 20, 4 * BLOCK_BYTES], ids=["one file", "two files"])
def test_what_the_journal_still_has_is_appended_again_once(
    tmp_path: Path, damaged: int, bytes_max: int
) -> None:
    path = filled(tmp_path, 6, bytes_max)
    first = next(find_blocks(path.read_bytes())).position // 10
    if damaged >= first:
        flip(path, (damaged - first) * BLOCK_BYTES + 40)
    log = Removals(FileDisk(tmp_path), bytes_max)
    for seq in range(3, 8):
        log.note(record(seq), 10 * seq)
    lost = {damaged} if first <= damaged < 3 else set()
    assert told(log) == Counter(set(range(1, 8)) - lost)
    log.close()


def test_an_end_that_was_cut_short_is_cut_off(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    log = Removals(FileDisk(tmp_path))
    assert told(log) == Counter([1, 2])
    log.note(record(3), 30)
    log.flush(30)
    log.close()
    assert unreadable_bytes(path.read_bytes()) == (0, 0)


def test_a_block_is_found_wherever_it_begins_behind_damage() -> None:
    block = b"".join(pack(record(7), 70))
    for gap in (1, 3, 24, 65_533, 65_534, 65_536, 200_000):
        (found,) = find_blocks(bytes(gap) + block)
        assert (found.start, found.position) == (gap, 70)
        assert unreadable_bytes(bytes(gap) + block + b"x") == (gap, 1)


@pytest.mark.parametrize("operation", ["create", "write"])
def test_where_there_is_no_room_all_stays_as_it_is_until_there_is(
    tmp_path: Path, operation: Operation
) -> None:
    filled(tmp_path, 3, 3 * BLOCK_BYTES)
    full = Fault(operation, "middle" if operation == "write" else "before", "", 1, errno.ENOSPC)
    log = Removals(FaultyDisk(FileDisk(tmp_path), full), 3 * BLOCK_BYTES)
    log.note(record(4), 40)
    with pytest.raises(Overloaded, match="disk_full"):
        log.flush(40)
    assert told(log) == Counter([1, 2, 3, 4])
    assert not log.flush(40)
    log.close()
    assert told(Removals(FileDisk(tmp_path), 3 * BLOCK_BYTES)) == Counter([1, 2, 3, 4])


@pytest.mark.parametrize("operation", ["sync", "create", "rename", "write"])
def test_a_failure_is_told_and_nothing_is_tried_again(tmp_path: Path, operation: Operation) -> None:
    filled(tmp_path, 3, 3 * BLOCK_BYTES)
    disk = FaultyDisk(FileDisk(tmp_path), Fault(operation, "before", "", 1, errno.EIO))
    log = Removals(disk, 3 * BLOCK_BYTES)
    failures: list[StorageFailed] = []
    log.on_failure = failures.append
    log.note(record(4), 40)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            log.begin_sync(40)
    log.close(40)
    assert len(failures) == disk.count == 1
    again = Removals(FileDisk(tmp_path), 3 * BLOCK_BYTES)
    again.note(record(4), 40)
    assert told(again) == Counter([1, 2, 3, 4])
