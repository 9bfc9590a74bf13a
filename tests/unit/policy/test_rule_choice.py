"""The worked example of the patent with all strategies, and what happens beside the rules."""

import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.choose import Chooser, Strategy, View
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet, make_rule, read_rule

PATENT = RuleSet.of(
    map(
        read_rule,
        (
            "W-001: WEIGHT 31 USE HDD WHEN SIZE > 10 AND SIZE < 100 AND TYPE == TEXT",
            "W-002: WEIGHT 60 USE HDD WHEN TYPE == BYTE",
            'W-003: WEIGHT 80 USE MEMORY WHEN DESTINATION == QUEUE AND HEADER("asd").isPresent',
            "W-004: WEIGHT 90 USE MEMORY WHEN CLIENT_ID == privileged",
            "W-005: WEIGHT 80 USE MEMORY WHEN SIZE < 20",
            'W-006: WEIGHT 60 USE DB1 WHEN HEADER("locator").contains("fast-db")',
            'W-007: WEIGHT 60 USE DB2 WHEN HEADER("locator").contains("slow-db")',
            "W-999: WEIGHT 90 USE GRID WHEN SIZE > 10000",
        ),
    )
)
STATES = {
    "HDD": DeviceState(status=-10),
    "MEMORY": DeviceState(status=0, durable=False),
    "DB1": DeviceState(status=-20),
    "DB2": DeviceState(status=0),
    "GRID": DeviceState(status=-30),
}
FIRST = Strategy()
MEAN = Strategy(kind="aggregate")
SUM = Strategy(kind="aggregate", combine="sum")
BIASED = Strategy(kind="aggregate", combine="biased", bias=10)
FUZZY = Strategy(kind="fuzzy")


def view(strategy: Strategy = FIRST, rules: RuleSet = PATENT) -> View:
    return Chooser(rules, strategy).view(STATES)


def chosen(message: Properties, strategy: Strategy = FIRST) -> tuple[str, float, str | None]:
    choice = view(strategy).choose(message)
    assert choice is not None
    return choice.device, choice.score, choice.rule


def test_adjusted_weights_come_in_the_order_of_the_example() -> None:
    adjusted = {rule.id: rule.weight + STATES[rule.device].status for rule in PATENT.rules.values()}
    assert sorted(adjusted.items(), key=lambda each: (-each[1], each[0])) == [
        ("W-004", 90),
        ("W-003", 80),
        ("W-005", 80),
        ("W-007", 60),
        ("W-999", 60),
        ("W-002", 50),
        ("W-006", 40),
        ("W-001", 21),
    ]


def test_first_match_sends_the_small_message_of_the_example_to_memory_by_the_third_rule() -> None:
    assert chosen(Properties(size=10, type="TEXT")) == ("MEMORY", 80, "W-005")


def test_first_match_sends_the_text_of_35_kib_to_the_disk_by_the_first_rule() -> None:
    # The text of the example names W-002, which is for BYTE; the device is the same.
    assert chosen(Properties(size=35, type="TEXT")) == ("HDD", 21, "W-001")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Properties(size=35), ("HDD", 50, "W-002")),
        (Properties(size=35, client_id="privileged"), ("MEMORY", 90, "W-004")),
        (Properties(size=35, headers={"asd": ""}), ("MEMORY", 80, "W-003")),
        (Properties(size=35, headers={"asd": ""}, destination="TOPIC"), ("HDD", 50, "W-002")),
        (Properties(size=200, type="X", headers={"locator": "a fast-db"}), ("DB1", 40, "W-006")),
        (Properties(size=200, type="X", headers={"locator": "slow-db"}), ("DB2", 60, "W-007")),
        (Properties(size=20_000), ("GRID", 60, "W-999")),
    ],
)
def test_each_rule_of_the_example_wins_for_the_messages_it_is_for(
    message: Properties, expected: tuple[str, float, str]
) -> None:
    assert chosen(message) == expected


def matching_five() -> Properties:
    """W-001, W-003, W-004 and W-007 match, and W-002 by its own rule below."""
    return Properties(
        size=50,
        type="TEXT",
        client_id="privileged",
        headers={"asd": "1", "locator": "slow-db"},
    )


FIVE = PATENT.having(make_rule("W-002", 60, "HDD", "TYPE in (BYTE, TEXT)"))


def test_the_means_of_the_example_are_35_and_a_half_and_85_and_60() -> None:
    ranked = view(MEAN, FIVE).ranked(matching_five())
    assert [(each.device, each.score) for each in ranked if each.ground == "rules"] == [
        ("MEMORY", 85),
        ("DB2", 60),
        ("HDD", 35.5),
    ]


