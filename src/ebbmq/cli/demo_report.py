"""The demo's numbers: what was on time, what was let go, and that nothing confirmed is missing."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ebbmq.cli.demo_story import IMPORTANT, QUEUES, Ledger, Plan
from ebbmq.cli.peek import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.node.broker import Broker


@dataclass(frozen=True)
class Fate:
    """What became of one message; times in seconds of the story."""

    importance: int
    published_s: float
    left_s: float | None
    outcome: str
    on_time: bool


@dataclass(frozen=True)
class Account:
    """Every confirmed message of a queue held against where the broker says it is."""

    confirmed: int
    acked: int
    removed: dict[str, int]
    still_there: int
    missing: list[str]
    contradictory: list[str]

    @property
    def holds(self) -> bool:
        """Each confirmed message is accounted for exactly once, and nothing was invented."""
        return not self.missing and not self.contradictory


@dataclass(frozen=True)
class QueueReport:
    """How one queue fared."""

    queue: str
    account: Account
    fates: list[Fate] = field(repr=False)

    def on_time(self, importances: Iterable[int]) -> tuple[int, int]:
        """How many messages of these importances were on time, and of how many."""
        wanted = set(importances)
        chosen = [fate.on_time for fate in self.fates if fate.importance in wanted]
        return sum(chosen), len(chosen)

    def important_on_time(self) -> tuple[int, int]:
        """On time and all, of the important messages."""
        return self.on_time(range(IMPORTANT, 11))

    def acked_late(self) -> int:
        """Work that was done although nobody had use for it any more."""
        return sum(fate.outcome == "acked" and not fate.on_time for fate in self.fates)

    def important_age_ms(self) -> float | None:
        """Median age of the important messages when they were acked."""
        ages = [
            fate.left_s - fate.published_s
            for fate in self.fates
            if fate.outcome == "acked" and fate.left_s is not None and fate.importance >= IMPORTANT
        ]
        return statistics.median(ages) * 1_000 if ages else None

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for programs."""
        good, of = self.important_on_time()
        by_importance = {str(i): share(*self.on_time([i])) for i in range(1, 11)}
        return {
            "important": {"on_time": good, "of": of, "share": share(good, of)},
            "on_time_share_by_importance": by_importance,
            "all": dict(zip(("on_time", "of"), self.on_time(range(1, 11)), strict=True)),
            "acked_late": self.acked_late(),
            "important_age_at_ack_ms": self.important_age_ms(),
            "account": {**asdict(self.account), "holds": self.account.holds},
        }


def share(part: int, whole: int) -> float:
    """A part of a whole, 0 of nothing."""
    return part / whole if whole else 0.0


def report_all(broker: Broker, plan: Plan, ledgers: dict[str, Ledger]) -> dict[str, QueueReport]:
    """Hold the ledgers against the broker, message by message."""
    return {queue: _report(broker, plan, queue, ledgers[queue]) for queue in QUEUES}


def _report(broker: Broker, plan: Plan, queue: str, ledger: Ledger) -> QueueReport:
    removals = {removal.id: removal for removal in broker.removals(queue)}
    depth = max(1, sum(broker.stats(queue)["depth"].values()))
    there = {message.id for state in STATES for message in broker.peek(queue, depth, state=state)}
    fates = []
    for id_, (published_s, importance) in ledger.confirmed.items():
        left_s: float | None = None
        outcome = "there"
        if id_ in ledger.acked:
            outcome, left_s = "acked", ledger.acked[id_]
        elif id_ in removals:
            removal = removals[id_]
            outcome = removal.reason
            left_s = published_s + (removal.at_ms - removal.enqueued_at_ms) / 1_000
        on_time = outcome == "acked" and (left_s or 0.0) <= published_s + plan.ttl_ms / 1_000
        fates.append(Fate(importance, published_s, left_s, outcome, on_time))
    removed = dict(Counter(removal.reason for removal in removals.values()))
    return QueueReport(queue, _account(ledger, removals.keys(), there, removed), fates)


def _account(
    ledger: Ledger, removed: Iterable[str], there: set[str], by_reason: dict[str, int]
) -> Account:
    seen = Counter([*ledger.acked, *removed, *there])
    return Account(
        confirmed=len(ledger.confirmed),
        acked=len(ledger.acked),
        removed=by_reason,
        still_there=len(there),
        missing=sorted(ledger.confirmed.keys() - seen.keys()),
        contradictory=sorted(
            id_ for id_, times in seen.items() if times > 1 or id_ not in ledger.confirmed
        ),
    )
