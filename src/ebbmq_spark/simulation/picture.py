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

    from ebbmq_spark.simulation.outcome import Outcome
    from ebbmq_spark.simulation.study import QueueStudy
    from ebbmq_spark.simulation.sweep import Goal

    Place = tuple[float, float]

# Okabe and Ito's colours: told apart by every kind of colour vision, and in grey.
BEST: Final = "#0072B2"
COLOURS: Final = {"fifo": "#D55E00", "importance": "#CC79A7"}
INK: Final = "#222222"
QUIET: Final = "#6b6b6b"
FAINT: Final = "#c9c9c9"
ROWS_MAX: Final = 6
FRONT_MIN: Final = 2
SHARE_MAX: Final = 1.1
#: A front of less than this part of the panel is drawn once more, in the emptiest of these places.
CLOSE_BELOW: Final = 0.3
CLOSE_BOXES: Final = ((0.3, 0.22, 0.48, 0.46), (0.12, 0.12, 0.48, 0.46), (0.48, 0.4, 0.48, 0.46))
TITLE_PAD: Final = 9
TITLE_CHARS: Final = 54
#: Of the policy below it: letters of a line, and points that one is tall.
POLICY_CHARS: Final = 70
POLICY_POINTS: Final = 13
STYLE: Final[dict[Any, object]] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": TITLE_PAD,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
}
AXES: Final = {
    "worth_on_time": "importance done on time",
    "on_time_share": "messages done on time",
    "let_go_share": "messages let go undone",
    "stale_share": "messages gone stale",
    "wait_p99_ms": "99 % wait less than, ms",
    "peak_messages": "messages waiting at most",
    "byte_days": "{unit} kept",
    "cost": "cost of storage",
}
#: Of bytes times days: how much one is of each unit, the largest first.
UNITS: Final = {
    "GB times days": 1e9,
    "MB times days": 1e6,
    "kB times days": 1e3,
    "bytes times days": 1.0,
    "bytes times seconds": 1 / 86_400,
}
#: A unit is used from this much of it on, so that what stands at an axis is short.
UNIT_MIN: Final = 0.1
#: How near a name may come to another one, and how far it then moves, in parts of the panel.
NAME_WIDE: Final = 0.2
NAME_TALL: Final = 0.06
_POINTS_TALL: Final = 230
#: The same in the panel of those that were on time.
LINES_APART: Final = 0.075
TICKS_MAX: Final = 7
CLOSE_TICKS_MAX: Final = 4
SHARES: Final = ("worth_on_time", "on_time_share", "let_go_share", "stale_share")


def draw(rows: Sequence[QueueStudy], goal: Goal, path: Path) -> None:
    """Save the picture."""
    kind = path.suffix.removeprefix(".") or "png"
    drawn(rows, goal).savefig(path, format=kind, dpi=150, facecolor="white")


def drawn(rows: Sequence[QueueStudy], goal: Goal) -> Figure:
    """The picture, a line of it for each of the first queues; titles say what was found."""
    import matplotlib as mpl  # noqa: PLC0415  # slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415

    shown = rows[:ROWS_MAX]
    with mpl.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.14)
        figure = Figure(figsize=(11.5, 4.6 * len(shown)), layout=layout)
        axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1.25, 1))
        for row, (left, right) in zip(shown, axes, strict=True):
            _draw_front(left, row, goal)
            _draw_on_time(right, row)
    return figure


