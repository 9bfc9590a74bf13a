"""What docs/rules.md says of rules is what they do."""

import re
from pathlib import Path

import pytest

from ebbmq.policy.rules.choose import Chooser, Strategy
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.file import read_lines
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet, make_rule

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()
STATES = {
    "HDD": DeviceState(status=-10),
    "DB1": DeviceState(status=-20),
    "GRID": DeviceState(status=-30),
    "MEMORY": DeviceState(),
    "DB2": DeviceState(),
}


def the_rules() -> RuleSet:
    block = re.search(r"```\n# storage.rules\n(.*?)```", PAGE, re.S)
    assert block is not None
    read = read_lines(block[1])
    assert read.problems == ()
    assert len(read.rules) == 8
    return RuleSet.of(read.rules)


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_adjusted_weights_of_the_page_are_right() -> None:
    names, _, adjusted = rows("Status")
    rules = the_rules().rules
    for name, shown in zip(names[1:], adjusted[1:], strict=True):
        assert rules[name].weight + STATES[rules[name].device].status == float(shown)


@pytest.mark.parametrize(("column", "combine"), [(2, "mean"), (3, "sum"), (4, "biased")])
def test_the_aggregates_of_the_page_are_right(column: int, combine: str) -> None:
    rules = the_rules().having(make_rule("W-002", 60, "HDD", "TYPE in (BYTE, TEXT)"))
    message = Properties(
        size=50, type="TEXT", client_id="privileged", headers={"asd": "", "locator": "slow-db"}
    )
    view = Chooser(rules, Strategy(kind="aggregate", combine=combine)).view(STATES)
    scores = {each.device: each.score for each in view.ranked(message) if each.ground == "rules"}
    shown = {cells[0]: float(cells[column]) for cells in rows("Strategies")[2:]}
    assert scores == shown


def test_every_keyword_is_on_the_page() -> None:
    table = "\n".join(" ".join(cells) for cells in rows("What a rule says"))
    assert set(re.findall(r"`([A-Z_]+)[`(]", table)) - {"BYTE", "QUEUE", "TOPIC"} == set(
        KEYWORDS
    ) - {"QUEUE"}
