"""One small Spark for all tests of the pipeline: two cores, little memory, no UI."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from ebbmq_spark.session import Settings, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SETTINGS = Settings(
    master="local[2]",
    memory="512m",
    shuffle_partitions=2,
    more={
        "spark.sql.adaptive.enabled": "false",
        "spark.default.parallelism": "2",
        # Compiling a plan that runs once, on a few rows, takes longer than running it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session(SETTINGS, "ebbmq tests") as session:
        yield session


@pytest.fixture(autouse=True)
def spark_may_leave_its_socket_open() -> Iterator[None]:
    """Spark keeps one socket to Java for its life and lets the collector close others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
