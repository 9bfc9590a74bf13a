"""The picture of a sweep: whatever the figures are, it can be read."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq_spark.simulation import front
from ebbmq_spark.simulation.outcome import Outcome
from ebbmq_spark.simulation.picture import drawn
from ebbmq_spark.simulation.study import QueueStudy
from ebbmq_spark.simulation.sweep import Goal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox


def outcome(policy: str, worth: int, byte_days: float, importances: list[int]) -> Outcome:
    there = [importances.count(importance) * 100 for importance in range(1, 11)]
    return Outcome(
        queue="q", policy=policy, messages=sum(there), done=worth, on_time=worth, worth=1_000,
        worth_done_on_time=worth, published_by_importance=there,
        on_time_by_importance=[count * worth // 1_000 for count in there], left={"stale": 0},
        wait_p50_ms=0.0, wait_p99_ms=0.0, peak_messages=1, byte_days=byte_days,
        byte_days_by_tier={}, cost=None, resolution_ms=1,
    )  # fmt: skip


def picture(outcomes: list[Outcome], goal: Goal) -> Figure:
    figure = drawn([QueueStudy("q", outcomes, {}, front.choose(outcomes, goal))], goal)
    figure.set_dpi(150)
    figure.canvas.draw()
    return figure


def boxes(texts: list[Text]) -> list[tuple[str, Bbox]]:
    return [
        (text.get_text(), text.get_window_extent())
        for text in texts
        if text.get_visible() and text.get_text()
    ]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Labels of an axis that stand on each other."""
    return [
        (one, other)
        for axis in figure.axes
        for texts in (axis.get_xticklabels(), axis.get_yticklabels())
        for (one, first), (other, second) in combinations(boxes(texts), 2)
        if first.overlaps(second)
    ]


def named(axis: Axes) -> set[str]:
    return set(axis.get_legend_handles_labels()[1])


@pytest.mark.parametrize("size", [3.8e-3, 7.3, 2.4e3, 8.1e4, 3.3e5, 5.2e8, 9.9e12])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.9])
def test_labels_do_not_stand_on_each_other(size: float, spread: float) -> None:
    outcomes = [
        outcome("fifo", 213, size, [1, 5, 9]),
        outcome("importance", 636, size, [1, 5, 9]),
        *(
            outcome(f"{number}", 690 + number, size * (1 - spread + spread * number / 50), [1, 5])
            for number in range(12)
        ),
    ]
    assert overlapping(picture(outcomes, Goal())) == []
    assert overlapping(picture(outcomes, Goal(minimise="let_go_share"))) == []


def test_a_policy_without_the_figure_that_is_drawn_has_no_dot() -> None:
    told = [outcome(name, 900, 1.0, [2, 5]) for name in ("fifo", "importance", "a", "b")]
    priced = [msgspec.structs.replace(each, cost=float(n)) for n, each in enumerate(told) if n > 1]
    left, right = picture([*told[:2], *priced], Goal(minimise="cost")).axes
    assert named(left) == {"best"}
    assert named(right) == {"best", "fifo", "importance"}


def test_policies_that_come_to_the_same_are_all_named() -> None:
    same = [outcome(name, 1_000, 3.8e-3, [2, 5, 9]) for name in ("a", "fifo", "importance")]
    figure = picture(same, Goal())
    assert overlapping(figure) == []
    left, right = figure.axes
    assert named(left) == named(right) == {"best", "fifo", "importance"}
    assert left.get_title(loc="left") == "q: 100.0% at best, 100.0% in the order of arrival\na"
