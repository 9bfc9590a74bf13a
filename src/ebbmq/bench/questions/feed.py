"""What does a feed cost who publishes? All events on, a snapshot running."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from ebbmq import Broker
from ebbmq.bench.load import (
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
from ebbmq.bench.row import Row, at_most, stated

if TYPE_CHECKING:
    from ebbmq.bench.run import Run
    from ebbmq.model import Message

_EVERY_MS: Final = 500


def measure(run: Run) -> list[Row]:
    """Median per message at `written`, with and without a feed, in turns."""
    backlog, count = run.scale(200_000, 2_000), run.scale(80_000, 2_000)
    rounds = run.scale(24, 2)
    messages = fifo_messages(count, KIB)
    batches = [messages[at : at + BATCH] for at in range(0, count, BATCH)]
    lake = run.fresh("lake")
    feed = {"lake": str(lake), "every_ms": _EVERY_MS, "snapshot_every_ms": 0}
    times: dict[str, list[float]] = {"off": [], "on": []}
    means: dict[str, list[float]] = {"off": [], "on": []}
    with (
        Broker.open(run.fresh("off")) as off,
        Broker.open(run.fresh("on"), {"feed": feed}) as on,
    ):
        _prepare(run, [off, on], messages[:FILL_BATCH], backlog)
        for number in range(rounds):
            turns = [("off", off), ("on", on)]
            for name, broker in turns if number % 2 else reversed(turns):
                if broker is on:
                    _ask_snapshot(on)
                taken = publish_us(broker, batches, "written")
                times[name] += taken
                means[name].append(statistics.fmean(taken))
                _wait_for_feed(on, snapshots=number + (broker is on))
            for broker in (off, on):
                drain(run, broker, count)
            _wait_for_feed(on, snapshots=number + 1)
            run.progress("turns", number + 1, rounds)
        told = on.feed() or {}
    median = {name: summary(taken).median for name, taken in times.items()}
    mean = {name: statistics.median(taken) for name, taken in means.items()}
    settings = {"confirm": "written", "body": KIB, "backlog": backlog, "every_ms": _EVERY_MS}
    return [
        at_most(
            "publish with a feed over publish without, batches of 100",
            median["on"] / median["off"],
            "ratio",
            1.05,
            without_us=round(median["off"], 2),
            with_us=round(median["on"], 2),
            **settings,
        ),
        at_most(
            "the same by the mean of each turn, waits for the interpreter included",
            mean["on"] / mean["off"],
            "ratio",
            1.05,
            turns=rounds,
            snapshots=told["snapshots"],
        ),
        at_most("events left out", told["events_missed"], "events", 0, events=told["events"]),
        stated("an event in the lake", told["lake_bytes"] / told["events"], "bytes"),
    ]


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
