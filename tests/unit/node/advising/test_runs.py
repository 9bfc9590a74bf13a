"""The record of runs: bounded, and given back by its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.feed.advice import REFUSALS, Applied
from ebbmq.node.advising.runs import Runs, fact_of

if TYPE_CHECKING:
    from ebbmq.core.facts import Fact


def told(run: str, **fields: object) -> Applied:
    return Applied(run=run, **fields)  # type: ignore[arg-type]  # as the test says


def note(runs: Runs, applied: Applied) -> Fact:
    runs.put(applied)
    return fact_of([applied])


def test_what_was_noted_comes_back_from_the_journal_or_a_checkpoint() -> None:
    runs = Runs()
    facts = [note(runs, told(f"r{number % 3}", rows=number)) for number in range(7)]
    for payloads in ([b"".join(each.parts) for each in facts], [runs.whole()]):
        again = Runs()
        for payload in payloads * 2:
            again.restore(payload)
        assert {each.run: each for each in again} == {each.run: each for each in runs}
    assert Runs().whole() == b""


def test_the_oldest_are_forgotten() -> None:
    runs = Runs()
    for number in range(limits.RUNS_KEPT_MAX + 2):
        note(runs, told(f"r{number}"))
    assert len(runs) == limits.RUNS_KEPT_MAX
    assert runs.get("plans", "r1") is None
    assert runs.get("plans", "r2") is not None


def test_every_reason_of_refusal_has_a_meaning() -> None:
    assert all(REFUSALS.values())
