"""Any condition survives being written down; any text is read or refused, never anything else."""

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.faults import InvalidRule
from ebbmq.policy.rules.grammar import EXPECTED
from ebbmq.policy.rules.parse import parse_condition, parse_rule
from ebbmq.policy.rules.rule import Rule, read_rule
from ebbmq.policy.rules.text import text_of
from tests.property.rule_strategies import conditions

characters = st.characters(exclude_categories=["Cs"])
any_text = st.text(characters, max_size=20)
any_leaf = st.one_of(
    st.builds(
        lambda name, value: c.Compare(c.Property("HEADER", name), "==", value), any_text, any_text
    ),
    st.builds(lambda part: c.Contains(c.Property("QUEUE"), part), any_text),
    st.floats(allow_nan=False, allow_infinity=False).map(
        lambda value: c.Compare(c.Property("SIZE"), "<", value + 0.0)
    ),
)
names = st.text(characters, min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and name == name.strip()
)
fragments = st.one_of(
    st.sampled_from([*c.KEYWORDS, *(name.strip("_") for name in EXPECTED)]),
    st.sampled_from(["==", "!=", "(", ")", '"', "isPresent", ".contains(", ",", ":", "1KiB"]),
    st.text(max_size=4),
    st.floats().map(repr),
)


@given(st.one_of(conditions, any_leaf))
def test_a_condition_reads_back_as_itself(condition):
    assert parse_condition(text_of(condition)) == condition


@given(names, st.floats(0, 1000), names, any_leaf)
def test_a_rule_reads_back_as_itself(rule_id, weight, device, when):
    rule = Rule(rule_id, weight + 0.0, device, when)
    assert read_rule(rule.text, rule_id) == rule


@given(st.one_of(st.text(), st.lists(fragments).map(" ".join), st.lists(fragments).map("".join)))
def test_any_text_is_read_or_refused_with_a_column_inside_it(text):
    for read in (parse_rule, parse_condition):
        refused = refusal(read, text)
        if refused is not None:
            assert refused.action
            assert 0 <= refused.column <= len(text) + 1


def refusal(read, text):
    try:
        read(text)
    except InvalidRule as error:
        return error
    return None
