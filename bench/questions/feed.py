"""What does a feed cost who publishes? All events on, a snapshot running."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.load import (
    BATCH,
    FILL_BATCH,
    KIB,
    QUEUE,
    drain,
    fifo_messages,
    fifo_spec,
    publish_us,
    summary,
)
from bench.row import Row, at_most, stated
from ebbmq import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.run import Run
    from ebbmq.model import Message

_EVERY_MS: Final = 500
#: How often the same messages are published in a turn.
_TIMES: Final = 4


class _Round(NamedTuple):
    """A turn without a feed and one with it, right after each other: us a message."""

    off: list[float]
    on: list[float]

    @property
    def median(self) -> float:
        """With a feed over without, by the median of batches."""
        return summary(self.on).median / summary(self.off).median

    @property
    def mean(self) -> float:
        """The same by the mean, waits for the interpreter included."""
        return statistics.fmean(self.on) / statistics.fmean(self.off)


def measure(run: Run) -> list[Row]:
    """Per message at `written`, with and without a feed, in turns, on several pairs of brokers.

    Two brokers without a feed differ by a few percent for as long as they live, by where their
    memory is, and a machine that others share by ten from second to second: so there are many
    pairs, each turn is compared with the one next to it, and the median of all such rounds counts.
    A turn lasts about half a second, so that what happens in it is written during it or with the
    next, and a snapshot runs all the while. The first round of a pair is not counted: memory and
    disk are new to it.
    """
    backlog, count = run.scale(200_000, 2_000), run.scale(80_000, 2_000)
    pairs, rounds = run.scale(9, 1), run.scale(6, 2)
    messages = fifo_messages(count, KIB) * _TIMES
    found: list[_Round] = []
    told = []
    for number in range(pairs):
        feed = {"lake": str(run.fresh("lake")), "every_ms": _EVERY_MS, "snapshot_every_ms": 0}
        with (
            Broker.open(run.fresh("off")) as off,
            Broker.open(run.fresh("on"), {"feed": feed}) as on,
        ):
            _prepare(run, [off, on], messages[:FILL_BATCH], backlog)
            found += list(_rounds(run, off, on, messages, 1 + rounds))[1:]
            told.append(on.feed() or {})
        run.progress("pairs", number + 1, pairs)
    settings = {"confirm": "written", "body": KIB, "backlog": backlog, "every_ms": _EVERY_MS}
    events = sum(each["events"] for each in told)
    return [
        at_most(
            "publish with a feed over publish without, batches of 100",
            statistics.median(each.median for each in found),
            "ratio",
            1.05,
            without_us=round(statistics.median(summary(each.off).median for each in found), 2),
            with_us=round(statistics.median(summary(each.on).median for each in found), 2),
            pairs=pairs,
            rounds=[round(each.median, 3) for each in found],
            **settings,
        ),
        at_most(
            "the same by the mean of each turn, waits for the interpreter included",
            statistics.median(each.mean for each in found),
            "ratio",
            1.05,
            rounds=[round(each.mean, 3) for each in found],
            snapshots=sum(each["snapshots"] for each in told),
        ),
        at_most(
            "events left out", sum(each["events_missed"] for each in told), "events", 0,
            events=events,
        ),
        stated(
            "an event in the lake", sum(each["lake_bytes"] for each in told) / events, "bytes"
        ),
    ]  # fmt: skip


def _rounds(
    run: Run, off: Broker, on: Broker, messages: list[Message], rounds: int
) -> Iterator[_Round]:
    """Publish to both in turns; a snapshot begins with each turn of the one with a feed."""
    batches = [messages[at : at + BATCH] for at in range(0, len(messages), BATCH)]
    for number in range(rounds):
        taken = {}
        turns = [("off", off), ("on", on)]
        for name, broker in turns if number % 2 else reversed(turns):
            if broker is on:
                _ask_snapshot(on)
            taken[name] = publish_us(broker, batches, "written")
            _wait_for_feed(on, snapshots=number + (broker is on))
        yield _Round(**taken)
        for broker in (off, on):
            drain(run, broker, len(messages))
        _wait_for_feed(on, snapshots=number + 1)


def _prepare(run: Run, brokers: list[Broker], messages: list[Message], backlog: int) -> None:
    for broker in brokers:
        broker.declare(fifo_spec())
        for size in run.steps(f"filling {backlog:,}", backlog, len(messages)):
            broker.publish(QUEUE, messages[:size], confirm="memory")


def _ask_snapshot(broker: Broker) -> None:
    assert broker.engine.feed is not None
    broker.engine.feed.ask_snapshot()


def _wait_for_feed(broker: Broker, snapshots: int) -> None:
    """Let the feed end with what it has, so that it does not slow down who has none."""
    figures = broker.feed()
    assert figures is not None
    while figures["pending_bytes"] or figures["snapshots"] < snapshots:
        assert figures["ok"], broker.health()["feed"]
        time.sleep(0.01)
        figures = broker.feed() or figures
