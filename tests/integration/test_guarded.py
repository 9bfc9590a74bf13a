"""The guard of the other suites does refuse what is read without the engine's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import name_of
from ebbmq.node import outflow
from ebbmq.testing import ManualClock
from tests.guarded import GuardedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        broker.declare(QueueSpec("q", retry_delay_ms=0))
        broker.publish("q", Message(b"body"))
        broker.retry("q", [broker.lease("q")[0].token])
        yield broker
        GuardedEngine.trespasses.clear()


def test_a_reader_without_the_lock_is_refused_and_put_down(broker: Broker) -> None:
    engine = broker.engine
    shard = engine.catalog.queue("q").shards[0]
    with engine.lock:
        row = shard.partition.index.read(1)
        assert row is not None
        assert outflow.peeked(shard.partition, 1, row, b"body", 0).failures == 1
    with pytest.raises(AssertionError, match="without the engine's lock"):
        outflow.peeked(shard.partition, 1, row, b"body", 0)
    with pytest.raises(AssertionError, match="without the engine's lock"):
        engine.keeping.row_of(name_of(shard.partition.pid, 1))
    assert len(GuardedEngine.trespasses) == 2
