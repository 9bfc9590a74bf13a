"""File devices whose disk fails for a while: what is on it is there when it is well again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from ebbmq.checksum import crc32c
from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceSpec, Key
from ebbmq.holding.file import FileDevice
from ebbmq.journal.disk import FileDisk
from tests.crash.devices import Moods, MoodyDisk

if TYPE_CHECKING:
    from pathlib import Path

UUID = b"d" * 16
SPEC = DeviceSpec(name="a", tier="cold", durable=True, failure_domain="a", capacity_bytes=8 << 20)
KEY = Key(bytes(16), 1, 1)


class Recovering(Moods):
    """Fails so many operations, and is well from then on."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.left = operations
        self.mood = "failing"

    @override
    def before(self, *, writing: bool) -> None:
        if not self.left:
            self.mood = "well"
        self.left -= 1
        super().before(writing=writing)


@pytest.mark.parametrize("operations", [0, 1, 2, *range(3, 1_200, 9)])
def test_a_disk_that_is_well_again_while_it_is_opened_has_lost_nothing(
    tmp_path: Path, operations: int
) -> None:
    device = FileDevice(SPEC, FileDisk(tmp_path), UUID, lambda: 0.0)
    device.put_many([Copy(KEY, b"body", crc32c(b"body"))])
    assert device.probe().ok
    device.close()
    moods = Recovering(operations)
    try:
        opened = FileDevice(SPEC, MoodyDisk(tmp_path, moods), UUID, lambda: 0.0)
    except StorageFailed:
        opened = FileDevice(SPEC, FileDisk(tmp_path), UUID, lambda: 0.0)
    assert opened.get_many([KEY]) == [b"body"]
    opened.close()
