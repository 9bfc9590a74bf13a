"""A queue as a stream, asked as Spark asks it: what is leased, found again, acked; when it ends.

No session is needed for that: these are the calls Spark makes, in the order in which it makes them.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from ebbmq import Message, QueueSpec
from ebbmq.testing import ManualClock
from ebbmq_spark.connector import EbbMQ
from ebbmq_spark.connector.lease_stream import LeaseStream
from tests.served import Served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LEASE_MS = 60_000
NOTHING = {"ready": 0, "leased": 0, "scheduled": 0, "replicating": 0, "dying": 0}


class World:
    """A broker whose clock stands still, and streams from it as the runs of a query open them."""

    def __init__(self, server: Served, clock: ManualClock) -> None:
        self.broker, self.clock = server.broker, clock
        self._url = f"http://127.0.0.1:{server.port}"
        self._streams: list[LeaseStream] = []

    def stream(self, **given: str) -> LeaseStream:
        asked = EbbMQ(CaseInsensitiveDict({"url": self._url, "queue": "q", "waitMs": "0", **given}))
        made = asked.streamReader(asked.schema())
        assert isinstance(made, LeaseStream)
        self._streams.append(made)
        return made

    def publish(self, *bodies: str, **fields: Any) -> None:
        self.broker.publish("q", [Message(body.encode(), **fields) for body in bodies])

    def depth(self) -> dict[str, int]:
        found: dict[str, int] = self.broker.stats("q")["depth"]
        return found

    def close(self) -> None:
        for stream in self._streams:
            stream.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with Served(tmp_path / "data", clock=clock) as server:
        world = World(server, clock)
        yield world
        world.close()
    # To read a batch leaves everything that is loaded out of later collections.
    gc.unfreeze()


def following(stream: LeaseStream, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def bodies(stream: LeaseStream, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What the tasks of a batch read."""
    return [
        body.decode()
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for body in batch.column("body").to_pylist()
    ]


def to_end(
    stream: LeaseStream, start: dict[str, Any], between: Callable[[], None] = lambda: None
) -> list[list[str]]:
    """What each batch has, until there is none: as `availableNow` goes on once it has begun."""
    found: list[list[str]] = []
    while (end := following(stream, start)) != start:
        found.append(bodies(stream, start, end))
        assert len(found) < 100, "it does not end"
        between()
        start = end
    return found


def test_what_was_there_is_worked_on_before_it_ends_though_more_important_messages_come(
    world: World,
) -> None:
    world.publish("a", "b", "c", importance=1)
    stream = world.stream(maxMessages="3")
    stream.prepareForTriggerAvailableNow()
    world.publish("x", "y", "z", importance=9)
    assert to_end(stream, stream.initialOffset()) == [["x", "y", "z"], ["a", "b", "c"]]
    assert world.depth() == NOTHING


def test_it_ends_once_what_was_there_is_done_though_messages_never_stop_coming(
    world: World,
) -> None:
    world.broker.declare(QueueSpec("parts", partitions=3))

    def publish(*bodies: str) -> None:
        messages = [Message(body.encode(), key=body) for body in bodies]
        world.broker.publish("parts", messages)

    publish(*"abcdefgh")
    stream = world.stream(queue="parts", maxMessages="3")
    stream.prepareForTriggerAvailableNow()
    found = to_end(stream, stream.initialOffset(), lambda: publish(*"uvwxyz"))
    assert set("abcdefgh") <= {body for batch in found for body in batch}
    depth = world.broker.stats("parts")["depth"]
    assert depth["leased"] == 0
    assert depth["ready"] > 0


def test_it_does_not_wait_for_what_others_lease_or_what_is_not_due(world: World) -> None:
    world.publish("theirs", "mine")
    world.publish("later", delay_ms=LEASE_MS)
    (theirs,) = world.broker.lease("q", 1)
    stream = world.stream()
    stream.prepareForTriggerAvailableNow()
    assert to_end(stream, stream.initialOffset()) == [["mine"]]
    assert world.depth() == {**NOTHING, "leased": 1, "scheduled": 1}
    assert theirs.body == b"theirs"


