"""Asking the tables gives what trying each rule gives; better never becomes worse."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.policy.rules import fuzzy
from ebbmq.policy.rules.cases import ruled
from ebbmq.policy.rules.choose import Chooser, Strategy, aggregated, fuzzy_score
from ebbmq.policy.rules.compile import test_of as closure
from ebbmq.policy.rules.first import FirstMatch
from ebbmq.policy.rules.normal import normal, opposite
from ebbmq.policy.rules.properties import UNKNOWN
from ebbmq.policy.rules.rule import Rule, RuleSet, make_rule
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
#: More than the number of conditions up to which each is tried.
PADDING = [make_rule(f"pad-{i:02d}", 5, "HDD", f'HEADER("pad") == "{i}"') for i in range(16)]


#: As many spans of a number as it takes for them to be looked at together.
SPANS = [
    make_rule(f"span-{i:02d}", i % 7, ("HDD", "MEMORY", "DB1")[i % 3], when)
    for i in range(40)
    for when in [
        (
            f"SIZE > {i / 3} AND SIZE <= {i + 2}",
            f"SIZE >= {i - 5}",
            f'SIZE < {i} AND NOT HEADER("x") == "a"',
            f'SIZE > {i} AND SIZE < 20 AND NOT (HEADER("y").isPresent AND TYPE == TEXT)',
        )[i % 4]
    ]
]


def naive(rules, strategy, message, devices):
    """Each rule tried by itself: (device, score) of every device with a rule, best first."""
    found = {}
    for rule in sorted(rules, key=lambda rule: rule.id):
        state = devices.get(rule.device, UNKNOWN)
        if strategy.kind == "fuzzy":
            degree = fuzzy.degree_of(rule.when, strategy.softness)(message, devices)
            degree = round(degree * 1000)
        else:
            degree = 1000 if closure(rule.when)(message, devices) else 0
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


@given(rule_lists(), strategies, messages, states, st.booleans())
def test_tables_choose_what_trying_each_rule_chooses(rules, strategy, message, devices, padded):
    rules = rules + (PADDING if padded else [])
    expected = [(device, score) for device, score, _ in naive(rules, strategy, message, devices)]
    view = Chooser(RuleSet.of(rules), strategy).view(devices)
    ranked = view.ranked(message)
    assert [(each.device, each.score) for each in ranked if each.ground == "rules"] == expected
    assert sorted(each.device for each in ranked) == sorted(
        name for name, state in devices.items() if state.usable
    )
    assert view.choose(message) == (ranked[0] if ranked else None)


@settings(deadline=None)
@given(rule_lists(max_size=6), st.sampled_from([0.05, 0.2, 1.0]), messages, states)
def test_many_soft_spans_together_give_what_each_alone_gives(rules, softness, message, devices):
    strategy = Strategy(kind="fuzzy", softness=softness)
    expected = [
        (device, score) for device, score, _ in naive(rules + SPANS, strategy, message, devices)
    ]
    view = Chooser(RuleSet.of(rules + SPANS), strategy).view(devices)
    assert [(e.device, e.score) for e in view.ranked(message) if e.ground == "rules"] == expected


@given(rule_lists(), messages, states)
def test_the_winning_rule_is_the_heaviest_then_the_first_by_id(rules, message, devices):
    expected = naive(rules, Strategy(), message, devices)
    choice = Chooser(RuleSet.of(rules + PADDING)).view(devices).choose(message)
    if expected:
        assert choice is not None
        assert (choice.device, choice.score, choice.rule) == expected[0]


@given(conditions, messages, states)
def test_a_normal_form_is_true_where_the_condition_is_and_its_opposite_elsewhere(
    when, message, devices
):
    def found(form):
        case = ruled([Rule("r", 1.0, "HDD", when)]).cases[0]._replace(normal=form)
        match = FirstMatch([case] * 16)
        return match.best(message, devices, match.fixed(devices), [0.0]) is not None

    holds = closure(when)(message, devices)
    # Under its keys a condition is found where it is true, and tested there.
    assert found(normal(when)) == holds
    assert normal(when, negated=True) == opposite(normal(when))
    assert opposite(opposite(normal(when))) == normal(when)


@given(conditions, st.sampled_from([0.0, 0.2, 1.0]), messages, states)
def test_a_degree_is_above_0_only_in_the_support_and_1_in_the_core(
    when, softness, message, devices
):
    degree = fuzzy.degree_of(when, softness)(message, devices)
    assert 0 <= degree <= 1
    if degree > 0:
        assert closure(fuzzy.support(when, softness))(message, devices)
    if closure(fuzzy.core(when, softness))(message, devices):
        assert degree == 1
    if softness == 0:
        assert (degree == 1) == closure(when)(message, devices)


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
