"""A file device reads back what another copy goes for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ebbmq.checksum import crc32c
from ebbmq.errors import StorageFailed
from ebbmq.holding.columns import Batch, Columns
from ebbmq.holding.contract import DeviceSpec, Lack
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
def test_what_a_disk_does_not_give_back_as_it_was_written_is_refused_by_name(
    tmp_path: Path, mood
) -> None:
    moods = Moods()
    device = opened(tmp_path, moods)
    with moods.being(mood), pytest.raises(StorageFailed) as refused:
        device.put_many(batch(read_back=True))
    assert refused.value.code == "copy_not_verified"
    device.close()


def test_what_was_refused_can_be_deleted_and_put_again(tmp_path: Path) -> None:
    moods = Moods()
    device = opened(tmp_path, moods)
    copies = batch(read_back=True)
    with moods.being("wrong"), pytest.raises(StorageFailed):
        device.put_many(copies)
    device.delete_many(copies.keys())
    assert device.get_many(copies.keys()) == [Lack.MISSING] * 2
    device.put_many(copies)
    assert device.get_many(copies.keys()) == BODIES
    device.close()
