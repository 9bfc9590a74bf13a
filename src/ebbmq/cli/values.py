"""Values as people type and read them: durations, sizes, instants, `name=value` pairs."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

import click
from typing_extensions import override

from ebbmq import limits

UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": limits.DAY_MS}
#: Below, milliseconds are too many digits.
_SHORT_MS: Final = 0.1
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `5m`, `2h` or `7d`; a bare number is refused, it could mean either."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a duration; write a number and a unit: 500ms, 30s, 5m, 2h, 7d"
        )
    return round(float(match[1]) * UNIT_MS[match[2]])


def money(text: str) -> float:
    """Read an amount of money, zero or more."""
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise click.BadParameter(f"{text!r} is no amount of money; write 0 or more: 120 or 49.50")
    return amount


class Pair(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """`name=value`; in an environment variable one a line."""

    name = "name=value"
    envvar_list_splitter = "\n"

    @override
    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, separator, text = value.partition("=")
        if not separator or not name.strip():
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name.strip(), text


pair: Final = Pair()

# click names a function's type after the function; these names are what `--help` shows.
duration_ms.__name__ = "duration"
money.__name__ = "amount"


def show_duration(ms: float | None) -> str:
    """`350ms`, `4.2s`, `5m 03s`, `2h 05m`, `3d 04h`; `-` for none."""
    if ms is None:
        return "-"
    if ms < UNIT_MS["s"]:
        return f"{ms:.0f}ms"
    if ms < UNIT_MS["m"]:
        return f"{ms / 1_000:.1f}".removesuffix(".0") + "s"
    for big, small in (("m", "s"), ("h", "m"), ("d", "h")):
        whole, rest = divmod(int(ms), UNIT_MS[big])
        if big == "d" or whole < UNIT_MS["h" if big == "m" else "d"] // UNIT_MS[big]:
            rest //= UNIT_MS[small]
            return f"{whole}{big} {rest:02d}{small}" if rest else f"{whole}{big}"
    raise AssertionError("days have no upper bound")


def show_bytes(count: float) -> str:
    """`512 B`, `1.5 KiB`, `64.0 MiB`, `2.0 GiB`."""
    for unit, size in (("GiB", limits.GIB), ("MiB", limits.MIB), ("KiB", limits.KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def show_latency(ms: float) -> str:
    """`0.5 us`, `30 us`, `1.6 ms`."""
    return f"{ms:g} ms" if ms >= _SHORT_MS else f"{1_000 * ms:.2g} us"


def show_instant(at_ms: int | None) -> str:
    """An instant in the reader's own time zone, to the second; `-` for none."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_count(count: int, noun: str) -> str:
    """`1 message`, `2,500 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
