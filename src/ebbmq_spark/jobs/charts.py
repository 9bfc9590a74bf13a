"""Charts as SVG text: bars, stacked bars and lines; colours come from the page's style."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH: Final = 500
_LABEL: Final = 172
_AFTER: Final = 100
_ROW: Final = 26
_BAR: Final = 16
_LINE_WIDTH: Final = 300
_LINE_HEIGHT: Final = 110
_TICKS: Final = 2


class Segment(NamedTuple):
    """A part of a bar."""

    value: float
    colour: str
    title: str


class Bar(NamedTuple):
    """A bar with its label, and what stands behind it."""

    label: str
    segments: Sequence[Segment]
    after: str


class Line(NamedTuple):
    """Values over time, of one colour."""

    points: Sequence[tuple[float, float]]
    colour: str
    title: str


def bars(rows: Sequence[Bar], title: str) -> str:
    """Horizontal bars, each from several segments."""
    most = max((sum(part.value for part in row.segments) for row in rows), default=0) or 1
    space = WIDTH - _LABEL - _AFTER
    out = []
    for number, row in enumerate(rows):
        top, left = number * _ROW, float(_LABEL)
        middle = top + _ROW / 2 + 4
        out.append(_text(_LABEL - 10, middle, row.label, "end"))
        for part in row.segments:
            width = part.value / most * space
            if width > 0:
                # What is there is seen, however little it is.
                width = max(width, 1.5)
                out.append(
                    f'<rect class="{part.colour}" x="{left:.1f}" y="{top + (_ROW - _BAR) / 2:.1f}" '
                    f'width="{width:.1f}" height="{_BAR}" rx="2">'
                    f"<title>{escape(part.title)}</title></rect>"
                )
                left += width
        out.append(_text(left + 8, middle, row.after, "start", "quiet"))
    return _svg(WIDTH, len(rows) * _ROW, "".join(out), title)


def lines(
    of: Sequence[Line],
    span: tuple[float, float],
    title: str,
    ends: tuple[str, str],
    told: Callable[[float], str],
) -> str:
    """Lines over the same span of time, from 0 up, of values that are told like this.

    `ends` says where the span begins and ends.
    """
    most = max((value for line in of for _, value in line.points), default=0) or 1
    low, high = span
    left, bottom = 44, _LINE_HEIGHT - 18

    def place(at: float, value: float) -> tuple[float, float]:
        share = (at - low) / (high - low) if high > low else 0.5
        return left + share * (_LINE_WIDTH - left - 8), bottom - value / most * (bottom - 8)

    out = []
    for tick in range(_TICKS + 1):
        value = most * tick / _TICKS
        _, y = place(low, value)
        out.append(f'<line class="grid" x1="{left}" x2="{_LINE_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(_text(left - 6, y + 4, told(value), "end", "quiet"))
    for number, line in enumerate(of):
        spots = [place(*point) for point in line.points]
        out.append(_line(line, spots, len(of) - 1 - number, told))
    foot = _LINE_HEIGHT - 2
    if ends[0] == ends[1]:
        out.append(_text(place(low, 0)[0], foot, ends[0], "middle", "quiet"))
    else:
        out.append(_text(left, foot, ends[0], "start", "quiet"))
        out.append(_text(_LINE_WIDTH - 2, foot, ends[1], "end", "quiet"))
    return _svg(_LINE_WIDTH, _LINE_HEIGHT, "".join(out), title)


def _line(
    line: Line, spots: Sequence[tuple[float, float]], above: int, told: Callable[[float], str]
) -> str:
    """A line, the wider the more lines are drawn above it: of two that are the same both show."""
    head = f"<title>{escape(line.title)}</title>"
    out = ""
    if len(spots) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out = (
            f'<polyline class="{line.colour}" style="stroke-width:{1.8 + 2.4 * above:.1f}" '
            f'points="{path}">{head}</polyline>'
        )
    return out + "".join(
        f'<circle class="{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="{2 + 1.6 * above:.1f}">'
        f"<title>{escape(line.title)}: {told(value)}</title></circle>"
        for (x, y), (_, value) in zip(spots, line.points, strict=True)
    )


def milliseconds(value: float) -> str:
    """A duration, short."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} ms"


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    of = f' class="{colour}"' if colour else ""
    return f'<text{of} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: float, inside: str, title: str) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'aria-label="{escape(title)}">{inside}</svg>'
    )
