"""Sessions that cannot be opened say so."""

from __future__ import annotations

import importlib.util

import pytest

from ebbmq_spark.session import Settings, SparkFailed, spark_session


@pytest.mark.skipif(importlib.util.find_spec("grpc") is not None, reason="it is installed")
def test_an_address_of_spark_connect_says_what_it_needs_instead_of_ending_the_process() -> None:
    with (
        pytest.raises(SparkFailed, match="Spark Connect is not installed") as refused,
        spark_session(Settings(master="sc://127.0.0.1:1")),
    ):
        pass
    assert "pyspark[connect]" in refused.value.action
