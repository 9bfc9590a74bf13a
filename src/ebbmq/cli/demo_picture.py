"""The demo's picture: who was on time, how old work was when done, and what was waiting."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ebbmq.cli.demo_report import Fate, QueueReport, share
from ebbmq.cli.demo_story import (
    CALM_UNTIL,
    DECAYING,
    FIFO,
    IMPORTANT,
    SURGE,
    SURGE_UNTIL,
    Plan,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

# Okabe and Ito's vermilion and blue: told apart by every kind of colour vision, and in grey.
COLOURS: Final = {FIFO: "#D55E00", DECAYING: "#0072B2"}
NAMES: Final = {FIFO: "FIFO", DECAYING: "decaying importance"}
INK: Final = "#222222"
QUIET: Final = "#6b6b6b"
SURGE_SHADE: Final = "#f3efe6"
STYLE: Final[dict[Any, object]] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
}


class Group(NamedTuple):
    """Messages drawn as one layer; without a colour they take their queue's."""

    low: int
    high: int
    colour: str


GROUPS: Final = (Group(1, 3, "#dddddd"), Group(4, 7, "#a9a9a9"), Group(IMPORTANT, 10, ""))


def is_available() -> bool:
    """Whether matplotlib is installed; it is an extra."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(plan: Plan, reports: dict[str, QueueReport], path: Path) -> None:
    """Save the picture; its titles say what was found."""
    import matplotlib as mpl  # noqa: PLC0415  # an optional dependency, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure(figsize=(11, 7.6), layout=layout)
        surge_s = plan.seconds * (SURGE_UNTIL - CALM_UNTIL)
        figure.suptitle(
            f"{surge_s:.0f} seconds of {SURGE:.0f}x overload: "
            "the same messages, the same consumers, two queues",
            x=0.01,
            ha="left",
            fontsize=14,
            fontweight="bold",
        )
        axes = figure.subplots(2, 2)
        _draw_on_time(axes[0, 0], reports)
        _draw_age(axes[0, 1], plan, reports)
        peak = max(_waiting(plan, report)[1].sum(axis=0).max() for report in reports.values())
        for axis, queue in zip(axes[1], (FIFO, DECAYING), strict=True):
            _draw_waiting(axis, plan, reports[queue], float(peak))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, facecolor="white")


def _draw_on_time(axis: Axes, reports: dict[str, QueueReport]) -> None:
    importances = list(range(1, 11))
    axis.axvspan(IMPORTANT - 0.5, 10.5, color="#f0f0f0", zorder=0, lw=0)
    axis.text(9, 1.055, "important", ha="center", color=QUIET, fontsize=9.5)
    for queue, report in reports.items():
        shares = [share(*report.on_time([importance])) for importance in importances]
        axis.plot(importances, shares, "-o", color=COLOURS[queue], lw=2.2, ms=5, clip_on=False)
        # The decaying curve climbs to the right: its name fits left of the climb.
        if queue == DECAYING:
            at = int(np.argmax(np.array(shares) > max(shares) / 2))
            _label(axis, queue, (importances[at], shares[at]), (-8, 4))
        else:
            _label(axis, queue, (importances[1], shares[1]), (0, 9))
    found = {queue: share(*report.important_on_time()) for queue, report in reports.items()}
    axis.set_title(
        f"Important work on time: {found[FIFO]:.0%} in FIFO order,\n"
        f"{found[DECAYING]:.0%} by decaying importance"
    )
    axis.set(xlim=(0.5, 10.5), ylim=(0, 1.12), xticks=importances, xlabel="importance")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %\non time"])
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", color="#e6e6e6", lw=0.8)
    axis.set_axisbelow(True)


def _label(
    axis: Axes, queue: str, at: tuple[float, float], offset_points: tuple[float, float]
) -> None:
    """A queue's name beside its marks, in their colour: no legend to look up."""
    axis.annotate(
        NAMES[queue],
        at,
        xytext=offset_points,
        textcoords="offset points",
        ha="right" if offset_points[0] < 0 else "center",
        color=COLOURS[queue],
        fontweight="bold",
    )


