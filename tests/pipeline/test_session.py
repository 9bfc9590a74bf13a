"""Sessions: what they are opened with, and those that cannot be opened say so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq_spark.java import told_in
from ebbmq_spark.session import InvalidSetting, Settings, SparkFailed, spark_session
from tests.servers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_address_of_spark_connect_says_what_it_needs_instead_of_ending_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)  # as where it is not installed
    with (
        pytest.raises(SparkFailed, match="Spark Connect is not installed") as refused,
        spark_session(Settings(master="sc://127.0.0.1:1")),
    ):
        pass
    assert "pyspark[connect]" in refused.value.action


def test_a_spark_connect_server_that_is_not_there_is_told_at_once() -> None:
    port = free_port()
    with (
        pytest.raises(SparkFailed, match=f"no Spark Connect server at 127.0.0.1:{port}") as refused,
        spark_session(Settings(master=f"sc://127.0.0.1:{port}")),
    ):
        pass
    assert "sc://HOST:PORT" in refused.value.action


@pytest.mark.parametrize("memory", ["abc", "1", "512", "449m", "1.5g", "-1g", "1gb", ""])
def test_memory_that_is_none_or_too_little_is_refused_before_spark_starts(memory: str) -> None:
    with (
        pytest.raises(InvalidSetting, match=f"the memory of Spark is '{memory}'") as refused,
        spark_session(Settings(memory=memory)),
    ):
        pass
    assert "450m or more" in refused.value.action


STARTING = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/18 01:18:37 WARN NativeCodeLoader: Unable to load native-hadoop library
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", None),
        (STARTING, None),
        (
            (
                "Picked up JAVA_TOOL_OPTIONS: -Xa\nInvalid maximum heap size: -Xmxabc\n"
                "Error: Could not create the Java Virtual Machine.\n"
                "Error: A fatal exception has occurred. Program will exit.\n"
            ),
            "Invalid maximum heap size: -Xmxabc",
        ),
        (
            (
                f'{STARTING}Exception in thread "main" org.apache.spark.SparkException: Unknown\n'
                "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)\n"
            ),
            "Unknown",
        ),
        (
            (
                f"{STARTING}26/11/18 01:19 ERROR SparkContext: Error initializing SparkContext.\n"
                "org.apache.spark.SparkException: The number of cores\n\tat a.b(C.scala:1)\n"
            ),
            "The number of cores",
        ),
        (
            f"{STARTING}26/11/18 01:20 ERROR StandaloneSchedulerBackend: All masters are gone\n",
            "All masters are gone",
        ),
    ],
)
def test_why_spark_did_not_start_is_in_the_last_telling_line_of_its_log(
    log: str, told: str | None
) -> None:
    assert told_in(log) == told


def test_what_a_user_sets_by_the_names_of_spark_wins() -> None:
    told = Settings(more={"spark.python.unix.domain.socket.enabled": "false"})
    assert told.of_spark(Path("/tmp/s"))["spark.python.unix.domain.socket.enabled"] == "false"


def test_java_options_of_a_user_are_left_to_the_user() -> None:
    told = Settings().of_spark(Path("/tmp/s"))
    assert "spark.driver.extraJavaOptions" not in told
    assert "spark.executor.extraJavaOptions" not in told


def test_sockets_are_among_the_scratch_files_unless_their_names_were_too_long() -> None:
    enabled = "spark.python.unix.domain.socket.enabled"
    short, long = Path("/tmp/ebbmq-spark-12345678"), Path("/tmp") / ("d" * 90)
    assert Settings().of_spark(short)[enabled] == "true"
    assert Settings().of_spark(short)["spark.python.unix.domain.socket.dir"] == str(short)
    assert enabled not in Settings().of_spark(long)
    assert enabled not in Settings(master="spark://127.0.0.1:7077").of_spark(short)


def test_java_takes_values_of_arrow_without_a_second_look(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # it has no public name
    system = getattr(jvm, "java.lang.System")
    assert system.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert system.getProperty("arrow.enable_null_check_for_get") == "false"
