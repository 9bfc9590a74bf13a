"""A file device reads back what another copy goes for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ebbmq.checksum import crc32c
from ebbmq.holding.columns import Batch, Columns
from ebbmq.holding.contract import DeviceSpec
from ebbmq.holding.file import FileDevice
from tests.crash.devices import Moods, MoodyDisk

if TYPE_CHECKING:
    from pathlib import Path

BODIES = [b"first", b"second"]
SPEC = DeviceSpec(
    name="hdd", tier="slow", durable=True, failure_domain="hdd", capacity_bytes=64 << 20
)


def batch(*, read_back: bool) -> Batch:
    crcs = np.array([crc32c(body) for body in BODIES])
    return Batch(
        b"s" * 16, [Columns(np.full(2, 7), np.arange(2), crcs, BODIES, None)], read_back=read_back
    )


def opened(path: Path, moods: Moods) -> FileDevice:
    return FileDevice(SPEC, MoodyDisk(path, moods), os.urandom(16), lambda: 0.0)


@pytest.mark.parametrize("mood", ["wrong", "nothing"])
def test_what_a_disk_does_not_give_back_as_it_was_written_is_not_verified(
    tmp_path: Path, mood
) -> None:
    moods = Moods()
    device = opened(tmp_path, moods)
    copies = batch(read_back=True)
    with moods.being(mood):
        device.put_many(copies)
    assert not copies.is_verified
    device.put_many(copies)
    assert copies.is_verified
    assert device.get_many(copies.keys()) == BODIES
    device.close()


def test_what_nobody_asked_to_be_read_back_is_not_verified(tmp_path: Path) -> None:
    device = opened(tmp_path, Moods())
    copies = batch(read_back=False)
    device.put_many(copies)
    assert not copies.is_verified
    device.close()
