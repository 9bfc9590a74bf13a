"""Tasks run in a Python that has the package, and who starts another one is told before a query."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ebbmq_spark.connector import pythons

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession


def session(python: str, master: str = "local[2]", *sent: str) -> Any:
    context = SimpleNamespace(master=master, pythonExec=python, _python_includes=list(sent))
    return SimpleNamespace(sparkContext=context)


def program(place: Path, code: int) -> str:
    place.write_text(f"#!/bin/sh\nexit {code}\n")
    place.chmod(0o755)
    return str(place)


def test_a_python_without_the_package_is_named_once_with_the_one_to_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    python = program(tmp_path / "python", 1)
    for _ in range(2):
        pythons.check(session(python))
    (record,) = caplog.records
    assert f"Spark starts {python} for tasks, where ebbmq is not installed" in record.getMessage()
    assert f"set PYSPARK_PYTHON={sys.executable} before" in record.getMessage()
    pythons.check(session(str(tmp_path / "nowhere")))
    assert len(caplog.records) == 2


def test_nothing_is_said_of_a_python_that_has_it_or_may_have_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spark: SparkSession
) -> None:
    pythons.check(spark)
    pythons.check(session(program(tmp_path / "has-it", 0)))
    lacks = program(tmp_path / "lacks-it", 1)
    pythons.check(session(lacks, "spark://head:7077"))
    pythons.check(session(lacks, "local[2]", "ebbmq.zip"))
    assert not caplog.records
