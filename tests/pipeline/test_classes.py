"""Spark's classes as Java has loaded them: used where they fit, and never in the way."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from ebbmq_spark.classes import ARCHIVE, archive_options, archive_path
from ebbmq_spark.session import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DRIVER = "spark.driver.defaultJavaOptions"


def submitted(java_options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What Spark's own command says of itself, in a Java with these options."""
    command = [str(archive_path().parent / "bin" / "spark-submit"), "--version"]
    return subprocess.run(
        [*command, "--conf", f"{DRIVER}={java_options}"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_where_nothing_is_kept_java_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert archive_options() == ""
    assert Settings().of_spark(tmp_path)[DRIVER].split()[-1].startswith("-Darrow.")


def test_a_file_that_does_not_fit_is_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "with spaces"
    place.mkdir()
    (place / ARCHIVE).write_bytes(b"made by another Java")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPARK_HOME", str(place))
        told = archive_options()
    assert str(place) in told
    done = submitted(told)
    assert done.stdout == ""
    assert "Welcome to" in done.stderr
    assert "rror" not in done.stderr


def test_a_session_uses_what_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    if not archive_path().exists():
        pytest.skip("no classes are kept: `make spark` does that")
    log = tmp_path / "loaded"
    submitted(archive_options(), SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={log}")
    assert (
        "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)" in log.read_text()
    )
    jvm = spark.sparkContext._jvm  # noqa: SLF001  # it has no public name
    assert jvm is not None
    given = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert f"-XX:SharedArchiveFile={archive_path()}" in list(given)