def test_the_sum_favours_the_device_with_more_rules() -> None:
    rules = FIVE.having(make_rule("W-008", 70, "HDD"), make_rule("W-009", 70, "HDD"))
    ranked = view(SUM, rules).ranked(matching_five())
    assert [(each.device, each.score) for each in ranked][:2] == [("HDD", 191), ("MEMORY", 170)]


def test_a_bias_adds_points_for_every_further_rule() -> None:
    ranked = view(BIASED, FIVE).ranked(matching_five())
    assert [(each.device, each.score) for each in ranked][:3] == [
        ("MEMORY", 95),
        ("DB2", 60),
        ("HDD", 45.5),
    ]


def test_fuzzy_is_the_mean_where_no_edge_is_near() -> None:
    for strategy in (MEAN, FUZZY):
        ranked = view(strategy, FIVE).ranked(matching_five())
        assert [(each.device, each.score) for each in ranked][:3] == [
            ("MEMORY", 85),
            ("DB2", 60),
            ("HDD", 35.5),
        ]


def test_fuzzy_softens_the_edge_at_which_memory_is_left() -> None:
    scores = {
        size: {each.device: each.score for each in view(FUZZY).ranked(Properties(size=size))}
        for size in (16, 18, 20, 22, 23.9)
    }
    memory = [each["MEMORY"] for each in scores.values()]
    assert memory == sorted(memory, reverse=True)
    assert scores[16]["MEMORY"] == 80
    assert scores[20]["MEMORY"] == pytest.approx(-10)  # halfway from 80 to the worst
    best = [max(each, key=lambda name: each[name]) for each in scores.values()]
    assert best == ["MEMORY", "HDD", "HDD", "HDD", "HDD"]


def test_equal_adjusted_weights_are_decided_by_the_rule_id() -> None:
    rules = RuleSet.of([make_rule("b", 20, "DB2"), make_rule("a", 30, "HDD")])
    choice = view(rules=rules).choose(Properties())
    assert choice is not None
    assert (choice.device, choice.rule) == ("HDD", "a")


def test_without_a_match_the_default_is_taken_and_without_a_default_the_best_status() -> None:
    rules = RuleSet.of([make_rule("a", 30, "HDD", "SIZE > 10")])
    by_status = view(rules=rules).choose(Properties())
    by_default = view(rules=rules).choose(Properties(), default="DB1")
    assert by_status is not None
    assert by_default is not None
    assert (by_status.device, by_status.ground) == ("DB2", "status")
    assert (by_default.device, by_default.ground) == ("DB1", "default")


@pytest.mark.parametrize("strategy", [FIRST, MEAN, SUM, BIASED, FUZZY])
def test_a_device_that_cannot_be_used_is_passed_over(strategy: Strategy) -> None:
    states = STATES | {"MEMORY": DeviceState(usable=False), "GRID": DeviceState(usable=False)}
    message = Properties(client_id="privileged")
    view = Chooser(PATENT, strategy).view(states)
    choice = view.choose(message, default="MEMORY")
    assert choice is not None
    assert choice.device == "HDD"
    assert "MEMORY" not in [each.device for each in view.ranked(message, default="MEMORY")]
    assert [each.device for each in view.ranked(message, without=["HDD"])] == ["DB2", "DB1"]


@pytest.mark.parametrize("strategy", [FIRST, MEAN, SUM, BIASED, FUZZY])
def test_where_only_rules_of_unusable_devices_are_true_it_is_as_if_none_were(
    strategy: Strategy,
) -> None:
    rules = RuleSet.of([make_rule("a", 90, "HDD")])
    states = STATES | {"HDD": DeviceState(usable=False)}
    choice = Chooser(rules, strategy).view(states).choose(Properties(), default="DB1")
    assert choice is not None
    assert (choice.device, choice.ground) == ("DB1", "default")


def test_no_usable_device_is_no_choice() -> None:
    assert Chooser(PATENT).view({}).choose(Properties()) is None


def test_a_rule_that_is_switched_off_does_not_count() -> None:
    rules = PATENT.enabling("W-005", enabled=False)
    choice = view(rules=rules).choose(Properties(size=10))
    assert choice is not None
    assert choice.rule == "W-002"


def test_a_new_version_and_a_new_status_leave_what_is_in_use_as_it_was() -> None:
    before = view()
    after = Chooser(PATENT.without("W-005")).view(STATES | {"HDD": DeviceState(status=-100)})
    message = Properties(size=10)
    assert [each.device for each in (before.choose(message), after.choose(message)) if each] == [
        "MEMORY",
        "HDD",
    ]
    assert before.chooser.rules.version < after.chooser.rules.version


def test_a_strategy_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidSpec):
        Strategy(softness=2)