def _draw_age(axis: Axes, plan: Plan, reports: dict[str, QueueReport]) -> None:
    ttl_s = plan.ttl_ms / 1_000
    top = ttl_s * 1.25
    _shade_surge(axis, plan, top)
    late = {}
    for queue, report in reports.items():
        done = [f for f in report.fates if f.outcome == "acked" and f.importance >= IMPORTANT]
        late[queue] = share(sum(not fate.on_time for fate in done), len(done))
        axis.scatter(
            [fate.left_s or 0.0 for fate in done],
            [(fate.left_s or 0.0) - fate.published_s for fate in done],
            s=6,
            alpha=0.45,
            lw=0,
            color=COLOURS[queue],
        )
    axis.axhline(ttl_s, color=INK, lw=1.1, ls=(0, (4, 3)))
    axis.text(plan.seconds * 0.01, ttl_s * 0.98, "of no use\nafter this", va="top", fontsize=9.5)
    middle_s = plan.seconds * (CALM_UNTIL + SURGE_UNTIL) / 2
    _label(axis, FIFO, (middle_s, ttl_s * 0.86), (0, 0))
    _label(axis, DECAYING, (middle_s, ttl_s * 0.3), (0, 0))
    axis.set_title(
        f"Done, but too late: {late[FIFO]:.0%} of important work\n"
        f"in FIFO order, {late[DECAYING]:.0%} by decaying importance"
    )
    axis.set(xlim=(0, plan.seconds), ylim=(0, top), xlabel="seconds")
    axis.set_ylabel("age when done, seconds")


def _draw_waiting(axis: Axes, plan: Plan, report: QueueReport, peak: float) -> None:
    times, counts = _waiting(plan, report)
    top = peak * 1.15
    _shade_surge(axis, plan, top)
    # Important work at the bottom, where its height can be read off the axis.
    layers = list(zip(GROUPS, counts, strict=True))[::-1]
    colours = [group.colour or COLOURS[report.queue] for group, _ in layers]
    axis.stackplot(times, [count for _, count in layers], colors=colours, lw=0)
    at = int(len(times) * (CALM_UNTIL + SURGE_UNTIL) / 2)
    base = 0.0
    for group, count in layers:
        if count[at] > top * 0.06:
            axis.text(
                times[at],
                base + count[at] / 2,
                f"importance {group.low} to {group.high}",
                ha="center",
                va="center",
                fontsize=9.5,
                color=INK if group.colour else "white",
            )
        elif not group.colour:
            axis.annotate(
                f"importance {group.low} to {group.high}",
                (plan.seconds * SURGE_UNTIL * 0.98, float(count[at]) / 2),
                xytext=(plan.seconds * 0.99, top * 0.16),
                ha="right",
                fontsize=9.5,
                color=COLOURS[report.queue],
                arrowprops={"arrowstyle": "-", "color": COLOURS[report.queue], "lw": 1},
            )
        base += float(count[at])
    name = NAMES[report.queue]
    axis.set_title(
        f"{name[0].upper()}{name[1:]}: up to {int(counts[-1].max()):,}\n"
        f"important messages wait, of {int(counts.sum(axis=0).max()):,} in all"
    )
    axis.set(xlim=(0, plan.seconds), ylim=(0, top), xlabel="seconds", ylabel="messages waiting")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _shade_surge(axis: Axes, plan: Plan, top: float) -> None:
    start, end = plan.seconds * CALM_UNTIL, plan.seconds * SURGE_UNTIL
    axis.axvspan(start, end, color=SURGE_SHADE, zorder=0, lw=0)
    axis.text((start + end) / 2, top * 0.98, "overload", ha="center", va="top", color=QUIET)


def _waiting(plan: Plan, report: QueueReport) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """How many messages of each group were in the queue, at 400 instants of the story."""
    times = np.linspace(0, plan.seconds, 400)
    counts = [
        _present([fate for fate in report.fates if low <= fate.importance <= high], times)
        for low, high, _ in GROUPS
    ]
    return times, np.array(counts)


def _present(fates: list[Fate], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Messages that had come and not yet left, at each instant."""
    came = np.sort([fate.published_s for fate in fates])
    left = np.sort([fate.left_s for fate in fates if fate.left_s is not None])
    return np.searchsorted(came, times, "right") - np.searchsorted(left, times, "right")
