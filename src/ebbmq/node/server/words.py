"""Durations and sizes as people say them."""

from __future__ import annotations

from typing import Final

from ebbmq import limits

_SHORT_MS: Final = 0.1
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """A duration as people say it: the two largest units."""
    if seconds < 1:
        return f"{round(seconds * 1_000)} ms"
    whole = int(seconds)
    said: list[str] = []
    for worth, unit in _UNITS:
        if whole >= worth or said:
            said.append(f"{whole // worth} {unit}")
            whole %= worth
    return " ".join(said[:2])


def latency(ms: float) -> str:
    """How long a call takes: milliseconds, or where those are too many digits, millionths."""
    return f"{ms:g} ms" if ms >= _SHORT_MS else f"{1_000 * ms:.2g} \N{MICRO SIGN}s"


def size(nbytes: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < limits.KIB:
            return f"{nbytes:.0f} {unit}"
        nbytes /= limits.KIB
    return f"{nbytes:.1f} GiB"
