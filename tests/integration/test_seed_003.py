"""Storage that keeps an index in RAM and bodies within bounds, sentence by sentence."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from ebbmq.core import row
from ebbmq.errors import Overloaded
from ebbmq.journal.commit import CommitThread
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIB = 1_024
CACHE_BYTES = 256 * KIB


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=clock) as broker:
        yield broker


def fill(broker: Broker, count: int, queue: str = "q") -> list[bytes]:
    bodies = [b"%d " % number + bytes(KIB) for number in range(count)]
    for start in range(0, count, 100):
        part = bodies[start : start + 100]
        broker.publish(queue, [Message(body) for body in part], confirm="written")
    return bodies


def cache_bytes(broker: Broker, queue: str = "q") -> int:
    return int(broker.stats(queue)["cache"]["bytes"])


def test_memory_does_not_grow_with_the_queue(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    fill(broker, 2_000)
    assert broker.stats("q")["bytes"] > 2_000 * KIB
    assert cache_bytes(broker) <= CACHE_BYTES


def test_the_overhead_of_an_entry_counts_against_the_bound(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    broker.publish("q", [Message(b"") for _ in range(10_000)], confirm="written")
    entries = CACHE_BYTES // limits.CACHE_ENTRY_OVERHEAD_BYTES
    assert entries < 10_000
    assert cache_bytes(broker) <= CACHE_BYTES
    assert len(broker.lease("q", count=10_000)) == 10_000


def test_a_body_that_is_not_in_ram_is_loaded_when_it_is_needed(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    bodies = fill(broker, 2_000)
    assert [lease.body for lease in broker.lease("q", count=2_000)] == bodies


def test_fifo_ordering_is_maintained_whatever_is_in_ram(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    bodies = fill(broker, 1_000)
    got: list[bytes] = []
    while leases := broker.lease("q", count=37):
        got += [lease.body for lease in leases]
        broker.ack("q", [lease.token for lease in leases])
    assert got == bodies


def test_the_index_entry_of_a_message_has_64_bytes() -> None:
    assert row.ROW.size == limits.ROW_BYTES == 64


def test_the_cache_is_128_mb_per_queue_and_2_gb_in_all_by_default() -> None:
    assert QueueSpec("q").cache_bytes == 128 * KIB * KIB
    assert limits.NODE_CACHE_BYTES == 2 * KIB * KIB * KIB


def test_caching_and_paging_to_disk_are_on_by_default() -> None:
    spec = QueueSpec("q")
    assert (spec.cache_enabled, spec.page_to_disk) == (True, True)


def flushes(broker: Broker) -> int:
    return broker.journal()["flushes"]


def test_disk_writes_are_batched_and_flushed_after_1000_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare(QueueSpec("q"))
    monkeypatch.setattr("ebbmq.journal.commit._FLUSH_SECONDS", 1_000.0)
    broker.publish("q", [Message(b"m")], confirm="synced")
    before = flushes(broker)
    for _ in range(limits.UNSYNCED_FLUSH_MESSAGES - 1):
        broker.publish("q", [Message(b"m")], confirm="written")
    assert flushes(broker) == before
    broker.publish("q", [Message(b"m")], confirm="written")
    wait_until(lambda: flushes(broker) == before + 1, "a flush")
    assert limits.UNSYNCED_FLUSH_MESSAGES == 1_000


def test_what_was_written_is_flushed_though_nobody_waits_for_it(broker: Broker) -> None:
    broker.declare(QueueSpec("q"))
    before = flushes(broker)
    broker.publish("q", [Message(b"m")], confirm="written")
    wait_until(lambda: flushes(broker) > before, "a flush")


class RecordedSignal:
    """A lock that remembers how long was waited for it."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self._lock = threading.Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.timeouts.append(timeout)
        return self._lock.acquire(blocking, timeout)


def test_what_was_written_is_flushed_after_100_ms() -> None:
    signal, flushed = RecordedSignal(), threading.Event()
    thread = CommitThread(lambda: flushed.set() or 0, [], signal)
    thread.arm()
    assert flushed.wait(30)
    thread.stop()
    for_ever, flush_s = -1, 0.1
    assert signal.timeouts[:3] == [for_ever, for_ever, flush_s]


def test_a_flush_is_waited_for_on_publisher_confirms_only(tmp_path: Path) -> None:
    # Without threads nothing is flushed but what somebody waits for.
    with Broker.open(tmp_path, disk=MemoryDisk(), threaded=False) as broker:
        broker.declare(QueueSpec("q"))
        before = flushes(broker)
        for level in ("memory", "written"):
            broker.publish("q", [Message(b"m")], confirm=level)
        assert flushes(broker) == before
        broker.publish("q", [Message(b"m")], confirm="synced")
        assert flushes(broker) == before + 1


def test_consumers_are_notified_of_a_publish(tmp_path: Path) -> None:
    got: list[bytes] = []
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        consumer = threading.Thread(
            target=lambda: got.extend(lease.body for lease in broker.lease("q", wait_ms=60_000))
        )
        consumer.start()
        broker.publish("q", [Message(b"m")])
        consumer.join(30)
        assert got == [b"m"]


def test_under_memory_pressure_the_largest_queue_is_paged_first(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, config={"cache_bytes": CACHE_BYTES}, clock=clock) as broker:
        for name in ("large", "small"):
            broker.declare(QueueSpec(name, cache_bytes=CACHE_BYTES))
        fill(broker, 150, "large")
        before = cache_bytes(broker, "large")
        fill(broker, 60, "small")
        assert cache_bytes(broker, "large") < before
        broker.lease("small", count=60)
        cache = broker.stats("small")["cache"]
        assert (cache["hits"], cache["misses"]) == (60, 0)


