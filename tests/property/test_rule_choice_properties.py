"""Asking all rules at once gives what trying each gives; better never becomes worse."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.choose import Chooser, Strategy, aggregated, fuzzy_score
from ebbmq.policy.rules.evaluate import WHOLE, degree_of
from ebbmq.policy.rules.properties import UNKNOWN
from ebbmq.policy.rules.rule import Rule, RuleSet
from tests.property.rule_strategies import (
    conditions,
    messages,
    rule_lists,
    states,
)

strategies = st.one_of(
    st.just(Strategy()),
    st.builds(
        Strategy,
        kind=st.just("aggregate"),
        combine=st.sampled_from(["mean", "sum", "biased"]),
        bias=st.sampled_from([0.0, 5.0]),
    ),
    st.builds(Strategy, kind=st.just("fuzzy"), softness=st.sampled_from([0.0, 0.2, 1.0])),
)


def naive(rules, strategy, message, devices):
    """Each rule tried by itself: (device, score) of every device with a rule, best first."""
    found = {}
    for rule in sorted(rules, key=lambda rule: rule.id):
        state = devices.get(rule.device, UNKNOWN)
        softness = strategy.softness if strategy.kind == "fuzzy" else 0.0
        degree = degree_of(rule.when, message, devices, softness)
        if degree and state.usable:
            found.setdefault(rule.device, []).append((degree, rule, state.status))
    return sorted(
        ((device, *_score(strategy, those)) for device, those in found.items()),
        key=lambda each: (-each[1], each[2], each[0]),
    )


def _score(strategy, those):
    status = those[0][2]
    if strategy.kind == "first_match":
        score, rule_id = min((-(rule.weight + status), rule.id) for _, rule, status in those)
        return -score, rule_id
    weights = sum(round(rule.weight * 1000) * degree for degree, rule, _ in those)
    degrees = sum(degree for degree, _, _ in those)
    if strategy.kind == "fuzzy":
        return fuzzy_score(weights, degrees, status), -degrees
    return aggregated(strategy, weights // 1000, len(those), status), -len(those)


@settings(deadline=None)
@given(rule_lists(), strategies, messages, states)
def test_all_rules_at_once_choose_what_trying_each_chooses(rules, strategy, message, devices):
    expected = [(device, score) for device, score, _ in naive(rules, strategy, message, devices)]
    view = Chooser(RuleSet.of(rules), strategy).view(devices)
    ranked = view.ranked(message)
    assert [(each.device, each.score) for each in ranked if each.ground == "rules"] == expected
    assert sorted(each.device for each in ranked) == sorted(
        name for name, state in devices.items() if state.usable
    )
    assert view.choose(message) == (ranked[0] if ranked else None)


@given(rule_lists(), messages, states)
def test_the_winning_rule_is_the_heaviest_then_the_first_by_id(rules, message, devices):
    expected = naive(rules, Strategy(), message, devices)
    choice = Chooser(RuleSet.of(rules)).view(devices).choose(message)
    if expected:
        assert choice is not None
        assert (choice.device, choice.score, choice.rule) == expected[0]


@given(conditions, st.sampled_from([0.0, 0.2, 1.0]), messages, states)
def test_a_degree_is_between_nothing_and_whole_and_its_opposite_is_what_is_missing(
    when, softness, message, devices
):
    degree = degree_of(when, message, devices, softness)
    assert 0 <= degree <= WHOLE
    assert degree_of(c.Not(when), message, devices, softness) == WHOLE - degree
    assert softness or degree in {0, WHOLE}


@given(rule_lists(), strategies, messages, states, st.sampled_from([0.0, -5.0, -10.0]))
def test_the_chosen_device_stays_chosen_when_its_status_improves(
    rules, strategy, message, devices, status
):
    # Rules that ask for a status may turn elsewhere when it changes; the others may not.
    rules = [rule for rule in rules if "STATUS" not in rule.text]
    chooser = Chooser(RuleSet.of(rules), strategy)
    choice = chooser.view(devices).choose(message)
    if choice is None:
        return
    before = devices[choice.device]
    better = type(before)(
        status=max(status, before.status),
        latency_ms=before.latency_ms,
        free_percent=before.free_percent,
    )
    after = chooser.view(devices | {choice.device: better}).choose(message)
    assert after is not None
    assert after.device == choice.device


@given(rule_lists(), messages, states, st.integers(0, 100))
def test_a_heavier_winner_still_wins(rules, message, devices, more):
    choice = Chooser(RuleSet.of(rules)).view(devices).choose(message)
    if choice is None or choice.rule is None:
        return
    heavier = [
        Rule(each.id, each.weight + more * (each.id == choice.rule), each.device, each.when)
        for each in rules
    ]
    after = Chooser(RuleSet.of(heavier)).view(devices).choose(message)
    assert after is not None
    assert (after.device, after.rule) == (choice.device, choice.rule)
    assert after.score == choice.score + more
