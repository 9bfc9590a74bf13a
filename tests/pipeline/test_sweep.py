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
at_most = { let_go_share = 0.2 }

[prices]
ssd = 0.1

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
        "today", "fifo", "importance", "decay_rate=0 band_width=0",
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
        (b"[sweeep]", "sweeep"),
        (b"[sweep]\ndecay_rat = [1]", "'decay_rate'"),
        (b"[sweep]\nlease_timeout_ms = [1]", "changes nothing"),
        (b"[sweep]\ndecay_rate = []", "empty"),
        (b"[sweep]\ndecay_rate = 0.5", "Expected `array`"),
        (b"[goal]\nmaximise = 'fame'", "fame"),
        (b"[traffic]\nconsumers = 0", "consumers is 0"),
        (b"[queues.q]\ncolour = 'red'", "colour"),
        (b"\xff", "sweep.toml"),
        (b"[goal]\nminimise = 'cost'", "there are no prices"),
        (b"[goal]\nat_most = {cost = 5.0}", "there are no prices"),
        (
            b"[goal]\nminimise = 'cost'\n[devices.a]\ncost_per_gib_month = 1.0\n[devices.b]",
            "device 'b' has no cost_per_gib_month",
        ),
        (b"[prices]\nssd = 0.1\n[devices.b]\ntier = 'hdd'", "tier 'hdd' of device 'b'"),
    ],
)
def test_a_slip_in_a_file_is_named(text: bytes, what: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_sweep(text, "sweep.toml")
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("text", "what", "action"),
    [
        (b"[swep]\ndecay_rate = [1.0]", "there is no table or field 'swep'", "'sweep'"),
        (b"[traffic]\nusefull_ms = 5", r"in \[traffic\] there is no field 'usefull_ms'",
         "'useful_ms'"),
        (b"[goal]\nminimize = 'cost'", r"in \[goal\] there is no field 'minimize'", "'minimise'"),
        (b"[devices.a]\nteir = 'ssd'", r"in \[devices.a\] there is no field 'teir'", "'tier'"),
        (b"[goal]\nxyz = 1", "there is no field 'xyz'", "it takes maximise, minimise"),
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_one_is_told_with_that_one(
    text: bytes, what: str, action: str
) -> None:
    with pytest.raises(InvalidSpec, match=what) as refused:
        read_sweep(text, "sweep.toml")
    assert "sweep.toml" in refused.value.detail
    assert action in refused.value.action


def test_a_value_that_a_field_does_not_take_names_the_policy() -> None:
    with pytest.raises(InvalidSpec, match=r"band_width|policy 'wide'"):
        Sweep().spec("q", Policy("wide", {"band_width": 99.0}))
    with pytest.raises(InvalidSpec, match="policy 'wide'"):
        Sweep().spec("q", Policy("wide", {"band_width": "much"}))


def test_a_tier_without_a_price_is_named() -> None:
    sweep = Sweep(prices={"ssd": 0.1, "hdd": 0.0})
    assert sweep.spec("q", Policy("cheap", {"tiers": ["ssd", "hdd"]})).tiers == ("ssd", "hdd")
    with pytest.raises(InvalidSpec, match="policy 'dear': tier 's3' has no price") as refused:
        sweep.spec("q", Policy("dear", {"tiers": ["ssd", "s3"]}))
    assert "[prices]" in refused.value.action


def test_a_goal_about_costs_needs_a_policy_that_has_one() -> None:
    goal = Goal(minimise="cost")
    queues = [QueueTraffic("q", 1, 1, 1_000)]
    with pytest.raises(InvalidSpec, match="no policy of queue 'q' has tiers") as refused:
        trials_of(Sweep(goal=goal, prices={"ssd": 0.1}, policies={"plain": {}}), queues)
    assert "[base]" in refused.value.action
    one = Sweep(goal=goal, prices={"ssd": 0.1}, policies={"tiered": {"tiers": ["ssd"]}})
    assert len(trials_of(one, queues)) == 3


def test_a_policy_whose_cost_nobody_can_tell_does_not_win() -> None:
    outcomes = [
        told("untold", 0.9, 1),
        told("dear", 0.9, 1, cost=5.0),
        told("cheap", 0.8, 1, cost=2.0),
    ]
    choice = choose(outcomes, Goal(minimise="cost"))
    assert [each.policy for each in choice.front] == ["cheap", "dear"]
    assert choice.best.policy == "dear"
    bounded = choose(outcomes, Goal(at_most={"cost": 3.0}))
    assert (bounded.best.policy, bounded.within) == ("cheap", True)
    nearest = choose(outcomes, Goal(at_most={"cost": 1.0}))
    assert (nearest.best.policy, nearest.within) == ("cheap", False)


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
    policies = Sweep(sweep={"decay_rate": [1, 1.0, 0.5, 1.0]}).candidates(1_000)
    assert [each.name for each in policies[2:]] == ["decay_rate=1", "decay_rate=0.5"]


@pytest.mark.parametrize(
    "sweep",
    [
        Sweep(sweep={"decay_rate": [1.0]}, policies={"decay_rate=1": {"band_width": 2.0}}),
        Sweep(sweep={"dead_queue": ["None", None]}),
    ],
)
def test_two_policies_of_one_name_are_refused(sweep: Sweep) -> None:
    with pytest.raises(InvalidSpec, match=r"two policies are called '(decay_rate|dead_queue)="):
        sweep.candidates(1_000)


def test_the_front_is_what_nobody_beats() -> None:
    outcomes = [told("a", 0.9, 9), told("b", 0.8, 3), told("c", 0.8, 4), told("d", 0.5, 1),
                told("e", 0.4, 2), told("f", 0.9, 9)]  # fmt: skip
    assert [each.policy for each in front_of(outcomes, Goal())] == ["d", "b", "a"]


def test_the_best_does_not_pay_for_next_to_nothing() -> None:
    outcomes = [told("poor", 0.5, 1), told("sound", 0.9, 3), told("dear", 0.905, 9)]
    assert choose(outcomes, Goal()).best.policy == "sound"
    assert choose(outcomes, Goal(tolerance=0)).best.policy == "dear"


def test_where_no_policy_makes_a_difference_the_first_is_the_best_and_that_is_said() -> None:
    same = [told("today", 0.9, 3.01), told("fifo", 0.9, 3), told("a", 0.895, 3)]
    choice = choose(same, Goal())
    assert (choice.best.policy, choice.differ) == ("today", False)
    assert choose(same, Goal(tolerance=0)).best.policy == "fifo"
    other = [*same, told("dear", 0.9, 4)]
    assert (choose(other, Goal()).best.policy, choose(other, Goal()).differ) == ("fifo", True)
    # What bounds are about makes a difference, too.
    lost = [told("today", 0.9, 3, done=50), told("kept", 0.9, 3)]
    bounded = choose(lost, Goal(at_most={"let_go_share": 0.1}))
    assert (bounded.best.policy, bounded.differ) == ("kept", True)


def test_of_those_that_come_to_the_same_the_first_is_on_the_front() -> None:
    outcomes = [told("today", 0.9, 3), told("another", 0.9, 3), told("poor", 0.2, 1)]
    assert [each.policy for each in front_of(outcomes, Goal())] == ["poor", "today"]


def test_the_best_keeps_within_the_bounds() -> None:
    outcomes = [told("late", 0.2, 1), told("good", 0.9, 9, done=50), told("kept", 0.8, 3)]
    assert choose(outcomes, Goal()).best.policy == "good"
    assert choose(outcomes, Goal(at_most={"let_go_share": 0.1})).best.policy == "kept"
    nearest = choose(outcomes, Goal(at_most={"byte_days": 0.5}))
    assert (nearest.best.policy, nearest.within) == ("late", False)
