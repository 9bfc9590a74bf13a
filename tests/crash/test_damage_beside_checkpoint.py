"""Records that came in while a checkpoint was written, and are lost: each message is named."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.journal.disk import FileDisk
from ebbmq.node import doctor
from tests.crash.journal_records import bringing, erase_header
from tests.crash.reports import named
from tests.crash.test_damage_without_checkpoint import CALM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ebbmq.journal.disk import OsFile

pytestmark = pytest.mark.crash


class TellingDisk(FileDisk):
    """A disk that says when a checkpoint is begun."""

    on_begin: Callable[[], None] | None = None

    def create(self, name: str, nbytes: int) -> OsFile:
        """Make a file."""
        if name.startswith("checkpoint") and self.on_begin is not None:
            tell, self.on_begin = self.on_begin, None
            tell()
        return super().create(name, nbytes)


@pytest.mark.parametrize("after", [0, 3], ids=["nothing after it", "more after it"])
@pytest.mark.parametrize("which", [(0,), (1, 2), (5,), (0, 3, 5)])
def test_what_was_published_while_a_checkpoint_was_written_is_named(
    tmp_path: Path, which: tuple[int, ...], after: int
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    (data / "journal").mkdir(parents=True)
    disk = TellingDisk(data / "journal")
    ids: list[str] = []
    with Broker.open(data, CALM, disk=disk) as broker:
        for name in ("a", "b"):
            broker.declare(QueueSpec(name))

        def publish(count: int) -> None:
            ids.extend(broker.publish("b", [Message(b"x")])[0].id for _ in range(count))

        # Their page is made meanwhile, and is not in the checkpoint.
        disk.on_begin = lambda: publish(6)
        broker.engine.checkpoint()
        publish(after)
        for _ in range(2):
            broker.publish("a", [Message(b"proof")], confirm="synced")
        shutil.copytree(data, copy)
    lost = {ids[n] for n in which}
    for record in [bringing(copy, identity) for identity in lost]:
        erase_header(copy, record)
    disk = TellingDisk(copy / "journal")
    examined = doctor.examine(copy, disk=disk).problems
    with Broker.open(copy, CALM, disk=disk) as broker:
        got = {lease.id for lease in broker.lease("b", count=100)}
        assert set(broker.health()["damage"]) == set(examined)
    assert got == set(ids) - lost
    assert named(examined) == lost
