"""`ebbmq doctor` on files beside the journal, and on stores whose bodies are not all in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.node import doctor
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "devices": {"hdd": {"kind": "file", "capacity_bytes": 64 * limits.MIB}},
    "rules": [{"id": "large", "weight": 50, "device": "hdd", "when": "SIZE >= 1"}],
    "upkeep_every_ms": 20,
}


@pytest.mark.parametrize("is_closed", [True, False])
def test_bodies_that_are_on_devices_only_are_no_damage(tmp_path: Path, is_closed: bool) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(bytes([n]) * 4_096) for n in range(9)] + [Message(b"small")])

        def are_away() -> bool:
            return sum("log" not in seen.kept.copies for seen in broker.peek("q", 20)) == 9  # type: ignore[union-attr]

        wait_until(are_away, "bodies on the disk only")
        broker.publish("q", Message(b"small, too"))
        # Files copied while nothing happens are what a kill -9 at this moment leaves.
        with broker.engine.in_turn.alone(), broker.engine.lock:
            shutil.copytree(directory, copy)
    data = directory if is_closed else copy
    report = doctor.examine(data)
    assert report.problems == []
    assert (report.messages, report.bodies, report.elsewhere) == (11, 2, 9)
    command = [sys.executable, "-m", "ebbmq.cli", "doctor", "--data", str(data)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is clean: 11 messages" in ran.stdout
    assert "9 messages on devices only" in ran.stdout


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory with a removal in its log, a checkpoint, and a message."""
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"purged")])
        broker.purge("q")
        broker.publish("q", [Message(b"kept")])
    return tmp_path / "data"


@pytest.mark.parametrize("at", [0, 17, -1], ids=["magic", "crc", "record"])
def test_damage_in_the_removals_log_is_found(used: Path, at: int) -> None:
    assert doctor.examine(used).clean
    flip(used / "removals" / "removals.log", at)
    report = doctor.examine(used)
    assert report.problems == ["removals log: 80 bytes of removals.log cannot be read"]
    assert report.bodies == 1


def test_a_removals_log_cut_short_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        (purged,) = broker.publish("q", [Message(b"purged")])
        broker.purge("q")
        broker.engine.removals.flush(broker.engine.journal.synced_position)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    path = tmp_path / "copy" / "removals" / "removals.log"
    path.write_bytes(path.read_bytes()[:-1])
    assert doctor.examine(tmp_path / "copy").problems == []
    with Broker.open(tmp_path / "copy") as broker:
        assert [removal.id for removal in broker.removals("q")] == [purged.id]


def test_a_damaged_checkpoint_is_found_and_the_messages_are_there(used: Path) -> None:
    (manifest,) = (used / "checkpoints").glob("*.manifest")
    flip(manifest, 30)
    report = doctor.examine(used)
    assert report.problems == [f"checkpoint: {manifest.name} does not match its checksum"]
    assert (report.messages, report.bodies) == (1, 1)
