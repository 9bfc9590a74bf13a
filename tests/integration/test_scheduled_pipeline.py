"""The server runs the pipeline as a child; whatever becomes of it, messages are served."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from ebbmq.feed import claims, runs
from ebbmq_spark.lake import open_lake
from tests.serving import Running, wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "ebbmq.toml"
    path.write_text(
        '[feed]\nlake = "lake"\nevery_ms = 50\n\n[pipeline]\nevery_ms = 1000\ntimeout_ms = 20000\n'
    )
    return path


def java(tmp_path: Path, script: str) -> dict[str, str]:
    """A Java that is none."""
    path = tmp_path / "jdk" / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"JAVA_HOME": str(tmp_path / "jdk")}


def health(server: Running) -> dict[str, object]:
    with server.caller() as caller:
        found: dict[str, object] = caller.call("GET", "/health/ready").json
        return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_java_the_server_says_so_and_goes_on(tmp_path, config) -> None:
    nowhere = {"JAVA_HOME": str(tmp_path / "nowhere")}
    with Running(tmp_path / "data", "--config", str(config), environment=nowhere) as server:
        wait_until(lambda: bool(health(server)["pipeline"]), "it says that no run ends")
        found = health(server)
        assert found["ready"] is True
        assert "the pipeline ended with 1, and no run ended since" in str(found["pipeline"])
        assert "Spark needs Java 17 or newer" in server.log()
        with server.caller() as caller:
            assert caller.call("PUT", "/v1/queues/q", {}).status in (200, 201)
        # Whether runs end is read from the lake, whoever carried them through.
        record = tmp_path / "data" / "lake" / runs.RUNS / "20260101T000000000Z.json"
        record.parent.mkdir(exist_ok=True)
        record.touch()
        told = f"no run ended since {runs.RUNS}/{record.name}"
        wait_until(lambda: told in str(health(server)["pipeline"]), "it names the last run")
        assert server.stop() == 0


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_child_that_hangs_ends_with_the_server(tmp_path, config, ends) -> None:
    seen = tmp_path / "pid"
    hangs = java(tmp_path, f"echo $$ > {seen}.part; mv {seen}.part {seen}; exec sleep 3600")
    with Running(tmp_path / "data", "--config", str(config), environment=hangs) as server:
        wait_until(seen.exists, "the child is at work")
        pid = int(seen.read_text())
        assert health(server)["ready"] is True
        getattr(server, ends)()
    wait_until(lambda: not is_running(pid), "the child is gone")


def test_a_child_that_hangs_is_ended_in_time_and_told(tmp_path, config) -> None:
    config.write_text(config.read_text().replace("20000", "5000"))
    hangs = java(tmp_path, "exec sleep 3600")
    with Running(tmp_path / "data", "--config", str(config), environment=hangs) as server:
        wait_until(lambda: bool(health(server)["pipeline"]), "it is told")
        assert "ended with -9" in str(health(server)["pipeline"])
        assert "pipeline_too_long" in server.log()


@pytest.mark.crash
def test_a_child_that_is_killed_is_told_and_the_next_one_is_started(tmp_path, config) -> None:
    seen = tmp_path / "parent"
    # It lives as long as who started it, as Java does under Spark.
    follows = java(
        tmp_path,
        f"echo $PPID > {seen}.part; mv {seen}.part {seen}\n"
        "while kill -0 $PPID 2> /dev/null; do sleep 0.05; done",
    )
    with Running(tmp_path / "data", "--config", str(config), environment=follows) as server:
        wait_until(seen.exists, "the child is at work")
        killed = int(seen.read_text())
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: bool(health(server)["pipeline"]), "it is told")
        assert "ended with -9" in str(health(server)["pipeline"])
        assert health(server)["ready"] is True
        wait_until(lambda: int(seen.read_text()) != killed, "the next one is at work")


def test_the_child_reads_a_lake_in_an_object_store_and_its_secrets_are_not_on_its_command_line(
    tmp_path, config, weed
) -> None:
    config.write_text(
        f"""
[feed]
lake = "s3://{weed.bucket}/scheduled-{tmp_path.name}"
every_ms = 50
[feed.options]
endpoint = "{weed.endpoint}"
region = "us-east-1"
access_key_id = "{weed.access_key}"
secret_access_key = "{weed.secret_key}"
[pipeline]
every_ms = 1000
conf = {{ "spark.x" = "told to Spark" }}
"""
    )
    seen = tmp_path / "arguments"
    # It has the options when it starts Java: by then the lake is open.
    hangs = java(
        tmp_path,
        f"tr '\\0' ' ' < /proc/$PPID/cmdline > {seen}.part; mv {seen}.part {seen}; exec sleep 3600",
    )
    with Running(tmp_path / "data", "--config", str(config), environment=hangs) as server:
        wait_until(seen.exists, "the child is at work")
        assert f"--lake s3://{weed.bucket}/scheduled-{tmp_path.name}" in seen.read_text()
        assert weed.secret_key not in seen.read_text()
        # Of what is Spark's, Java is told on its command line, and that is known.
        assert "told to Spark" not in seen.read_text().partition("pipeline run")[2]
        assert health(server)["pipeline"] == []


def test_a_spark_that_does_not_start_is_told_and_leaves_its_log(tmp_path, config) -> None:
    scratch, tries = tmp_path / "scratch", tmp_path / "tries"
    scratch.mkdir()
    fails = java(
        tmp_path,
        f"""case "$1" in -version) echo 'openjdk version "17.0.1"' >&2; exit 0;; esac
echo tried >> {tries}
echo 'Exception in thread "main" org.apache.spark.SparkException: no such master' >&2
exit 1""",
    )
    places = {"TMPDIR": str(scratch), **fails}

    with Running(tmp_path / "data", "--config", str(config), environment=places) as server:
        wait_until(tries.exists, "it is tried")
        wait_until(lambda: len(tries.read_text().splitlines()) > 2, "it is tried again")
        assert "ended with 1" in str(health(server)["pipeline"])
        assert "Spark did not start on local[*]: no such master" in server.log()
        assert server.stop() == 0
    logs = list(scratch.glob("ebbmq-spark-*.log"))
    assert any("no such master" in log.read_text() for log in logs)


def test_a_run_is_left_to_who_is_at_work_on_the_lake(tmp_path, config) -> None:
    lake, seen = tmp_path / "data" / "lake", tmp_path / "seen"
    claims.claim(lake, "other")
    hangs = java(tmp_path, f"touch {seen}; exec sleep 3600")
    with (
        open_lake(lake).only_one("run"),
        Running(tmp_path / "data", "--config", str(config), environment=hangs) as server,
    ):
        wait_until(lambda: server.log().count("left to another") > 1, "it is left, and tries again")
        assert not seen.exists()
        assert health(server)["pipeline"] == []
    assert "pipeline_ended" not in server.log()


def test_a_pipeline_without_a_lake_is_told_in_the_log(tmp_path, config) -> None:
    config.write_text("[pipeline]\nevery_ms = 1000\n")
    with Running(tmp_path / "data", "--config", str(config)) as server:
        assert server.stop() == 0
    assert "feed.lake names no lake" in server.log()
