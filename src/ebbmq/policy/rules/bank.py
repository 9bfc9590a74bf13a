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


#: In the place of an edge that is not there: it is met by every number, without end.
_NO_RISE: Final = (-np.inf, -np.inf)
_NO_FALL: Final = (np.inf, np.inf)


class Bank:
    """Soft spans of one number, each with what its rules add to devices."""

    def __init__(self, spans: Sequence[tuple[Span, tuple[Line, ...]]], devices: int) -> None:
        rises = np.array([span.rises or _NO_RISE for span, _ in spans], dtype=float)
        falls = np.array([span.falls or _NO_FALL for span, _ in spans], dtype=float)
        self._low, self._rise = rises[:, 0], _widths(rises)
        self._high, self._fall = falls[:, 1], _widths(falls)
        #: By span: what it adds to the weights of each device, then to its rules.
        self._added = np.zeros((len(spans), 2 * devices))
        for at, (_, lines) in enumerate(spans):
            for line in lines:
                self._added[at, line.device] += line.weights
                self._added[at, devices + line.device] += line.rules
        self._devices = devices

    def degrees(self, number: float) -> npt.NDArray[np.float64]:
        """How true each span is of a number, in whole thousandths."""
        found: npt.NDArray[np.float64] = (number - self._low) / self._rise
        np.minimum(found, (self._high - number) / self._fall, out=found)
        np.minimum(found, 1.0, out=found)
        np.maximum(found, 0.0, out=found)
        found *= THOUSANDTHS
        return np.rint(found, out=found)

    def add(self, degrees: npt.NDArray[np.float64], weights: list[int], counts: list[int]) -> None:
        """Add what the rules of all spans come to: whole numbers far below 2 ** 53, so exactly."""
        added = (degrees @ self._added).tolist()
        for device in range(self._devices):
            weights[device] += int(added[device])
            counts[device] += int(added[self._devices + device])


def _widths(edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How wide each edge is; 1 for one that is not there."""
    there = np.isfinite(edges[:, 0])
    widths = np.ones(len(edges))
    widths[there] = edges[there, 1] - edges[there, 0]
    return widths
