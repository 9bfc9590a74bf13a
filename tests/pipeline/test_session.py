"""Sessions that cannot be opened say so."""

from __future__ import annotations

import sys

import pytest

from ebbmq_spark.session import Settings, SparkFailed, spark_session
from tests.servers import free_port


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
