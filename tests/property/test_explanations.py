"""What is explained is what a broker does: its own terms, and its own way to ask the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbmq import Broker, Message, Properties, QueueSpec
from ebbmq.core.copies import LOG
from ebbmq.limits import KIB
from ebbmq.node import intake
from ebbmq.policy.placement import EVALUATE_EVERY_MS
from ebbmq.policy.rules.choose import Chooser
from ebbmq.policy.rules.explain import explain
from ebbmq.policy.rules.rule import RuleSet
from tests.property.rule_strategies import (
    CHOICES,
    DEVICES,
    HEADERS,
    device_states,
    rule_lists,
    words,
)
from tests.property.test_rule_choice_properties import strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "abc"
names = words.filter(bool)
maybe_names = st.one_of(st.none(), names)
#: The log is always among the devices of a broker.
states = st.fixed_dictionaries({**dict.fromkeys(DEVICES, device_states), LOG: device_states})
views = st.builds(
    lambda rules, strategy, devices: Chooser(RuleSet.of(rules), strategy).view(devices),
    rule_lists(max_size=8),
    strategies,
    states,
)
specs = st.builds(
    QueueSpec,
    st.just(QUEUE),
    default_device=st.sampled_from([None, LOG, *DEVICES]),
    min_copies=st.integers(1, 3),
    max_replicas=st.one_of(st.none(), st.integers(1, 4)),
    tiers=st.sampled_from([(), ("ram", "ssd", "object"), ("ssd", "object")]),
    default_importance=st.integers(1, 10),
    score_base=st.sampled_from([0.0, 60.0]),
    evaluate_every_ms=st.just(EVALUATE_EVERY_MS),
)
messages = st.builds(
    Message,
    st.sampled_from([b"", bytes(KIB), bytes(5 * KIB), bytes(10 * KIB + 1)]),
    type=names,
    headers=st.one_of(
        st.none(), st.dictionaries(st.sampled_from([*HEADERS, "other"]), words, max_size=3)
    ),
    importance=st.one_of(st.none(), st.integers(1, 10)),
    key=maybe_names,
    store=maybe_names,
    replicas=st.one_of(st.none(), st.integers(1, 3)),
    durable=st.booleans(),
    id=st.one_of(st.none(), st.just("an id")),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker.open(tmp_path_factory.mktemp("store"), {"client": "privileged"}) as opened:
        opened.declare(QueueSpec(QUEUE))
        yield opened


@given(
    views,
    specs,
    st.lists(messages, min_size=1, max_size=4),
    st.tuples(maybe_names, maybe_names, st.sampled_from(CHOICES["QOS"]), st.booleans()),
)
def test_a_broker_places_a_message_where_an_explanation_says(broker, view, spec, batch, how):
    client, consumer, qos, topic = how
    engine = broker.engine
    queue, placing = engine.catalog.queues[QUEUE], engine.keeping.placing
    queue.spec, queue.consumer = spec, consumer
    packed = intake.pack(batch, client=client, qos=qos, topic=topic)
    who = client or engine.config.client
    # The second time all answers are known.
    for answers in (placing.answers(queue.shards[0], packed, view) for _ in range(2)):
        for message, answer in zip(batch, answers, strict=True):
            importance = message.importance
            asked = Properties(
                size=len(message.body) / KIB,
                type=message.type,
                headers=message.headers or {},
                destination="TOPIC" if topic else "QUEUE",
                client_id=who,
                importance=spec.default_importance if importance is None else importance,
                queue=QUEUE,
                routing_key=message.key,
                producer=who,
                consumer=consumer,
                qos=qos,
                store=message.store,
            )
            told = explain(
                view,
                asked,
                terms=placing.terms(spec),
                durable=message.durable,
                replicas=message.replicas or 1,
            )
            assert answer.devices == (", ".join(told.chosen) or LOG)
            wanted = answer.holding.staying() | answer.holding.pending
            assert wanted == (set(told.chosen) or {LOG})
