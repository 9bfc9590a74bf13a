"""One figure: its value, the bar it must reach, and the settings it was measured with."""

from __future__ import annotations

from typing import Any, Final

import msgspec

#: Microseconds in each unit of time.
TIME_UNITS_US: Final = {"us": 1.0, "ms": 1_000.0, "s": 1_000_000.0}


class Row(msgspec.Struct, frozen=True):
    """A measured figure. `bar` reads as "value must be ..."; without one `ok` is None."""

    name: str
    value: float
    unit: str
    bar: str | None = None
    ok: bool | None = None
    #: The value in runs of the calibration loop in the same process, for units of time.
    multiple: float | None = None
    settings: dict[str, Any] = {}

    def with_multiple_of(self, calibration_us: float) -> Row:
        """The same figure with its time as a multiple of the calibration loop."""
        if self.unit not in TIME_UNITS_US:
            return self
        multiple = self.value * TIME_UNITS_US[self.unit] / calibration_us
        return msgspec.structs.replace(self, multiple=round(multiple, 3))


def at_most(name: str, value: float, unit: str, bar: float, **settings: Any) -> Row:
    """A figure that must not be above its bar."""
    return Row(name, rounded(value), unit, f"<= {bar:g}", value <= bar, settings=settings)


def at_least(name: str, value: float, unit: str, bar: float, **settings: Any) -> Row:
    """A figure that must not be below its bar."""
    return Row(name, rounded(value), unit, f">= {bar:g}", value >= bar, settings=settings)


def stated(name: str, value: float, unit: str, **settings: Any) -> Row:
    """A figure that is told but not judged."""
    return Row(name, rounded(value), unit, settings=settings)


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
