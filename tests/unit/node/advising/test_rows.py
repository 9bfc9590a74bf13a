"""Rows of a plan by columns: what cannot be one is marked, whatever is in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbmq.feed.plans import PLANS
from ebbmq.node.advising.rows import COLUMNS, rows_of
from tests.advice import plan_row


class Text(str):
    """A string of somebody's own kind."""


def of(*rows: dict[str, Any]) -> np.ndarray:
    return rows_of({name: [row[name] for row in rows] for name in COLUMNS})


def test_what_is_read_are_columns_of_the_table() -> None:
    assert set(COLUMNS) <= set(PLANS.names)


def test_a_row_is_read_as_it_was_written() -> None:
    (row,) = of(plan_row("a-1f", target=2, value=3.5, to_tier="", reason="why " * 100))
    assert (row["pid"], row["seq"], row["target"], row["value"]) == (10, 31, 2, 3.5)
    assert row["to_tier"] is None
    assert len(row["reason"]) == 200
    assert row["is_valid"]


def test_a_row_holds_what_its_values_stand_for() -> None:
    texts = {"queue": Text("q"), "to_tier": np.str_("slow"), "reason": Text("why")}
    (row,) = of(plan_row("1-1", **texts, until_ms=np.int64(5), value=np.float32(0.5)))
    assert row["is_valid"]
    assert (row["until_ms"], row["value"]) == (5, 0.5)
    assert {type(row[name]) for name in texts} == {str}


@pytest.mark.parametrize("value", [None, "much", 10**400, [1.0]])
def test_what_is_worth_no_number_is_worth_nothing(value: Any) -> None:
    (row,) = of(plan_row("1-1", value=value))
    assert (row["is_valid"], row["value"]) == (True, 0.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"message_id": None},
        {"message_id": "1_1"},
        {"message_id": "1-1 "},
        {"message_id": ""},
        {"queue": None},
        {"action": None},
        {"action": "burn"},
        {"target": 0},
        {"target": 17},
        {"target": None},
        {"generation": -1},
        {"generation": None},
        {"policy_version": None},
        {"decided_at_ms": -1},
        {"until_ms": 1 << 70},
        {"until_ms": None},
        {"until_ms": "tomorrow"},
        {"until_ms": 1.5},
        {"queue": "\ud800"},
        {"queue": 0},
        {"action": ["archive"]},
        {"to_tier": "caf\udce9"},
        {"to_tier": 5},
        {"to_tier": ["fast"]},
        {"reason": "caf\udce9"},
        {"reason": b"why"},
        {"message_id": "1-1\udce9"},
    ],
)
def test_what_cannot_be_a_row_is_marked_and_others_are_not(changed: dict[str, Any]) -> None:
    rows = of(plan_row("1-1"), plan_row("1-1") | changed, plan_row("1-2"))
    assert rows["is_valid"].tolist() == [True, False, True]
