"""What a start does with what the last run left behind."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import force_setattr
from typing_extensions import override

from ebbmq import Broker, Message, QueueSpec
from ebbmq.model import BAND_WIDTH_MIN
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = {"checkpoint_every_facts": 1_000}


def test_facts_that_were_read_again_count_towards_the_next_checkpoint(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    clock = ManualClock()
    with Broker.open(directory, CONFIG, clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"x")] * 1_500)
        # Files copied while nothing happens are what a kill -9 at this moment leaves.
        shutil.copytree(directory, copy)
    with Broker.open(copy, CONFIG, clock) as broker:
        before = broker.engine.checkpoint_position
        broker.engine.upkeep()
        assert broker.engine.checkpoint_position > before
        assert len(broker.lease("q", count=2_000)) == 1_500


@pytest.mark.parametrize("field", ["band_width", "max_messages", "score_high"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_store_opens_though_a_value_of_a_queue_is_not_taken_any_more(
    tmp_path: Path, field: str, is_closed: bool
) -> None:
    was, nearest = {
        "band_width": (0.004, BAND_WIDTH_MIN),
        "max_messages": (1 << 50, 1 << 48),
        "score_high": (1e12, 1e9),
    }[field]
    directory, copy = tmp_path / "data", tmp_path / "copy"
    spec = QueueSpec("q", decay_rate=0.5)
    force_setattr(spec, field, was)
    with Broker.open(directory) as broker:
        broker.declare(spec)
        broker.publish("q", [Message(b"%d" % n, importance=1 + n % 10) for n in range(20)])
        before = [seen.id for seen in broker.peek("q", 20)]
        shutil.copytree(directory, copy)
    for _ in range(2):
        with Broker.open(directory if is_closed else copy) as broker:
            (declared,) = broker.queues()
            assert getattr(declared, field) == nearest
            assert [seen.id for seen in broker.peek("q", 20)] == before


def test_rows_of_every_kind_are_back_as_they_were(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    clock = ManualClock()
    messages = [
        Message(
            b"%d" % number,
            importance=1 + number % 10,
            ttl_ms=1_000_000 + 7_000 * (number % 5) if number % 3 else None,
            decay_rate=number % 4 / 4,
            delay_ms=60_000 * (number % 11 == 0),
        )
        for number in range(6_000)
    ]
    with Broker.open(directory, CONFIG, clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=500_000, retry_delay_ms=30_000))
        broker.publish("q", messages)
        leases = broker.lease("q", count=900)
        broker.ack("q", [lease.token for lease in leases[:300]])
        broker.retry("q", [lease.token for lease in leases[300:600]])
        broker.retry("q", [lease.token for lease in leases[600:700]], delay_ms=0)
        before = _told(broker)
        shutil.copytree(directory, copy)
    with Broker.open(copy, CONFIG, clock) as broker:
        assert _told(broker) == before
        assert len(broker.lease("q", count=10_000)) == before["depth"]["ready"]


def _told(broker: Broker) -> dict[str, object]:
    stats = broker.stats("q")
    told = {name: stats[name] for name in ("depth", "by_importance", "bytes")}
    return {**told, "next": [message.id for message in broker.peek("q", 3_000)]}


def test_a_named_lease_is_found_under_its_name_after_a_checkpoint_and_a_restart(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path, clock=clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=500_000))
        broker.publish("q", [Message(b"%d" % number) for number in range(30)])
        early = broker.lease("q", count=10, name="early")
        broker.ack("q", [lease.token for lease in broker.lease("q", count=10, name="over")])
        broker.engine.checkpoint()
        late = broker.lease("q", count=10, name="late")
        broker.ack("q", [early[3].token])
    with Broker.open(tmp_path, clock=clock) as broker:
        held = early[:3] + early[4:]
        assert [lease.token for lease in broker.lease("q", name="early")] == [
            lease.token for lease in held
        ]
        assert broker.lease("q", count=10, name="late") == late
        assert broker.lease("q", count=10, name="over") == []


def test_a_name_given_after_a_checkpoint_is_whole_after_a_crash(
    tmp_path: Path,
) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    clock = ManualClock()
    with Broker.open(directory, clock=clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=500_000))
        broker.publish("q", [Message(b"x")] * 9_000)
        broker.lease("q", count=4_000)
        before = broker.engine.checkpoint_position
        broker.engine.checkpoint()
        assert broker.engine.checkpoint_position > before
        named = broker.lease("q", count=3_000, name="across two pages")
        shutil.copytree(directory, copy)
    with Broker.open(copy, clock=clock) as broker:
        assert broker.lease("q", count=3_000, name="across two pages") == named


class StickyClock(ManualClock):
    """A clock that does not let go."""

    @override
    def detach(self, listener: Callable[[], None]) -> None:
        super().detach(listener)
        raise RuntimeError("the clock does not let go")


def test_a_broker_of_which_a_part_cannot_be_ended_is_closed_all_the_same(tmp_path: Path) -> None:
    threads = threading.active_count()
    config = {
        "feed": {"lake": "lake"},
        "devices": {"hdd": {"kind": "file", "capacity_bytes": 64 << 20}},
    }
    broker = Broker.open(tmp_path / "data", config, StickyClock())
    broker.declare(QueueSpec("q"))
    broker.publish("q", Message(b"kept"))
    with pytest.raises(RuntimeError, match="does not let go"):
        broker.close()
    assert threading.active_count() == threads
    broker.close()
    with Broker.open(tmp_path / "data", config, ManualClock()) as broker:
        assert [lease.body for lease in broker.lease("q")] == [b"kept"]
