"""A publish that is repeated: which messages count as the same, and how many ids are remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

#: So many that every partition gets some of them.
NUMBERS = range(20)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_id_is_known_again_with_its_key_in_every_partition(
    tmp_path: Path, partitions: int, key: str | None
) -> None:
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        broker.declare(QueueSpec("q", partitions=partitions))
        batch = [Message(b"m", id=f"id-{number}", key=key) for number in NUMBERS]
        first = broker.publish("q", batch)
        again = [broker.publish("q", [message])[0] for message in batch]
    assert [receipt.id for receipt in again] == [receipt.id for receipt in first]
    assert all(receipt.duplicate for receipt in again)


def test_messages_of_a_key_keep_their_order_whatever_their_ids(tmp_path: Path) -> None:
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        broker.declare(QueueSpec("q", partitions=3))
        broker.publish("q", [Message(b"%d" % n, id=f"id-{n}", key="k") for n in NUMBERS])
        got = [lease.body for lease in broker.lease("q", count=100)]
    assert got == [b"%d" % number for number in NUMBERS]


def test_partitions_share_the_ids_that_a_queue_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_MAX", 1_280)
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        broker.declare(QueueSpec("q", partitions=4))
        for start in range(0, 4_000, 1_000):
            ids = [f"id-{number}" for number in range(start, start + 1_000)]
            broker.publish("q", [Message(b"", id=each) for each in ids], confirm="memory")
        (newest,) = broker.publish("q", [Message(b"", id="id-3999")])
        (oldest,) = broker.publish("q", [Message(b"", id="id-0")])
        shards = broker.engine.catalog.shards.values()
        remembered = sum(len(shard.partition.dedup) for shard in shards)
    assert newest.duplicate
    assert not oldest.duplicate
    assert 1_000 <= remembered <= 1_600
