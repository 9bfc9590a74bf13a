"""What can be written as a rule, and what is said when it cannot be read."""

import msgspec
import pytest

from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.faults import InvalidRule
from ebbmq.policy.rules.parse import parse_condition, parse_rule
from ebbmq.policy.rules.rule import Rule, RuleSet, check_devices, make_rule, read_rule
from ebbmq.policy.rules.text import text_of

SIZE = c.Property("SIZE")
TYPE = c.Property("TYPE")


def refusal(text: str) -> InvalidRule:
    with pytest.raises(InvalidRule) as caught:
        parse_rule(text)
    assert caught.value.action, "every refusal says what to do"
    return caught.value


def test_the_first_rule_of_the_design_reads_as_written() -> None:
    rule = read_rule("W-001: WEIGHT 31 USE HDD WHEN SIZE > 10 AND SIZE < 100 AND TYPE == TEXT")
    assert rule == Rule(
        "W-001",
        31.0,
        "HDD",
        c.All(
            (
                c.Compare(SIZE, ">", 10.0),
                c.Compare(SIZE, "<", 100.0),
                c.Compare(TYPE, "==", "TEXT"),
            )
        ),
    )
    assert rule.text == "WEIGHT 31 USE HDD WHEN SIZE > 10 AND SIZE < 100 AND TYPE == TEXT"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('header("x").ispresent', 'HEADER("x").isPresent'),
        ('HEADER("x").isPresent()', 'HEADER("x").isPresent'),
        ('HEADER("locator").contains("fast-db")', 'HEADER("locator").contains("fast-db")'),
        ('HEADER(x) == "y z"', 'HEADER("x") == "y z"'),
        ("destination == QUEUE", "DESTINATION == QUEUE"),
        ("QUEUE == orders.eu and not QUEUE == QUEUE", "QUEUE == orders.eu AND NOT QUEUE == QUEUE"),
        ("TYPE IN (TEXT, BYTE, TEXT)", "TYPE in (TEXT, BYTE)"),
        ("IMPORTANCE in (9,10)", "IMPORTANCE in (9, 10)"),
        ("STATUS(HDD) > -20", "STATUS(HDD) > -20"),
        ('FREE_PERCENT("my disk") <= .5', 'FREE_PERCENT("my disk") <= 0.5'),
        ("AGE > 12h", "AGE > 0.5"),
        ("SIZE >= 2MiB", "SIZE >= 2048"),
        ("SIZE < 512B", "SIZE < 0.5"),
        ("always", "ALWAYS"),
        ("(SIZE > 1 OR SIZE < 3) AND TYPE != TEXT", "(SIZE > 1 OR SIZE < 3) AND TYPE != TEXT"),
        ("SIZE > 1 OR SIZE < 3 AND TYPE != TEXT", "SIZE > 1 OR SIZE < 3 AND TYPE != TEXT"),
        ("NOT (SIZE > 1 AND SIZE < 3)", "NOT (SIZE > 1 AND SIZE < 3)"),
    ],
)
def test_a_condition_is_shown_in_one_form_however_it_was_typed(text: str, canonical: str) -> None:
    assert text_of(parse_condition(text)) == canonical
    assert parse_condition(canonical) == parse_condition(text)


def test_and_binds_closer_than_or() -> None:
    read = parse_condition("SIZE > 1 OR SIZE < 3 AND TYPE != TEXT")
    assert isinstance(read, c.Any)
    assert isinstance(read.parts[1], c.All)


