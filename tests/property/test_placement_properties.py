"""Whatever rules, devices and message: floor, domains and target hold as far as devices allow."""

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import Access, Phase, Score
from ebbmq.policy.placement import Placed, Terms, place, sole_choice
from ebbmq.policy.rules.choose import Chooser
from ebbmq.policy.rules.explain import explain
from ebbmq.policy.rules.properties import ARCHIVE
from ebbmq.policy.rules.rule import RuleSet
from ebbmq.policy.status import EXTRA_COPIES_ABOVE
from tests.property.rule_strategies import DEVICES, messages, rule_lists, states
from tests.property.test_rule_choice_properties import strategies

terms = st.builds(
    Terms,
    score=st.just(Score(per_day=10, access_bonus=5, medium=20, high=70)),
    min_copies=st.integers(1, 3),
    max_replicas=st.one_of(st.none(), st.integers(1, 4)),
    tiers=st.sampled_from([(), ("ram", "ssd", "object"), ("ssd", "object")]),
    default=st.sampled_from([None, *DEVICES]),
)
placed = st.builds(
    Placed,
    properties=messages,
    terms=terms,
    durable=st.booleans(),
    replicas=st.integers(1, 4),
    copies=st.lists(st.sampled_from(DEVICES), unique=True, max_size=4).map(tuple),
    target=st.integers(1, 4),
    access=st.builds(Access, rate=st.floats(0, 20), at_ms=st.just(0)),
    review_at_ms=st.one_of(st.none(), st.integers(0, 10 * DAY_MS)),
)
published = st.builds(
    Placed,
    properties=messages,
    terms=terms,
    durable=st.booleans(),
    replicas=st.integers(1, 3),
)
instants_ms = st.integers(0, 12 * DAY_MS)
unruled = st.builds(
    Placed,
    properties=messages,
    terms=st.builds(Terms, default=st.sampled_from([None, *DEVICES])),
    replicas=st.integers(1, 4),
)


@given(placed, instants_ms, rule_lists(max_size=6), states)
def test_floor_domains_and_target_hold_as_far_as_devices_allow(message, now_ms, rules, devices):
    wanted = place(message, now_ms, Chooser(RuleSet.of(rules)).view(devices))
    usable = {name for name, state in devices.items() if state.usable}
    assert set(wanted.copies) <= usable
    assert len(set(wanted.copies)) == len(wanted.copies)
    if message.durable and any(devices[name].durable for name in usable):
        assert any(devices[name].durable for name in wanted.copies)
    own = [name for name in wanted.copies if name != wanted.floor_added]
    domains = [devices[name].failure_domain for name in own]
    assert len(set(domains)) == len(domains)
    assert len(own) == wanted.target - wanted.missing
    if wanted.missing:
        floor = max(message.replicas, message.terms.min_copies)
        # Copies beyond what the publisher asked for wait for devices that are well.
        able = {
            name
            for name in usable
            if len(own) < floor or devices[name].status >= EXTRA_COPIES_ABOVE
        }
        assert {devices[name].failure_domain for name in able} <= set(domains)
    if wanted.phase is not Phase.FADED:
        assert wanted.target >= max(message.replicas, message.terms.min_copies)


@given(placed, instants_ms, rule_lists(max_size=6), states)
def test_what_is_dropped_is_never_wanted_and_nothing_goes_before_all_is_there(
    message, now_ms, rules, devices
):
    view = Chooser(RuleSet.of(rules)).view(devices)
    wanted = place(message, now_ms, view)
    assert not set(wanted.drop) & set(wanted.copies)
    if wanted.drop:
        assert set(wanted.copies) <= set(message.copies)
        assert not wanted.missing
    left = set(message.copies) - set(wanted.drop)
    if message.durable and any(devices[name].durable for name in message.copies):
        assert any(devices[name].durable for name in left)


@given(placed, instants_ms, rule_lists(max_size=6), states)
def test_once_what_is_wanted_is_there_a_repair_changes_nothing(message, now_ms, rules, devices):
    view = Chooser(RuleSet.of(rules)).view(devices)
    wanted = place(message, now_ms, view)
    if not wanted.copies:
        return
    settled = Placed(
        properties=message.properties,
        terms=message.terms,
        durable=message.durable,
        replicas=message.replicas,
        copies=wanted.copies,
        target=wanted.target,
        access=message.access,
    )
    again = place(settled, now_ms, view)
    if again.phase is wanted.phase:
        assert (set(again.copies), again.add) == (set(wanted.copies), ())


@given(rule_lists(max_size=8), strategies, states, published)
def test_an_explanation_agrees_with_the_choice(rules, strategy, devices, asked):
    view = Chooser(RuleSet.of(rules), strategy).view(devices)
    message = asked.properties
    told = explain(view, message, terms=asked.terms, durable=asked.durable, replicas=asked.replicas)
    choice = view.choose(message, asked.terms.default)
    wanted = place(asked, 0, view)
    sole = sole_choice(asked, view)
    assert sole is None or told.chosen == (sole.device,)
    assert told.chosen == wanted.copies
    assert told.floor_added == wanted.floor_added
    assert told.chosen[:1] == (() if choice is None else (choice.device,))
    assert {each.name for each in told.devices} >= set(devices)
    assert all(each.why for each in told.devices)
    if choice is not None and choice.rule is not None:
        best = next(rule for rule in told.rules if rule.matched and devices[rule.device].usable)
        assert (best.id, best.adjusted) == (choice.rule, choice.score)


@given(unruled, states)
def test_an_archive_has_a_further_copy_only_where_no_other_device_that_lasts_could(
    message, devices
):
    copies = place(message, 0, Chooser(RuleSet.of([])).view(devices)).copies
    archives = [name for name in copies[1:] if devices[name].slowness >= ARCHIVE]
    if not archives or not devices[archives[0]].durable:
        return
    # Its own domain counts as taken: of two devices that fail together one is enough.
    domains = {devices[name].failure_domain for name in copies if name not in archives}
    for name, state in devices.items():
        if state.usable and state.durable and state.slowness < ARCHIVE:
            assert name in copies or state.failure_domain in domains