def test_what_was_not_due_is_worked_on_if_it_is_due_before_the_end(world: World) -> None:
    world.publish("now", importance=9)
    world.publish("later", delay_ms=10)
    stream = world.stream(maxMessages="1")
    stream.prepareForTriggerAvailableNow()
    found = to_end(stream, stream.initialOffset(), lambda: world.clock.advance(20))
    assert found == [["now"], ["later"]]
    assert world.depth() == NOTHING


def test_a_paused_queue_ends_it(world: World) -> None:
    world.publish("a")
    world.broker.pause("q")
    stream = world.stream()
    stream.prepareForTriggerAvailableNow()
    assert to_end(stream, stream.initialOffset()) == []
    assert world.depth()["ready"] == 1


@pytest.mark.parametrize("available_now", [False, True])
def test_leases_of_a_driver_that_died_before_spark_had_their_offset_are_found_again(
    world: World, available_now: bool
) -> None:
    world.publish("a", "b")
    died = world.stream()
    first = following(died, died.initialOffset())
    world.publish("c", "d")
    lost = following(died, first)
    assert bodies(died, first, lost) == ["c", "d"]
    died.stop()
    assert world.depth() == {**NOTHING, "leased": 2}
    # Spark knows of the first batch alone.
    stream = world.stream()
    if available_now:
        stream.prepareForTriggerAvailableNow()
    again = following(stream, first)
    assert again == lost
    assert bodies(stream, first, again) == ["c", "d"]
    assert following(stream, again) == again
    assert world.depth() == NOTHING
    assert world.broker.stats("q")["totals"]["leased"] == 4


@pytest.mark.parametrize("is_known", [False, True])
def test_messages_whose_leases_ended_before_the_restart_come_again(
    world: World, is_known: bool
) -> None:
    world.broker.declare(QueueSpec("q", retry_delay_ms=0), change=True)
    world.publish("a", "b")
    died = world.stream(leaseTimeoutMs=str(LEASE_MS))
    start = died.initialOffset()
    end = following(died, start)
    died.stop()
    world.clock.advance(2 * LEASE_MS)
    assert world.depth() == {**NOTHING, "ready": 2}
    stream = world.stream(leaseTimeoutMs=str(LEASE_MS))
    stream.prepareForTriggerAvailableNow()
    if is_known:
        # Spark has the offset, and plays the batch: nothing of it is held.
        assert bodies(stream, start, end) == []
        start = end
    assert to_end(stream, start) == [["a", "b"]]
    assert world.depth() == NOTHING
    totals = world.broker.stats("q")["totals"]
    assert (totals["lease_expired"], totals["acked"]) == (2, 2)


def test_a_lease_that_ends_after_it_was_read_is_not_acked_under_the_next_one(world: World) -> None:
    world.broker.declare(QueueSpec("q", retry_delay_ms=0), change=True)
    world.publish("a")
    stream = world.stream(leaseTimeoutMs=str(LEASE_MS))
    start = stream.initialOffset()
    end = following(stream, start)
    assert bodies(stream, start, end) == ["a"]
    world.clock.advance(2 * LEASE_MS)
    (other,) = world.broker.lease("q", 1)
    stream.commit(end)
    assert world.depth() == {**NOTHING, "leased": 1}
    world.broker.ack("q", [other.token])


def test_a_batch_is_acked_when_spark_says_that_it_is_committed(world: World) -> None:
    world.publish("a", "b")
    stream = world.stream()
    start = stream.initialOffset()
    end = following(stream, start)
    assert bodies(stream, start, end) == ["a", "b"]
    assert world.depth() == {**NOTHING, "leased": 2}
    stream.commit(end)
    assert world.depth() == NOTHING


@pytest.mark.parametrize("available_now", [False, True])
def test_a_batch_is_acked_when_the_next_one_is_asked_for(world: World, available_now: bool) -> None:
    world.publish("a", "b")
    died = world.stream()
    end = following(died, died.initialOffset())
    died.stop()
    # Also by a run that has not read it: of a query that starts again Spark says it no more.
    stream = world.stream()
    if available_now:
        stream.prepareForTriggerAvailableNow()
    assert world.depth() == {**NOTHING, "leased": 2}
    assert following(stream, end) == end
    assert world.depth() == NOTHING
