"""What processes that Spark starts have to warn of is said where the user is."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ebbmq import Client, QueueSpec
from ebbmq_spark import telling
from ebbmq_spark.session import Settings
from tests.pipeline.killing import ROOT
from tests.serving import Running

if TYPE_CHECKING:
    import pytest

#: A process of Spark's, which warns.
WARN = """
from ebbmq_spark import telling
telling.logger().warning("%d of %s", 1, "x" * 5_000)
telling.logger().debug("not this")
"""
KNEW = (
    "100 of 100 messages had ids that queue 'to' knew already, and were kept once: unless they "
    "were published before, as by a batch that is played again, column 'id' does not tell messages "
    "apart"
)


def warned_by(address: Path) -> str:
    """What such a process says itself."""
    environment = {**os.environ, telling.VARIABLE: str(address)}
    done = subprocess.run(
        [sys.executable, "-c", WARN],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


def test_a_session_says_which_ids_were_known_and_nothing_else(tmp_path: Path) -> None:
    with Running(tmp_path / "broker") as server, Client(server.url) as client:
        client.declare(QueueSpec("to"))
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.telling_driver", server.url, str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert client.stats("to")["depth"]["ready"] == 100
    # The batch that was written again, and the stream.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{KNEW}\n{KNEW}\n")


def test_what_is_told_before_the_end_is_logged_by_then_and_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = telling.address_in(tmp_path)
    assert address is not None
    with telling.heard(address):
        said = [warned_by(address) for _ in range(3)]
    assert said == [""] * 3
    assert (
        caplog.record_tuples
        == [(telling.NAME, logging.WARNING, ("1 of " + "x" * 5_000)[:4_000])] * 3
    )


def test_where_nobody_listens_it_is_said_by_the_process_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "1 of " + "x" * 5_000 + "\n"
    assert warned_by(tmp_path / "nobody") == said
    address = telling.address_in(tmp_path)
    assert address is not None
    with telling.heard(address):
        pass
    assert warned_by(address) == said
    assert not caplog.records


def test_scratch_files_that_are_too_deep_for_a_socket_have_no_address() -> None:
    deep, name = Path("/tmp") / ("d" * 100), f"spark.executorEnv.{telling.VARIABLE}"
    assert telling.address_in(deep) is None
    assert name not in Settings().of_spark(deep)
    assert Settings().of_spark(Path("/tmp/s"))[name] == "/tmp/s/told"
    assert name not in Settings(master="sc://127.0.0.1:1").of_spark(Path("/tmp/s"))
    with telling.heard(None):
        pass
