"""Many soft spans of one number at once.

With `fuzzy`, a message lies somewhere in the soft edges of many spans, so that looking up those it
meets saves little. Those that ask for nothing but one number, or besides for what nearly every
message has, are kept as columns instead: their degrees are a few steps over all of them.

A degree is computed as `fuzzy.rising` and `fuzzy.falling` do it, so that both ways give the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.policy.rules.totals import THOUSANDTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.policy.rules.spans import Span
    from ebbmq.policy.rules.totals import Line


#: In the place of an edge that is not there; what is computed of it is not used.
_NONE: Final = (0.0, 1.0)


class Bank:
    """Soft spans of one number, each with what its rules add to devices."""

    def __init__(self, spans: Sequence[tuple[Span, tuple[Line, ...]]], devices: int) -> None:
        rises = np.array([span.rises or _NONE for span, _ in spans], dtype=float)
        falls = np.array([span.falls or _NONE for span, _ in spans], dtype=float)
        self._rising = np.array([span.rises is not None for span, _ in spans])
        self._falling = np.array([span.falls is not None for span, _ in spans])
        self._low, self._rise = rises[:, 0], rises[:, 1] - rises[:, 0]
        self._high, self._fall = falls[:, 1], falls[:, 1] - falls[:, 0]
        lines = [(at, line) for at, (_, those) in enumerate(spans) for line in those]
        self._at = np.array([at for at, _ in lines], dtype=np.int64)
        self._device = np.array([line.device for _, line in lines], dtype=np.int64)
        self._weights = np.array([line.weights for _, line in lines], dtype=float)
        self._rules = np.array([line.rules for _, line in lines], dtype=float)
        self._devices = devices

    def degrees(self, number: float) -> npt.NDArray[np.float64]:
        """How true each span is of a number, in whole thousandths."""
        rising = np.where(self._rising, (number - self._low) / self._rise, 1.0)
        falling = np.where(self._falling, (self._high - number) / self._fall, 1.0)
        found: npt.NDArray[np.float64] = np.minimum(rising, falling).clip(0.0, 1.0)
        return np.rint(found * THOUSANDTHS)

    def add(self, degrees: npt.NDArray[np.float64], weights: list[int], counts: list[int]) -> None:
        """Add what the rules of all spans come to: whole numbers far below 2 ** 53, so exactly."""
        each = degrees[self._at]
        by_weight = np.bincount(self._device, self._weights * each, self._devices)
        by_count = np.bincount(self._device, self._rules * each, self._devices)
        for device in range(self._devices):
            weights[device] += int(by_weight[device])
            counts[device] += int(by_count[device])
