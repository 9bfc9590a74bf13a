"""`ebbmq doctor` on stores whose bodies are not all in the log."""

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
