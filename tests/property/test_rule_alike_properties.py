"""Messages with the same key are the same to every rule."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ebbmq import Message, limits
from ebbmq.policy.placement import Placed, Terms, place, sole_choice
from ebbmq.policy.rules.choose import Chooser
from ebbmq.policy.rules.properties import Properties
from ebbmq.policy.rules.rule import RuleSet
from tests.property.rule_strategies import messages, rule_lists, states
from tests.property.test_rule_choice_properties import strategies

published = st.lists(
    st.builds(
        Message,
        st.binary(max_size=12),
        importance=st.sampled_from([None, 1, 5, 10]),
        type=st.sampled_from(["BYTE", "TEXT"]),
        headers=st.dictionaries(
            st.sampled_from(["a", "b", "locator"]), st.sampled_from(["", "x", "fast-db", "ab"])
        ),
        key=st.sampled_from([None, "x", "ab"]),
        store=st.sampled_from([None, "HDD", "x"]),
        replicas=st.sampled_from([None, 2]),
    ),
    min_size=2,
    max_size=12,
)


@settings(deadline=None)
@given(rule_lists(), strategies, st.lists(messages, min_size=2, max_size=8), states)
def test_messages_with_the_same_key_get_the_same_answer(rules, strategy, some, devices):
    chooser = Chooser(RuleSet.of(rules), strategy)
    view = chooser.view(devices)
    answers = {}
    for message in some:
        ranked = view.ranked(message, "HDD")
        assert answers.setdefault(chooser.alike.key(message), ranked) == ranked


@settings(deadline=None)
@given(rule_lists(), strategies, messages, states, states)
def test_devices_that_look_the_same_get_the_same_answer(rules, strategy, message, devices, others):
    chooser = Chooser(RuleSet.of(rules), strategy)
    # The same but for what is measured all the time.
    later = {
        name: replace(state, latency_ms=others[name].latency_ms) if name in others else state
        for name, state in devices.items()
    }
    if chooser.alike.devices(devices) == chooser.alike.devices(later):
        before, after = (chooser.view(each).ranked(message, "HDD") for each in (devices, later))
        assert before == after


@settings(deadline=None)
@given(rule_lists(), strategies, published, st.sampled_from([1, 3 * limits.KIB]), states)
def test_published_messages_with_the_same_key_get_the_same_answer(
    rules, strategy, batch, unit, devices
):
    chooser = Chooser(RuleSet.of(rules), strategy)
    view = chooser.view(devices)
    sizes = [len(message.body) * unit for message in batch]
    answers = {}
    for message, size, key in zip(batch, sizes, chooser.alike.keys(batch, sizes), strict=True):
        asked = Properties(
            size=size / limits.KIB,
            type=message.type,
            headers=message.headers or {},
            importance=float(message.importance or 5),
            routing_key=message.key,
            store=message.store,
        )
        ranked = view.ranked(asked, "HDD")
        assert answers.setdefault(key, ranked) == ranked


@settings(deadline=None)
@given(rule_lists(), strategies, messages, states, st.booleans(), st.integers(1, 2))
def test_the_sole_choice_is_the_one_that_placement_wants(
    rules, strategy, message, devices, durable, replicas
):
    view = Chooser(RuleSet.of(rules), strategy).view(devices)
    asked = Placed(
        properties=message, terms=Terms(default="HDD"), durable=durable, replicas=replicas
    )
    choice = sole_choice(asked, view)
    if choice is not None:
        wanted = place(asked, 0, view)
        assert (wanted.copies, wanted.target) == ((choice.device,), 1)
        assert wanted.chosen_by == choice
