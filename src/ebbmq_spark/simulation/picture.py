"""A sweep as a picture: what each policy comes to, the front, and who is on time under the best."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any, Final

from ebbmq_spark.simulation.front import value
from ebbmq_spark.simulation.outcome import IMPORTANCES
from ebbmq_spark.simulation.sweep import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ebbmq_spark.simulation.study import QueueStudy
    from ebbmq_spark.simulation.sweep import Goal

# Okabe and Ito's colours: told apart by every kind of colour vision, and in grey.
BEST: Final = "#0072B2"
COLOURS: Final = {"fifo": "#D55E00", "importance": "#CC79A7"}
INK: Final = "#222222"
FAINT: Final = "#c9c9c9"
QUEUES_MAX: Final = 6
TITLE_CHARS: Final = 56
TICKS_MAX: Final = 6
STYLE: Final[dict[Any, object]] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "legend.frameon": False,
}
AXES: Final = {
    "worth_on_time": "importance done on time",
    "on_time_share": "messages done on time",
    "let_go_share": "messages let go undone",
    "stale_share": "messages gone stale",
    "wait_p99_ms": "99 % wait less than, ms",
    "peak_messages": "messages waiting at most",
    "byte_days": "MB times days kept",
    "cost": "cost of storage",
}
#: Of what is minimised; what is maximised always is one.
SHARES: Final = ("let_go_share", "stale_share")


def draw(studies: Sequence[QueueStudy], goal: Goal, path: Path) -> None:
    """Save the picture."""
    kind = path.suffix.removeprefix(".") or "png"
    drawn(studies, goal).savefig(path, format=kind, dpi=150, facecolor="white")


def drawn(studies: Sequence[QueueStudy], goal: Goal) -> Figure:
    """The picture, a line of it for each of the first queues; titles say what was found."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    shown = studies[:QUEUES_MAX]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 4.6 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1.25, 1))
        for study, (left, right) in zip(shown, axes, strict=True):
            _draw_front(left, study, goal)
            _draw_on_time(right, study)
            shares = [left.yaxis, right.yaxis]
            for axis in [*shares, left.xaxis] if goal.minimise in SHARES else shares:
                axis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _draw_front(axis: Axes, study: QueueStudy, goal: Goal) -> None:
    """Every policy that can be compared as a dot, and the front as a line."""
    size = 1e6 if goal.minimise == "byte_days" else 1.0
    places = {
        each.policy: (value(each, goal.minimise) / size, value(each, goal.maximise))
        for each in study.outcomes
    }
    dots = [each for each in places.values() if math.isfinite(each[0])]
    axis.scatter([x for x, _ in dots], [y for _, y in dots], s=20, color=FAINT, zorder=2)
    front = [places[each.policy] for each in study.choice.front]
    axis.plot([x for x, _ in front], [y for _, y in front], "-o", color=INK, lw=1.2, ms=4)
    for name, policy, colour in _marked(study):
        if math.isfinite(places[policy][0]):
            x, y = places[policy]
            axis.scatter(x, y, s=70, color=colour, label=name, zorder=4)
    axis.locator_params(nbins=TICKS_MAX)
    axis.set(xlabel=AXES[goal.minimise], ylabel=AXES[goal.maximise])
    axis.set_title(_title(study, goal))
    axis.legend()


def _draw_on_time(axis: Axes, study: QueueStudy) -> None:
    """The share that was done on time of each importance."""
    for name, policy, colour in _marked(study):
        outcome = study.outcome(policy)
        pairs = zip(outcome.on_time_by_importance, outcome.published_by_importance, strict=True)
        shares = [on_time / there if there else math.nan for on_time, there in pairs]
        axis.plot(list(IMPORTANCES), shares, "-o", color=colour, lw=2.2, ms=5, label=name)
    axis.set_title("On time, by importance")
    axis.set(xlabel="importance", xticks=list(IMPORTANCES), ylim=(-0.03, 1.05))
    axis.legend()


def _marked(study: QueueStudy) -> list[tuple[str, str, str]]:
    """What has a name in the picture: the name, the policy, its colour."""
    tried = {each.policy for each in study.outcomes}
    marked = [(name, name, colour) for name, colour in COLOURS.items() if name in tried]
    best = study.choice.best.policy
    return marked if best in REFERENCES else [*marked, ("best", best, BEST)]


def _title(study: QueueStudy, goal: Goal) -> str:
    """What was found, and with which policy."""
    best = study.choice.best
    most, fifo = (value(each, goal.maximise) for each in (best, study.outcome("fifo")))
    found = f"{study.queue}: {most:.1%} at best, {fifo:.1%} in the order of arrival"
    return "\n".join(textwrap.wrap(found, TITLE_CHARS) + textwrap.wrap(best.policy, TITLE_CHARS))
