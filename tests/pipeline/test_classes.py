"""Spark's classes as Java has loaded them: the Spark of tests starts with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.classes import archive_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    assert kept.read_text() == "tools/classes.py\n" * 2


def test_the_session_of_tests_uses_what_is_kept(spark: SparkSession) -> None:
    if not archive_path().exists():
        pytest.skip("no classes are kept: `make spark` does that")
    jvm = spark.sparkContext._jvm  # noqa: SLF001  # it has no public name
    assert jvm is not None
    given = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert f"-XX:SharedArchiveFile={archive_path()}" in list(given)
