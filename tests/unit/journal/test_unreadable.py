"""Sectors that cannot be read are told from those beside them, which are read."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING

import pytest

from ebbmq.journal.disk import FileDisk, MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.sectors import SECTOR_BYTES
from ebbmq.journal.unreadable import parts, read_around

if TYPE_CHECKING:
    from pathlib import Path

DATA = random.Random(5).randbytes(200_000)


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.create("a", len(DATA)).write(0, [DATA])
    return disk


def test_what_can_be_read_is_read_as_it_is(disk: MemoryDisk) -> None:
    file = disk.open("a")
    assert read_around(file, 100, 70_000) == DATA[100:70_100]
    assert read_around(file, len(DATA) - 10, 100) == DATA[-10:]


def test_only_sectors_that_fail_are_given_up(disk: MemoryDisk) -> None:
    bad = range(150 * SECTOR_BYTES, 153 * SECTOR_BYTES)
    disk.spoil("a", bad[0] + 17, len(bad) - 20)
    file = disk.open("a")
    with pytest.raises(OSError, match="Input/output error"):
        file.read(0, len(DATA))
    read = read_around(file, 5, len(DATA))
    assert len(read) == len(DATA) - 5
    expected = bytearray(DATA)
    expected[bad[0] : bad[-1] + 1] = b"\xff" * len(bad)
    assert read == expected[5:]
    lost = [(part.offset, part.nbytes) for part in parts(file, 5, 1 << 30) if part.data is None]
    assert lost == [(at, SECTOR_BYTES) for at in bad[::SECTOR_BYTES]]


def test_a_sector_can_be_read_once_it_was_written_again(disk: MemoryDisk) -> None:
    disk.spoil("a", 0, 1)
    disk.open("a").write(0, [b"again"])
    assert disk.open("a").read(0, 5) == b"again"


def test_another_failure_is_told(disk: MemoryDisk) -> None:
    file = disk.open("a")
    disk.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_around(file, 0, 10)


def test_a_read_that_stops_short_of_a_failing_sector_goes_on_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FileDisk(tmp_path).create("a", 0)
    file.write(0, [DATA])
    real = os.pread

    def pread(fd: int, nbytes: int, offset: int) -> bytes:
        """As the kernel does it: what is before the failing page first."""
        if offset == 40_960:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        stop = offset + nbytes
        return real(fd, (40_960 if offset < 40_960 < stop else stop) - offset, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert file.read(0, 40_960) == DATA[:40_960]
    with pytest.raises(OSError, match="Input/output error"):
        file.read(0, len(DATA))
    assert read_around(file, 0, len(DATA))[41_472:] == DATA[41_472:]


def test_a_log_goes_on_over_sectors_behind_its_end_that_cannot_be_read() -> None:
    disk = MemoryDisk()
    uuid = bytes(16)
    log = Log.open(disk, uuid, segment_bytes=8_192, threaded=False)
    end = log.append(1, 1, 1, 1, [b"first"])
    log.close()
    (name, *_) = disk.names()
    disk.spoil(name, 4_096, 1_000)
    log = Log.open(disk, uuid, end, segment_bytes=8_192, threaded=False)
    assert disk.open(name).read(4_096, 4_096) == bytes(4_096)
    log.close()
