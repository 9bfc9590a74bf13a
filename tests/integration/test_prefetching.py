"""Bodies on a device are brought into RAM before their delivery, however slow the device is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG, name_of
from ebbmq.holding import opening
from ebbmq.node.outflow import parse_id
from tests.crash.devices import Moods, MoodyDisk
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUEUE = "orders"
COUNT = 3_000
#: Nothing is thought of a device that freezes: it is slow, and slow only.
DEVICES: dict[str, Any] = {
    "cold": {
        "kind": "file",
        "capacity_bytes": 64 << 20,
        "stall_ms": 600_000,
        "status": {"every_ms": 600_000},
    }
}
RULES = [{"id": "C", "weight": 90, "device": "cold", "when": "TYPE == TEXT"}]


class Store:
    """A broker whose device can be frozen; what it starts with is not in RAM."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moods = Moods()
        self.broker = self._open()
        self.broker.declare(QueueSpec(QUEUE, lease_timeout_ms=600_000))

    def _open(self) -> Broker:
        return Broker.open(self.path, {"devices": DEVICES, "rules": RULES, "upkeep_every_ms": 20})

    def publish(self, messages: list[Message]) -> None:
        receipts = self.broker.publish(QUEUE, messages)
        texts = [
            name_of(*parse_id(receipt.id))
            for message, receipt in zip(messages, receipts, strict=True)
            if message.type == "TEXT"
        ]

        def is_moved() -> bool:
            with self.broker.engine.lock:
                found = self.broker.engine.holdings.of_many(texts)
            return all(LOG not in each.copies for each in found)

        wait_until(is_moved, "moving")

    def restart(self) -> None:
        self.broker.close()
        self.broker = self._open()

    def lease(self, count: int) -> list[bytes]:
        return [lease.body for lease in self.broker.lease(QUEUE, count, wait_ms=60_000)]

    def in_ram(self) -> int:
        (shard,) = self.broker.engine.catalog.shards.values()
        with self.broker.engine.lock:
            return int(shard.resident.entries)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made: list[Store] = []

    def disk(directory: Path) -> MoodyDisk:
        return MoodyDisk(directory, made[0].moods)

    class Made(Store):
        def __init__(self, path: Path) -> None:
            made.append(self)
            super().__init__(path)

    monkeypatch.setattr(opening, "FileDisk", disk)
    store = Made(tmp_path / "data")
    yield store
    store.broker.close()


def texts(count: int) -> list[Message]:
    return [Message(b"%d" % number, type="TEXT") for number in range(count)]


def until_in_ram(store: Store, is_enough: Callable[[int], bool]) -> None:
    wait_until(lambda: is_enough(store.in_ram()), "reading ahead")


def test_what_is_delivered_next_is_in_ram_before_a_slow_device_is_asked_for_it(
    store: Store,
) -> None:
    store.publish(texts(COUNT))
    store.restart()
    assert store.lease(1) == [b"0"]
    until_in_ram(store, lambda found: found == COUNT - 1)
    with store.moods.being("frozen"):
        assert store.lease(COUNT) == [b"%d" % number for number in range(1, COUNT)]


def test_bodies_are_brought_further_as_a_consumer_goes_on(store: Store) -> None:
    store.publish(texts(COUNT))
    store.restart()
    for first in range(0, COUNT, 100):
        assert store.lease(100) == [b"%d" % number for number in range(first, first + 100)]
    until_in_ram(store, lambda found: found == 0)


def test_an_archived_message_at_the_head_stalls_only_the_call_that_leased_it(
    store: Store,
) -> None:
    store.publish([*texts(1), Message(b"behind"), Message(b"last")])
    store.restart()
    with ThreadPoolExecutor() as pool:
        with store.moods.being("frozen"):
            head = pool.submit(store.lease, 1)
            wait_until(lambda: store.broker.stats(QUEUE)["depth"]["leased"] == 1, "a lease")
            assert store.lease(2) == [b"behind", b"last"]
            assert not head.done()
        assert head.result() == [b"0"]
