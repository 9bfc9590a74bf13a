"""The demo's picture: which work was on time, and what was waiting."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from ebbmq.cli.demo import Story, Tally

NAMES: Final = {"fifo": "FIFO", "decaying": "decaying importance"}
# Okabe and Ito's vermilion and blue: told apart by every kind of colour vision, and in grey.
COLOURS: Final = {"fifo": "#D55E00", "decaying": "#0072B2"}
QUIET: Final = "#6b6b6b"
#: Messages drawn as one layer, important ones at the bottom in the colour of their queue.
LAYERS: Final = ((8, 10, ""), (4, 7, "#a9a9a9"), (1, 3, "#dddddd"))


def is_available() -> bool:
    """Whether matplotlib is installed; it is an extra."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(story: Story, path: Path) -> None:
    """Save the picture; its titles say what was found."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an optional dependency, slow to import

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    figure.suptitle(
        "Three times more work than the consumers can do: the same messages, two queues",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
    )
    first, *others = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _draw_on_time(first, story.tallies)
    top = 1.15 * max(
        sum(by_importance.values())
        for tally in story.tallies.values()
        for _, by_importance in tally.waiting
    )
    for axis, (queue, tally) in zip(others, story.tallies.items(), strict=True):
        _draw_waiting(axis, queue, tally)
        axis.set(xlim=(0, story.seconds), ylim=(0, top), xlabel="seconds")
    for axis in (first, *others):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=QUIET)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")


def _draw_on_time(axis: Axes, tallies: dict[str, Tally]) -> None:
    importances = list(range(1, 11))
    axis.axvspan(7.5, 10.5, color="#f0f0f0", zorder=0, lw=0)
    axis.text(9, 1.04, "important", ha="center", color=QUIET)
    heads = []
    for queue, tally in tallies.items():
        shares = [tally.on_time[i] / max(1, tally.published[i]) for i in importances]
        axis.plot(importances, shares, "-o", color=COLOURS[queue], lw=2.2, ms=5, clip_on=False)
        # The decaying curve climbs to the right: its name fits left of the climb.
        at = int(np.argmax(np.array(shares) > max(shares) / 2)) if queue == "decaying" else 1
        axis.annotate(
            NAMES[queue],
            (importances[at], shares[at]),
            xytext=(-8, 4) if queue == "decaying" else (0, 9),
            textcoords="offset points",
            ha="right" if queue == "decaying" else "center",
            color=COLOURS[queue],
            fontweight="bold",
        )
        on_time, of = tally.on_time_of(range(8, 11))
        heads.append(f"{on_time / max(1, of):.0%} {NAMES[queue]}")
    axis.set_title("Important work on time: " + ",\n".join(heads), loc="left", fontweight="bold")
    axis.set(xlim=(0.5, 10.5), ylim=(0, 1.12), xticks=importances, xlabel="importance")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axis.grid(axis="y", color="#e6e6e6", lw=0.8)


def _draw_waiting(axis: Axes, queue: str, tally: Tally) -> None:
    times = [at_s for at_s, _ in tally.waiting]
    counts = np.array(
        [
            [sum(found.get(i, 0) for i in range(low, high + 1)) for _, found in tally.waiting]
            for low, high, _ in LAYERS
        ]
    )
    layers = axis.stackplot(
        times,
        counts,
        colors=[colour or COLOURS[queue] for *_, colour in LAYERS],
        labels=[f"importance {low} to {high}" for low, high, _ in LAYERS],
        lw=0,
    )
    axis.legend(handles=layers[::-1], loc="upper right", frameon=False, fontsize=8.5)
    name = NAMES[queue]
    axis.set_title(
        f"{name[0].upper()}{name[1:]}: up to {int(counts[0].max()):,}\n"
        f"important messages wait, of {int(counts.sum(axis=0).max()):,}",
        loc="left",
        fontweight="bold",
    )
