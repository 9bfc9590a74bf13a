"""Files of policies, and which of them are worth a look."""

from __future__ import annotations

import msgspec
import pytest

from ebbmq.errors import InvalidSpec
from ebbmq_spark.simulation.fleet import QueueTraffic, trials_of
from ebbmq_spark.simulation.front import choose, front_of
from ebbmq_spark.simulation.outcome import Outcome
from ebbmq_spark.simulation.sweep import Goal, Policy, Sweep, read_sweep

FILE = b"""
[traffic]
consumers = 4
useful_ms = 30000
ignore = ["ttl_ms"]

[goal]
maximise = "on_time_share"
minimise = "cost"

[base]
max_attempts = 3

[queues.orders]
default_importance = 7

[sweep]
decay_rate = [0.0, 0.5]
band_width = [0.0, 1.0, 2.0]

[policies.today]
default_ttl_ms = 60000
"""


def told(policy: str, good: float, bad: float, **fields: object) -> Outcome:
    base = {
        "queue": "q", "policy": policy, "messages": 100, "done": 100, "on_time": 0, "worth": 1_000,
        "worth_done_on_time": round(good * 1_000), "published_by_importance": [10] * 10,
        "on_time_by_importance": [0] * 10, "left": {"stale": 0}, "wait_p50_ms": 0.0,
        "wait_p99_ms": 0.0, "peak_messages": 0, "byte_days": bad, "byte_days_by_tier": {},
        "cost": None, "resolution_ms": 1,
    }  # fmt: skip
    return msgspec.convert({**base, **fields}, Outcome)


def test_a_file_says_what_to_try() -> None:
    sweep = read_sweep(FILE, "sweep.toml")
    policies = sweep.candidates(1_000)
    assert [policy.name for policy in policies[:4]] == [
        "today", "fifo", "importance", "decay_rate=0.0 band_width=0.0",
    ]  # fmt: skip
    assert len(policies) == 2 + 1 + 6
    spec = sweep.spec("orders", policies[-1])
    assert (spec.name, spec.decay_rate, spec.band_width) == ("orders", 0.5, 2.0)
    assert (spec.default_importance, spec.max_attempts) == (7, 3)
    assert sweep.spec("other", policies[0]).default_ttl_ms == 60_000


def test_without_a_file_what_usually_matters_is_tried() -> None:
    policies = Sweep().candidates(60_000)
    assert len(policies) > 20
    assert {policy.changes.get("decay_unit_ms") for policy in policies} >= {30_000, 240_000}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"[sweep", "sweep.toml"),
        (b"[sweeep]", "unknown field `sweeep`"),
        (b"[sweep]\ndecay_rat = [1]", "unknown field `decay_rat`"),
        (b"[sweep]\ndecay_rate = []", "length >= 1"),
        (b"[sweep]\ndecay_rate = 0.5", "Expected `array`"),
        (b"[goal]\nmaximise = 'fame'", "fame"),
        (b"[goal]\nminimize = 'cost'", "unknown field `minimize` - at `$.goal`"),
        (b"[traffic]\nconsumers = 0", "`int` >= 1 - at `$.traffic.consumers`"),
        (b"[traffic]\nusefull_ms = 5", "unknown field `usefull_ms` - at `$.traffic`"),
        (b"[queues.q]\ncolour = 'red'", "unknown field `colour`"),
        (b"[policies.red]\ncolour = 'red'", "policy 'red': Object contains unknown field `colour`"),
        (b"\xff", "sweep.toml"),
    ],
)
def test_a_slip_in_a_file_is_named(text: bytes, what: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_sweep(text, "sweep.toml")
    assert what in str(refused.value)


def test_a_value_that_a_field_does_not_take_names_the_policy() -> None:
    with pytest.raises(InvalidSpec, match=r"band_width|policy 'wide'"):
        Sweep().spec("q", Policy("wide", {"band_width": 99.0}))
    with pytest.raises(InvalidSpec, match="policy 'wide'"):
        Sweep().spec("q", Policy("wide", {"band_width": "much"}))


def test_a_goal_about_costs_needs_a_policy_that_has_one() -> None:
    queues = [QueueTraffic("q", 1, 1_000)]
    goal, prices = Goal(minimise="cost"), {"ssd": 0.1}
    for fields in ({}, {"tiers": ["ssd", "s3"]}):
        with pytest.raises(InvalidSpec, match="no policy of queue 'q' has one") as refused:
            trials_of(Sweep(goal=goal, policies={"some": fields}), queues, prices)
        assert "--price" in refused.value.action
    one = Sweep(goal=goal, policies={"tiered": {"tiers": ["ssd"]}})
    assert len(trials_of(one, queues, prices)) == 3


def test_a_policy_whose_cost_nobody_can_tell_does_not_win() -> None:
    outcomes = [
        told("untold", 0.9, 1),
        told("dear", 0.9, 1, cost=5.0),
        told("cheap", 0.8, 1, cost=2.0),
    ]
    choice = choose(outcomes, Goal(minimise="cost"))
    assert [each.policy for each in choice.front] == ["cheap", "dear"]
    assert choice.best.policy == "dear"


def test_too_many_policies_are_refused() -> None:
    sweep = Sweep(sweep={"decay_rate": [n / 100 for n in range(100)], "fair_share": [*range(30)]})
    with pytest.raises(InvalidSpec, match="3,002 policies"):
        sweep.candidates(1)


def test_policies_of_values_that_are_next_to_each_other_have_names_of_their_own() -> None:
    values = [0.5, 0.12345671, 0.12345679, 1e-7, 0.1 + 0.2]
    tried = Sweep(sweep={"decay_rate": values}).candidates(1_000)
    found = {policy.name: policy.changes for policy in tried}
    assert found["decay_rate=0.5"] == {"decay_rate": 0.5}
    assert [
        each["decay_rate"] for name, each in found.items() if name.startswith("decay_rate")
    ] == values
    assert len(tried) == len(found) == 2 + len(values)


def test_a_value_that_is_there_twice_is_one_policy() -> None:
    policies = Sweep(sweep={"decay_rate": [1.0, 0.5, 1.0]}).candidates(1_000)
    assert [each.name for each in policies[2:]] == ["decay_rate=1.0", "decay_rate=0.5"]


def test_the_front_is_what_nobody_beats() -> None:
    outcomes = [told("a", 0.9, 9), told("b", 0.8, 3), told("c", 0.8, 4), told("d", 0.5, 1),
                told("e", 0.4, 2), told("f", 0.9, 9)]  # fmt: skip
    assert [each.policy for each in front_of(outcomes, Goal())] == ["d", "b", "a"]


def test_the_best_does_not_pay_for_next_to_nothing() -> None:
    outcomes = [told("poor", 0.5, 1), told("sound", 0.9, 3), told("dear", 0.905, 9)]
    assert choose(outcomes, Goal()).best.policy == "sound"


def test_where_no_policy_makes_a_difference_the_first_is_the_best_and_that_is_said() -> None:
    same = [told("today", 0.9, 3.01), told("fifo", 0.9, 3), told("a", 0.895, 3)]
    choice = choose(same, Goal())
    assert (choice.best.policy, choice.differ) == ("today", False)
    other = [*same, told("dear", 0.9, 4)]
    assert (choose(other, Goal()).best.policy, choose(other, Goal()).differ) == ("fifo", True)


def test_of_those_that_come_to_the_same_the_first_is_on_the_front() -> None:
    outcomes = [told("today", 0.9, 3), told("another", 0.9, 3), told("poor", 0.2, 1)]
    assert [each.policy for each in front_of(outcomes, Goal())] == ["poor", "today"]