def _draw_front(axis: Axes, row: QueueStudy, goal: Goal) -> None:
    unit = _unit(row, goal)
    places = {
        each.policy: _place(each, goal, unit)
        for each in row.outcomes
        if math.isfinite(value(each, goal.minimise))
    }
    front = [places[each.policy] for each in row.choice.front]
    spread = [x for x, _ in places.values()]
    room = (max(spread) - min(spread)) or abs(max(spread)) or 1.0
    axis.set_xlim(min(spread) - 0.06 * room, max(spread) + 0.08 * room)
    _set_heights(axis, [y for _, y in places.values()])
    axis.locator_params(axis="x", nbins=TICKS_MAX)
    marks = {name: COLOURS[name] for name in REFERENCES if name in places}
    marks.setdefault(row.choice.best.policy, BEST)
    _draw_dots(axis, places, front, marks)
    for name, side in ((goal.minimise, axis.xaxis), (goal.maximise, axis.yaxis)):
        if name in SHARES:
            side.set_major_formatter(_share)
    axis.set(xlabel=AXES[goal.minimise].format(unit=unit), ylabel=AXES[goal.maximise])
    axis.grid(color="#ececec", lw=0.8)
    axis.set_axisbelow(True)
    _set_title(axis, row, goal)
    _draw_close(axis, places, front, marks)


def _share(share: float, _: object = None) -> str:
    """What stands at an axis for a share; there is nothing above all of it."""
    return f"{100 * share:.6g}%" if share < 1 + 1e-9 else ""


def _set_heights(axis: Axes, shares: list[float]) -> None:
    """Some room above and below; there is nothing above all of it."""
    room = 0.08 * ((max(shares) - min(shares)) or 0.5)
    axis.set_ylim(min(shares) - room, min(max(shares) + room, 1.02))


def _unit(row: QueueStudy, goal: Goal) -> str | None:
    """In what to tell bytes times days."""
    if goal.minimise != "byte_days":
        return None
    most = max(value(each, goal.minimise) for each in row.outcomes)
    return next((name for name, size in UNITS.items() if most >= UNIT_MIN * size), list(UNITS)[-1])


def _place(outcome: Outcome, goal: Goal, unit: str | None) -> Place:
    size = 1.0 if unit is None else UNITS[unit]
    return value(outcome, goal.minimise) / size, value(outcome, goal.maximise)


def _draw_dots(
    axis: Axes, places: dict[str, Place], front: list[Place], marks: dict[str, str]
) -> None:
    dots = list(places.values())
    axis.scatter([x for x, _ in dots], [y for _, y in dots], s=20, color=FAINT, lw=0, zorder=2)
    axis.plot([x for x, _ in front], [y for _, y in front], "-o", color=INK, lw=1.2, ms=4)
    (low, high), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    named: list[Place] = []
    for name, colour in marks.items():
        x, y = places[name]
        axis.scatter([x], [y], s=70, color=colour, lw=0, zorder=4)
        # A name that would leave the panel on the right stands on the left.
        right = x > low + 0.75 * (high - low)
        across, above = (x - low) / (high - low), (y - bottom) / (top - bottom)
        up = (-4 if name in REFERENCES else -14) / _POINTS_TALL
        # One that would stand on another one stands below it.
        while any(
            abs(across - a) < NAME_WIDE and abs(above + up - b) < NAME_TALL for a, b in named
        ):
            up -= NAME_TALL
        named.append((across, above + up))
        axis.annotate(
            name if name in REFERENCES else "best",
            (x, y),
            xytext=(-9 if right else 9, up * _POINTS_TALL),
            textcoords="offset points",
            ha="right" if right else "left",
            color=colour,
            fontweight="bold",
            zorder=5,
            annotation_clip=True,
        )


