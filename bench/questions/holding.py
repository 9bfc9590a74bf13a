"""What do rules and further copies cost a publisher? Batches of 100 x 1 KiB, devices configured.

Each comparison is made in turn, a few batches on either side, so that both see the same machine.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench import rule_mix
from bench.holding import file_device, is_quiet, open_holding
from bench.load import BATCH, KIB, QUEUE, fifo_messages
from bench.row import Row, at_least, stated
from bench.run import wait_until
from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.run import Run
    from ebbmq.model import Level

    Batches = list[list[Message]]

RULES: Final = 1_000
RULES_SHARE: Final = 0.8
TWO_COPIES_SHARE: Final = 0.5
THREADS: Final = 8
#: Of messages, by what rules ask for; a publisher has few.
KINDS: Final = 1_000
SECOND: Final = "second"
_LEVELS: Final[tuple[Level, ...]] = ("written", "synced")


def measure(run: Run) -> list[Row]:
    """Rates with rules against none, and with two confirmed copies against one."""
    return _rules(run) + _two_copies(run)


def _in_turn(
    run: Run, label: str, rounds: int, ways: dict[str, Callable[[], float]]
) -> dict[str, float]:
    """The median rate of each way."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            rates[name].append(way())
        run.progress(label, number + 1, rounds)
    return {name: statistics.median(each) for name, each in rates.items()}


def _rate(broker: Broker, queue: str, batches: Batches, confirm: Level) -> float:
    """Messages a second; what follows a publish is waited for, and not counted."""
    started = time.perf_counter()
    for batch in batches:
        broker.publish(queue, batch, confirm=confirm)
    rate = sum(map(len, batches)) / (time.perf_counter() - started)
    assert wait_until(lambda: is_quiet(broker), 60)
    return rate


# Rules


def _rules(run: Run) -> list[Row]:
    """Rules that choose the log are compared: then choosing is measured, and not copying."""
    ours = _rule_specs(LOG)
    sets = {"none": [], LOG: ours, "different": ours, SECOND: _rule_specs(LOG, SECOND)}
    rows: list[Row] = []
    with ExitStack() as stack:
        brokers = {
            name: stack.enter_context(
                open_holding(run.fresh(name), {"devices": {SECOND: file_device()}, "rules": rules})
            )
            for name, rules in sets.items()
        }
        for broker in brokers.values():
            broker.declare(QueueSpec(QUEUE))
        for level in _LEVELS:
            rows += _with_rules(run, brokers, level)
    return rows


def _with_rules(run: Run, brokers: dict[str, Broker], level: Level) -> list[Row]:
    rounds, at_once = run.scale(30, 6), run.scale(20, 10)
    alike = _mixed_batches(rounds * at_once, KINDS)
    different = _mixed_batches(rounds * at_once, rounds * at_once * BATCH)
    ways: dict[str, Callable[[], float]] = {
        name: _Publisher(each, different if name == "different" else alike, at_once, level)
        for name, each in brokers.items()
    }
    found = _in_turn(run, f"{RULES:,} rules, {level}", rounds, ways)
    settings = {"confirm": level, "batch": BATCH, "body": KIB, "rules": RULES, "kinds": KINDS}
    none, title = found["none"], f"publish {level}, {RULES:,} rules against none"
    return [
        stated(f"publish {level}, no rules", none, "msg/s", **settings),
        at_least(title, found[LOG] / none, "x", RULES_SHARE, **settings),
        stated(
            f"{title}, no two messages alike",
            found["different"] / none,
            "x",
            **{**settings, "kinds": "all"},
        ),
        stated(f"{title}, half copied to a file device", found[SECOND] / none, "x", **settings),
    ]


class _Publisher:
    """Publishes some batches at each call."""

    def __init__(self, broker: Broker, batches: Batches, at_once: int, level: Level) -> None:
        self._broker, self._at_once, self._level = broker, at_once, level
        self._batches = iter(batches)

    def __call__(self) -> float:
        some = [next(self._batches) for _ in range(self._at_once)]
        return _rate(self._broker, QUEUE, some, self._level)


def _rule_specs(*devices: str) -> list[dict[str, Any]]:
    return [each._asdict() for each in rule_mix.rules(RULES, devices)]


def _mixed_batches(count: int, kinds: int) -> Batches:
    """Batches of messages of so many kinds, each with headers the rules ask for."""
    dice = random.Random(kinds)  # noqa: S311  the same messages in every run
    body = b"." * KIB
    made = [
        Message(
            body,
            headers=rule_mix.headers(dice, RULES),
            type=dice.choice(("TEXT", "BYTE")),
            importance=dice.randrange(1, 11),
        )
        for _ in range(kinds)
    ]
    dice.shuffle(made)
    return [
        [made[number % kinds] for number in range(at, at + BATCH)]
        for at in range(0, count * BATCH, BATCH)
    ]


# Copies


def _two_copies(run: Run) -> list[Row]:
    """Two queues of one broker in turn: one copy in the log, and two, both confirmed."""
    rounds, at_once = run.scale(20, 4), run.scale(80, 32)
    messages = fifo_messages(BATCH * at_once, KIB)
    batches = [messages[at : at + BATCH] for at in range(0, len(messages), BATCH)]
    rows: list[Row] = []
    with open_holding(run.fresh("copies"), {"devices": {SECOND: file_device()}}) as broker:
        for name, count in (("one", 1), ("two", 2)):
            broker.declare(QueueSpec(name, min_copies=count))
        for threads in (1, THREADS):
            ways: dict[str, Callable[[], float]] = {
                name: partial(_by_threads, broker, name, batches, threads)
                for name in ("one", "two")
            }
            found = _in_turn(run, f"two copies, {threads} publishers", rounds, ways)
            rows += _of_copies(found, threads)
    return rows


def _by_threads(broker: Broker, queue: str, batches: Batches, count: int) -> float:
    """Messages a second of so many publishers, who share the batches."""
    publishers = [
        threading.Thread(target=_publish_all, args=(broker, queue, batches[number::count]))
        for number in range(count)
    ]
    started = time.perf_counter()
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join()
    rate = sum(map(len, batches)) / (time.perf_counter() - started)
    assert wait_until(lambda: is_quiet(broker), 60)
    return rate


def _publish_all(broker: Broker, queue: str, batches: Batches) -> None:
    for batch in batches:
        broker.publish(queue, batch, confirm="synced")


def _of_copies(found: dict[str, float], threads: int) -> list[Row]:
    who = "1 publisher" if threads == 1 else f"{threads} threads"
    settings = {"confirm": "synced", "batch": BATCH, "body": KIB, "devices": "log, file"}
    return [
        stated(f"one copy confirmed, {who}", found["one"], "msg/s", **settings),
        stated(f"two copies confirmed, {who}", found["two"], "msg/s", **settings),
        at_least(
            f"two copies against one, {who}",
            found["two"] / found["one"],
            "x",
            TWO_COPIES_SHARE,
            **settings,
        ),
    ]
