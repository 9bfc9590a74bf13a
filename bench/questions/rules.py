"""What does it cost to choose a device by rules?"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from bench import rule_mix
from bench.row import Row, at_most, stated
from bench.rule_mix import DEVICES
from ebbmq import Message
from ebbmq.policy.rules.choose import Chooser, Strategy
from ebbmq.policy.rules.properties import DeviceState
from ebbmq.policy.rules.rule import RuleSet, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.run import Run
    from ebbmq.policy.rules.alike import Alike
    from ebbmq.policy.rules.choose import View
    from ebbmq.policy.rules.properties import Properties
    from ebbmq.policy.rules.rule import Rule

BARS_US: Final = {8: 10.0, 1_000: 45.0, 10_000: 300.0}
REFRESH_MS: Final = 2.0
SLICE: Final = 100
STRATEGIES: Final = {
    "first_match": Strategy(),
    "aggregate": Strategy(kind="aggregate"),
    "fuzzy": Strategy(kind="fuzzy"),
}


def measure(run: Run) -> list[Row]:
    """Time per choice and per change of status, with 8 to 10,000 rules of a fixed mix."""
    rows: list[Row] = []
    for count, bar_us in BARS_US.items():
        rules = RuleSet.of(_mix(count))
        messages = list(rule_mix.properties(run.scale(2_000, 500), count))
        for name, strategy in STRATEGIES.items():
            rows += _asked(rules, strategy, messages, bar_us)
            run.progress(f"{count:,} rules, {name}", len(rows), 3 * len(BARS_US) * len(STRATEGIES))
    rows += _batches()
    rows.append(stated("read 1,000 rules", _best(lambda: list(_mix(1_000)), 1) * 1e3, "ms"))
    return rows


def _batches() -> list[Row]:
    """What a publish pays for its messages once their kinds are known, in batches of 100."""
    rows: list[Row] = []
    for count in BARS_US:
        alike = Chooser(RuleSet.of(_mix(count))).alike
        different = [_published(each) for each in rule_mix.properties(SLICE, count)]
        for title, batch in (("alike", different[:1] * SLICE), ("different", different)):
            sizes = [len(message.body) for message in batch]
            known = dict.fromkeys(alike.keys(batch, sizes))
            tell_us = _best(partial(_look_up, alike, batch, sizes, known), SLICE) * 1e6
            rows.append(stated(f"find the answer, {count:,} rules, 100 {title}", tell_us, "us"))
    return rows


def _look_up(
    alike: Alike, batch: list[Message], sizes: list[int], known: dict[tuple[object, ...], None]
) -> None:
    for key in alike.keys(batch, sizes):
        known.get(key)


def _published(message: Properties) -> Message:
    return Message(
        b"x" * 1_024,
        headers=dict(message.headers),
        importance=int(message.importance),
        type=message.type,
    )


def _asked(
    rules: RuleSet, strategy: Strategy, messages: list[Properties], bar_us: float
) -> list[Row]:
    count, settings = len(rules.rules), {"devices": len(DEVICES), "messages": len(messages)}
    began = time.perf_counter()
    chooser = Chooser(rules, strategy)
    built_ms = (time.perf_counter() - began) * 1e3
    view = chooser.view(_states(0))
    choose_us = _choose_us(view, messages)
    refresh_ms = _best(lambda: chooser.view(_states(-10)), 1) * 1e3
    title = f"{count:,} rules, {strategy.kind}"
    judged = strategy.kind != "fuzzy"
    return [
        at_most(f"choose, {title}", choose_us, "us", bar_us, **settings)
        if judged
        else stated(f"choose, {title}", choose_us, "us", **settings),
        at_most(f"refresh the status, {title}", refresh_ms, "ms", REFRESH_MS, **settings),
        stated(f"make ready, {title}", built_ms, "ms", **settings),
    ]


def _choose_us(view: View, messages: list[Properties]) -> float:
    """The mean over all messages, of slices so short that other processes can be told apart."""
    slices = [messages[at : at + SLICE] for at in range(0, len(messages), SLICE)]
    means = [_best(partial(_choose_all, view, some), SLICE) for some in slices]
    return sum(means) / len(means) * 1e6


def _choose_all(view: View, messages: list[Properties]) -> None:
    for message in messages:
        view.choose(message, "HDD")


def _best(work: Callable[[], object], count: int, rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) / count)
    return min(times)


def _states(status: float) -> dict[str, DeviceState]:
    return {name: DeviceState(status=status - 5 * i) for i, name in enumerate(DEVICES)}


def _mix(count: int) -> Iterator[Rule]:
    return (make_rule(*each) for each in rule_mix.rules(count))
