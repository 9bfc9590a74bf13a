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
    """Labels of an axis, and names of dots and lines, that stand on each other."""
    found = []
    for axis in [*figure.axes, *(close for each in figure.axes for close in each.child_axes)]:
        for texts in (axis.get_xticklabels(), axis.get_yticklabels(), list(axis.texts)):
            found += [
                (one, other)
                for (one, first), (other, second) in combinations(boxes(texts), 2)
                if first.overlaps(second)
            ]
    return found


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
    figure = picture([*told[:2], *priced], Goal(minimise="cost"))
    left, right = figure.axes
    assert {text.get_text() for text in left.texts} == {"best", "best: a"}
    assert {text.get_text() for text in right.texts} == {"best", "fifo", "importance"}


@pytest.mark.parametrize("worths", [(528, 706), (996, 1_000), (1_000, 1_000), (0, 1_000)])
def test_shares_at_an_axis_are_what_they_say_and_never_above_all_of_it(
    worths: tuple[int, int],
) -> None:
    outcomes = [outcome(f"{n}", worth, n, [2, 5]) for n, worth in enumerate(worths, 1)]
    axis = picture(outcomes, Goal()).axes[0]
    low, high = axis.get_ylim()
    labels = {
        place: label.get_text()
        for place, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
        if low <= place <= high
    }
    assert all(not text for place, text in labels.items() if place > 1.0001)
    told = {place: text for place, text in labels.items() if place <= 1.0001}
    assert len(told) > 1
    for place, text in told.items():
        assert float(text.removesuffix("%")) == pytest.approx(100 * place, abs=1e-6)


def test_policies_that_come_to_the_same_are_all_named_and_nothing_is_above_all_of_it() -> None:
    same = [outcome(name, 1_000, 3.8e-3, [2, 5, 9]) for name in ("a", "fifo", "importance")]
    figure = picture(same, Goal())
    assert overlapping(figure) == []
    left, right = figure.axes
    assert {text.get_text() for text in left.texts} == {"best", "best: a", "fifo", "importance"}
    assert left.get_xlabel() == "bytes times seconds kept"
    assert left.get_ylim()[1] < 1.05
    # Nobody published with importance 1: names stand where the lines begin.
    assert all(0.8 < text.get_position()[1] <= 1.0 for text in right.texts)