def test_the_limit_of_the_node_wins_over_that_of_the_queue(
    tmp_path: Path, clock: ManualClock
) -> None:
    config = {"cache_bytes": CACHE_BYTES}
    with Broker.open(tmp_path, config=config, clock=clock) as broker:
        names = ["a", "b", "c"]
        for name in names:
            broker.declare(QueueSpec(name, cache_bytes=CACHE_BYTES))
            fill(broker, 500, name)
        assert sum(cache_bytes(broker, name) for name in names) <= CACHE_BYTES


def test_a_message_in_the_cache_is_a_hit_and_needs_no_disk(broker: Broker) -> None:
    broker.declare(QueueSpec("q"))
    fill(broker, 100)
    broker.lease("q", count=100)
    cache = broker.stats("q")["cache"]
    assert (cache["hits"], cache["misses"]) == (100, 0)


def test_on_ack_the_index_entry_and_the_cached_body_go(broker: Broker) -> None:
    broker.declare(QueueSpec("q"))
    fill(broker, 100)
    leases = broker.lease("q", count=100)
    broker.ack("q", [lease.token for lease in leases])
    stats = broker.stats("q")
    assert stats["bytes"] == 0
    assert stats["cache"]["bytes"] == 0
    assert sum(stats["depth"].values()) == 0


def test_a_queue_pages_above_90_percent_and_is_normal_again_below_80(
    tmp_path: Path, clock: ManualClock
) -> None:
    high, low, step = CACHE_BYTES * 90 // 100, CACHE_BYTES * 80 // 100, 4 * KIB
    with Broker.open(tmp_path, config={"cache_bytes": CACHE_BYTES}, clock=clock) as broker:
        broker.declare(QueueSpec("q", cache_bytes=2 * CACHE_BYTES))
        peak = 0
        while broker.stats("q")["residency"] == "normal":
            peak = max(peak, cache_bytes(broker))
            fill(broker, 1)
        assert high - step < peak <= high
        while broker.stats("q")["residency"] == "paging":
            assert cache_bytes(broker) > low
            (lease,) = broker.lease("q")
            broker.ack("q", [lease.token])
        assert low - step < cache_bytes(broker) <= low
        while leases := broker.lease("q", count=100):
            broker.ack("q", [lease.token for lease in leases])
        assert broker.stats("q")["residency"] == "normal"


def test_without_a_cache_nothing_is_kept_in_ram_and_everything_is_delivered(
    broker: Broker,
) -> None:
    broker.declare(QueueSpec("q", cache_enabled=False))
    bodies = fill(broker, 300)
    assert cache_bytes(broker) == 0
    assert [lease.body for lease in broker.lease("q", count=300)] == bodies


def test_without_paging_a_full_cache_refuses_publishes_by_name(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES, page_to_disk=False))
    with pytest.raises(Overloaded) as caught:
        fill(broker, 2_000)
    assert "page_to_disk" in caught.value.detail
    assert "cache_bytes" in caught.value.action
    count = broker.stats("q")["depth"]["ready"]
    leases = broker.lease("q", count=10_000)
    assert len(leases) == count > 0
    broker.ack("q", [lease.token for lease in leases])
    broker.publish("q", [Message(bytes(KIB))])


def test_what_is_delivered_next_stays_in_ram_and_what_is_farthest_goes(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    fill(broker, 1_000)
    broker.lease("q", count=100)
    cache = broker.stats("q")["cache"]
    assert (cache["hits"], cache["misses"]) == (100, 0)


def test_more_than_95_percent_of_a_deep_backlog_is_in_ram_when_it_is_leased(
    broker: Broker, clock: ManualClock
) -> None:
    broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
    fill(broker, 3_000)
    while leases := broker.lease("q", count=20):
        broker.ack("q", [lease.token for lease in leases], confirm="memory")
        clock.advance(1)
    cache = broker.stats("q")["cache"]
    assert cache["hits"] + cache["misses"] == 3_000
    assert cache["hits"] > 0.95 * 3_000


def test_the_residency_of_a_backlog_survives_nothing_and_costs_nothing_at_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", cache_bytes=CACHE_BYTES))
        bodies = fill(broker, 1_000)
    with Broker.open(tmp_path, clock=clock) as broker:
        assert cache_bytes(broker) <= CACHE_BYTES
        assert [lease.body for lease in broker.lease("q", count=1_000)] == bodies


def test_metadata_is_seen_without_loading_the_body(broker: Broker) -> None:
    broker.declare(QueueSpec("q", cache_enabled=False))
    fill(broker, 50)
    stats = broker.stats("q")
    assert stats["depth"]["ready"] == 50
    assert stats["by_importance"][5] == 50
    assert stats["oldest_age_ms"] == 0
    assert stats["cache"]["misses"] == 0


@pytest.mark.parametrize("closes", [True, False])
def test_after_a_restart_of_an_empty_queue_new_bodies_are_kept_in_ram(
    tmp_path: Path, closes: bool
) -> None:
    disk = MemoryDisk()
    broker = Broker.open(tmp_path / "1", disk=disk, threaded=False)
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"x")])
    broker.ack("q", [lease.token for lease in broker.lease("q")], confirm="synced")
    if closes:
        broker.close()
    else:
        disk.kill()
    shutil.copytree(tmp_path / "1", tmp_path / "2", ignore=shutil.ignore_patterns("lock"))
    with Broker.open(tmp_path / "2", disk=disk, threaded=False) as broker:
        broker.publish("q", [Message(b"y" * 1_000)] * 10)
        broker.lease("q", 10)
        assert broker.stats("q")["cache"]["hits"] == 10
