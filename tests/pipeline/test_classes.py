"""Spark's classes as Java has loaded them: used where they fit, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ebbmq_spark.classes import ARCHIVE, archive_options, archive_path
from ebbmq_spark.session import Settings

if TYPE_CHECKING:
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


SESSION = """
from ebbmq_spark.session import Settings, spark_session
with spark_session(Settings(master="local[1]", memory="512m")) as spark:
    print(spark.range(7).selectExpr("sum(id) AS sum").collect()[0].sum)
"""
#: How Java says where a class is from that the file has.
KEPT = "org.apache.spark.sql.classic.SparkSession source: shared objects file (top)"


def started(*words: str, **environment: str) -> str:
    """What Python says that starts Spark."""
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def test_what_is_kept_is_used_by_sessions_and_in_the_way_of_none(tmp_path: Path) -> None:
    # An installation of its own: the same jars, and nothing kept of their classes.
    home = tmp_path / "spark"
    for place in archive_path().parent.iterdir():
        if place.name in ("bin", "python"):
            (home / place.name).parent.mkdir(exist_ok=True)
            (home / place.name).symlink_to(place)
    (home / "jars").mkdir()
    for jar in (archive_path().parent / "jars").iterdir():
        (home / "jars" / jar.name).symlink_to(jar)
    log = tmp_path / "loaded"
    quick = os.environ["SPARK_SUBMIT_OPTS"]
    java = {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": f"{quick} -Xlog:class+load:file={log}"}
    made = started("-m", "ebbmq_spark.classes", SPARK_HOME=str(home))
    assert made == f"{home / ARCHIVE}\n"
    assert [place.name for place in home.glob("*.jsa*")] == [ARCHIVE]
    assert started("-c", SESSION, **java).split() == ["21"]
    assert KEPT in log.read_text()
    # Another version of a jar: what is kept is of no use, and no fault.
    (jar,) = (home / "jars").glob("spark-core_*.jar")
    stored = jar.read_bytes()
    jar.unlink()
    jar.write_bytes(stored)
    assert started("-c", SESSION, **java).split() == ["21"]
    assert "shared objects file (top)" not in log.read_text()


def test_they_are_kept_anew_when_there_is_another_java(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    root, venv = Path(__file__).parents[2], tmp_path / "venv"
    for place in ("bin", "java"):
        (venv / place).mkdir(parents=True)
    kept = tmp_path / "kept"
    for place, text in (
        ("bin/python", f'#!/bin/sh\necho "$@" >>{kept}\n'),
        ("java/java", f"#!/bin/sh\ncat {tmp_path / 'version'} >&2\n"),
    ):
        (venv / place).write_text(text)
        (venv / place).chmod(0o700)
    stamp, spark = venv / "classes.stamp", venv / "spark.stamp"
    spark.touch()
    path = f"{venv / 'java'}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path)}
    for version in ("17.0.1", "17.0.1", "17.0.2", "17.0.2"):
        (tmp_path / "version").write_text(f'openjdk version "{version}"\n')
        # Of Spark nothing is installed anew.
        words = ["make", f"VENV={venv}", "PYTHON=python3", "-o", str(spark), str(stamp)]
        subprocess.run(words, cwd=root, env=environment, check=True, capture_output=True)
    assert kept.read_text() == "-m ebbmq_spark.classes\n" * 2


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