@pytest.mark.parametrize(
    ("text", "column", "action"),
    [
        ("WEIGHT 3 USE A WHEN SZE > 10", 21, "did you mean SIZE?"),
        ("WEIGHT 3 USE A WHEN SIZE > 10 AN TYPE == B", 31, "did you mean AND?"),
        ("WEIGH 3 USE A", 1, "did you mean WEIGHT?"),
        ("WEIGHT 3 USER A", 10, "did you mean USE?"),
        ("WEIGHT 3 USE A WEN SIZE > 1", 16, "did you mean WHEN?"),
        ("WEIGHT 3 USE A WHEN TYPE = B", 26, "write == to compare"),
        ("WEIGHT 3 USE A WHEN SIZE > 10 && TYPE == B", 31, "write AND"),
        ("WEIGHT 3 USE A WHEN HEADER('x') == y", 28, 'use double quotes: "text"'),
        ('WEIGHT 3 USE A WHEN HEADER("x) == y', 28, "close the text with a double quote"),
        ('WEIGHT 3 USE A WHEN HEADER("x").contain("y")', 33, "did you mean .contains?"),
        ('WEIGHT 3 USE A WHEN HEADER("x").contains', 33, 'write .contains("fast-db")'),
        ("WEIGHT 3 USE A WHEN HEADER == y", 21, 'write HEADER("name") == "some text"'),
        ("WEIGHT 3 USE A WHEN STATUS > -10", 21, "write STATUS(HDD) > 10"),
        ("WEIGHT 3 USE A WHEN SIZE(x) > 10", 21, "write SIZE > 10"),
        ("WEIGHT 3 USE A WHEN SIZE", 21, "write SIZE > 10"),
        ("WEIGHT 3 USE A WHEN SIZE > big", 28, "write SIZE and a number"),
        ("WEIGHT 3 USE A WHEN SIZE > 10mb", 28, "did you mean 10MiB?"),
        ("WEIGHT 3 USE A WHEN TYPE < TEXT", 26, "use ==, != or in (..)"),
        ("WEIGHT 3 USE A WHEN CLIENT_ID == 17", 34, 'write it in quotes: "17"'),
        ("WEIGHT 3 USE A WHEN DESTINATION == QUEU", 36, "did you mean QUEUE?"),
        ("WEIGHT 3 USE A WHEN TYPE == B)", 30, "remove it and what follows"),
        ("WEIGHT 3 USE A WHEN ALWAYS)", 27, "remove it and what follows"),
        ("WEIGHT 1e999 USE A", 8, "use less than 1e308"),
        ('WEIGHT 3 USE A WHEN TYPE == "\\ud800"', 29, "write the character"),
    ],
)
def test_a_slip_is_pointed_at_and_what_was_meant_is_named(
    text: str, column: int, action: str
) -> None:
    error = refusal(text)
    assert (error.column, error.action) == (column, action)
    assert error.picture() == f"{text}\n{' ' * (column - 1)}^"
    assert error.code == "invalid_rule"


def test_a_rule_that_ends_too_early_is_pointed_at_behind_its_end() -> None:
    error = refusal("WEIGHT 3 USE A WHEN SIZE >")
    assert error.column == 27
    assert "a number" in error.action


def test_nesting_and_length_are_bounded() -> None:
    assert "nested" in refusal("WEIGHT 3 USE A WHEN " + "NOT " * 100 + "SIZE > 1").detail
    assert "nested" in refusal("WEIGHT 3 USE A WHEN " + "NOT (" * 99 + "SIZE > 1" + ")" * 99).detail
    assert "characters" in refusal("WEIGHT 3 USE A WHEN " + "SIZE > 1 AND " * 1000).detail


@pytest.mark.parametrize("weight", [1e9, -1, float("nan"), float("inf"), 1000.5])
def test_a_weight_out_of_bounds_is_refused_by_name(weight: float) -> None:
    with pytest.raises(InvalidRule, match=r"W-1.*the weight is") as caught:
        make_rule("W-1", weight, "HDD")
    assert caught.value.action == "use a number from 0 to 1000"


def test_a_condition_that_cannot_be_read_names_its_rule() -> None:
    with pytest.raises(InvalidRule) as caught:
        make_rule("W-7", 10, "HDD", "SZE > 1")
    assert caught.value.detail == "rule 'W-7': column 1: SZE is not a keyword"
    assert caught.value.column == 1


def test_a_device_nobody_has_is_refused_and_the_nearest_named() -> None:
    rule = make_rule("W-1", 10, "HDD", "STATUS(SDS) > -10")
    with pytest.raises(InvalidRule, match="no device 'SDS'") as caught:
        check_devices([rule], ["HDD", "SSD"])
    assert caught.value.action == "did you mean 'SSD'?"
    check_devices([rule], ["HDD", "SDS"])


def test_a_condition_travels_as_json() -> None:
    condition = parse_condition('NOT TYPE in (A, B) AND HEADER("x").isPresent OR SIZE > 1')
    assert msgspec.json.decode(msgspec.json.encode(condition), type=c.Condition) == condition


def test_a_change_of_a_rule_set_leaves_the_version_before_as_it_was() -> None:
    first = RuleSet.of([make_rule("a", 1, "HDD"), make_rule("b", 2, "HDD")])
    second = first.having(make_rule("a", 9, "SSD")).without("b")
    assert [rule.device for rule in first.enabled()] == ["HDD", "HDD"]
    assert [rule.device for rule in second.enabled()] == ["SSD"]
    assert first.version < second.version


def test_switching_a_rule_on_and_off_again_ends_where_it_began() -> None:
    first = RuleSet.of([make_rule("a", 1, "HDD")])
    off = first.enabling("a", enabled=False)
    assert off.enabled() == []
    assert off.enabling("a", enabled=False) is off
    assert off.enabling("a", enabled=True).rules == first.rules


def test_an_id_taken_twice_or_not_known_is_refused() -> None:
    with pytest.raises(InvalidRule, match="two rules 'a'"):
        RuleSet.of([make_rule("a", 1, "HDD"), make_rule("a", 2, "HDD")])
    with pytest.raises(InvalidRule) as caught:
        RuleSet.of([make_rule("W-001", 1, "HDD")]).without("W-01")
    assert caught.value.action == "did you mean 'W-001'?"
