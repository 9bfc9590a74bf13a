"""Conditions, messages and devices that meet each other often enough to tell evaluators apart."""

from hypothesis import strategies as st

from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.properties import ARCHIVE, DeviceState, Properties
from ebbmq.policy.rules.rule import Rule

DEVICES = ("DB1", "GRID", "HDD", "MEMORY")
NUMBERS = [name for name, keyword in c.KEYWORDS.items() if keyword.kind == "number"]
TEXTS = ["TYPE", "CLIENT_ID", "QUEUE", "STORE", "ROUTING_KEY", "PRODUCER", "CONSUMER"]
CHOICES = {name: keyword.choices for name, keyword in c.KEYWORDS.items() if keyword.choices}
HEADERS = ["x", "y", "locator"]

# Few values, so that conditions and messages share them.
numbers = st.sampled_from([0.0, 1.0, 2.5, 5.0, 10.0, 100.0, -20.0])
words = st.sampled_from(
    ["", "a", "ab", "abc", "fast-db", "slow-db", "TEXT", "privileged", "fast-db-17"]
)


@st.composite
def number_properties(draw):
    keyword = c.KEYWORDS[draw(st.sampled_from(NUMBERS))]
    argument = draw(st.sampled_from([*DEVICES, "NOWHERE"])) if keyword.needs else None
    return c.Property(keyword.name, argument)


text_properties = st.one_of(
    st.sampled_from(TEXTS).map(c.Property),
    st.sampled_from(HEADERS).map(lambda name: c.Property("HEADER", name)),
)


def some(values):
    return st.lists(values, min_size=1, max_size=3, unique=True).map(tuple)


leaves = st.one_of(
    st.just(c.ALWAYS),
    st.builds(
        c.Compare, number_properties(), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers
    ),
    st.builds(c.Compare, text_properties, st.sampled_from(["==", "!="]), words),
    st.builds(c.OneOf, number_properties(), some(numbers)),
    st.builds(c.OneOf, text_properties, some(words)),
    *(
        st.builds(
            c.Compare,
            st.just(c.Property(name)),
            st.sampled_from(["==", "!="]),
            st.sampled_from(values),
        )
        for name, values in CHOICES.items()
    ),
    st.builds(c.IsPresent, text_properties),
    st.builds(c.Contains, text_properties, words),
)


def _joined(kind, parts):
    flat = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return kind(tuple(flat))


conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(c.Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: _joined(c.All, parts)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: _joined(c.Any, parts)),
    ),
    max_leaves=6,
)
maybe_words = st.one_of(st.none(), words)
messages = st.builds(
    Properties,
    size=st.one_of(numbers, st.floats(-30, 200)),
    type=words,
    headers=st.dictionaries(st.sampled_from([*HEADERS, "other"]), words, max_size=4),
    client_id=maybe_words,
    importance=st.integers(1, 10).map(float),
    destination=st.sampled_from(CHOICES["DESTINATION"]),
    queue=maybe_words,
    routing_key=maybe_words,
    producer=maybe_words,
    consumer=maybe_words,
    qos=st.one_of(st.none(), st.sampled_from(CHOICES["QOS"])),
    store=maybe_words,
    decay_score=numbers,
    age=numbers,
    access_rate=numbers,
)
device_states = st.builds(
    DeviceState,
    status=st.sampled_from([0.0, -10.0, -20.0, -100.0]),
    latency_ms=numbers,
    free_percent=numbers,
    durable=st.booleans(),
    usable=st.sampled_from([True, True, True, False]),
    failure_domain=st.sampled_from(["a", "b", "c"]),
    tier=st.sampled_from(["ram", "ssd", "object"]),
    slowness=st.sampled_from([0, 2, 2, ARCHIVE]),
    cost_per_gib_month=st.sampled_from([0.0, 0.1]),
)
states = st.fixed_dictionaries(dict.fromkeys(DEVICES, device_states))


@st.composite
def rule_lists(draw, *, max_size=24):
    weights = st.sampled_from([10.0, 20.0, 60.0, 90.0])
    parts = st.tuples(weights, st.sampled_from(DEVICES), conditions)
    drawn = draw(st.lists(parts, max_size=max_size))
    return [Rule(f"W-{i:03d}", *parts) for i, parts in enumerate(drawn)]