def _draw_close(
    axis: Axes, places: dict[str, Place], front: list[Place], marks: dict[str, str]
) -> None:
    """The front once more, from close by, where it is small and the panel has room for it."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    width, height = right - left, top - bottom
    wide, tall = (front[-1][0] - front[0][0]) / width, (front[-1][1] - front[0][1]) / height
    if len(front) < FRONT_MIN or wide > CLOSE_BELOW or tall > CLOSE_BELOW:
        return
    scaled = [
        ((x - left) / (right - left), (y - bottom) / (top - bottom)) for x, y in places.values()
    ]

    def covered(box: tuple[float, float, float, float]) -> int:
        x, y, wide, tall = box
        return sum(x - 0.12 < a < x + wide and y - 0.1 < b < y + tall for a, b in scaled)

    close = axis.inset_axes(min(CLOSE_BOXES, key=covered))
    pad_x = 0.12 * (front[-1][0] - front[0][0]) or 1e-9
    pad_y = 0.25 * (front[-1][1] - front[0][1]) or 1e-3
    close.set_xlim(front[0][0] - pad_x, front[-1][0] + 2.5 * pad_x)
    close.set_ylim(front[0][1] - pad_y, front[-1][1] + pad_y)
    near = {name: colour for name, colour in marks.items() if name not in REFERENCES}
    _draw_dots(close, places, front, near)
    if top <= SHARE_MAX:
        close.yaxis.set_major_formatter("{x:.1%}")
    close.locator_params(axis="x", nbins=CLOSE_TICKS_MAX)
    close.tick_params(labelsize=8.5)
    close.set_title("the front from close by", fontsize=9.5, fontweight="normal", pad=4)
    close.grid(color="#ececec", lw=0.8)
    close.spines[:].set(visible=True, color=FAINT)


def _set_title(axis: Axes, row: QueueStudy, goal: Goal) -> None:
    """What was found, and below it, smaller, with which policy."""
    best = row.choice.best
    fifo = next((each for each in row.outcomes if each.policy == "fifo"), None)
    found = f"{row.queue}: {_shown(best, goal.maximise)} at best"
    if fifo is not None and fifo is not best:
        found += f", {_shown(fifo, goal.maximise)} in the order of arrival"
    policy = textwrap.wrap(f"best: {best.policy}", POLICY_CHARS)
    tall = POLICY_POINTS * len(policy)
    axis.set_title(textwrap.fill(found, TITLE_CHARS), pad=TITLE_PAD + tall)
    axis.annotate(
        "\n".join(policy),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, TITLE_PAD - 2),
        textcoords="offset points",
        va="bottom",
        color=QUIET,
        fontsize=9.5,
    )


def _shown(outcome: Outcome, name: str) -> str:
    number = value(outcome, name)
    return f"{number:.1%}" if name in SHARES else f"{number:,.0f}"


def _draw_on_time(axis: Axes, row: QueueStudy) -> None:
    importances = list(IMPORTANCES)
    best = row.choice.best
    drawn = [each for each in row.outcomes if each.policy in REFERENCES and each is not best]
    ends: list[tuple[float, str, str]] = []
    for each in [*drawn, best]:
        name = "best" if each.policy not in REFERENCES else each.policy
        colour = COLOURS.get(each.policy, BEST)
        shares = {
            importance: on_time / there
            for importance, on_time, there in zip(
                importances, each.on_time_by_importance, each.published_by_importance, strict=True
            )
            if there
        }
        axis.plot(
            list(shares), list(shares.values()), "-o", color=colour, lw=2.2, ms=5, clip_on=False
        )
        ends.append((next(iter(shares.values()), 0.0), name, colour))
    for height, (_, name, colour) in zip(_apart(sorted(ends)), sorted(ends), strict=True):
        axis.text(0.7, height, name, ha="right", va="center", color=colour, fontweight="bold")
    axis.set_title("On time, by importance")
    axis.set(xlim=(-2.3, 10.4), ylim=(-0.03, 1.05), xticks=importances, xlabel="importance")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", color="#e6e6e6", lw=0.8)
    axis.set_axisbelow(True)


def _apart(ends: list[tuple[float, str, str]]) -> list[float]:
    """Where names stand beside the left ends of lines: never on top of each other."""
    heights: list[float] = []
    for share, *_ in ends:
        heights.append(max(share, heights[-1] + LINES_APART) if heights else share)
    above = 1.0 + LINES_APART
    for number in reversed(range(len(heights))):
        above = heights[number] = min(heights[number], above - LINES_APART)
    return heights
