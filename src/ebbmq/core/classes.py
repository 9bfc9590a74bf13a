"""Order classes: messages that fade in step, so that one ring keeps them in order as they age."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.row import RATE_UNIT
from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    import numpy.typing as npt

NEVER: Final = 1 << 62
_RATE_BITS: Final = 9
_SPAN_BITS: Final = 11
#: With more bands than this, a table of all crossings would be larger than it is worth.
_BANDS_IN_TABLE_MAX: Final = 64


class OrderClass:
    """Messages of one importance, rate and span; for order only, the last two are quantised."""

    __slots__ = ("importance", "key", "leaves", "number", "rate", "span_ms", "top")

    def __init__(self, number: int, key: int, band_width: float) -> None:
        self.number = number
        self.key = key
        self.importance = key >> (_RATE_BITS + _SPAN_BITS)
        self.rate = policy.class_rate((key >> _SPAN_BITS) & ((1 << _RATE_BITS) - 1))
        self.span_ms = policy.class_span(key & ((1 << _SPAN_BITS) - 1)) if self.rate else 1
        self.top = policy.band_of(self.importance, band_width) if band_width else 0
        #: leaves[b]: the age at which a message of this class leaves band b for b - 1.
        self.leaves = tuple(self._leaves(band, band_width) for band in range(self.top + 1))

    def _leaves(self, band: int, band_width: float) -> int:
        if band == 0 or not self.rate:
            return NEVER
        age = policy.crossing_age_ms(
            self.importance, self.rate, self.span_ms, (band - 1) * band_width
        )
        return NEVER if age is None else age

    def band_at(self, age_ms: int) -> int:
        """The band of a message of this class at that age."""
        band = self.top
        while age_ms >= self.leaves[band]:
            band -= 1
        return band

    def value_at(self, age_ms: int) -> float:
        """Current importance, as used for order."""
        return policy.current_importance(self.importance, self.rate, age_ms, self.span_ms)


def class_key(importance: int, rate: int, span_ms: int) -> int:
    """One number for (importance, rate class, span class); spans do not matter without decay."""
    if rate == 0:
        return importance << (_RATE_BITS + _SPAN_BITS)
    return (
        importance << (_RATE_BITS + _SPAN_BITS)
        | policy.rate_class(rate / RATE_UNIT) << _SPAN_BITS
        | policy.span_class(span_ms)
    )


class Classes:
    """The classes a partition has seen, at most limits.CLASSES_MAX."""

    __slots__ = ("_by_key", "_leaves", "all", "band_width")

    def __init__(self, band_width: float) -> None:
        self.band_width = band_width
        self.all: list[OrderClass] = []
        self._by_key: dict[int, OrderClass] = {}
        #: The ages at which each class leaves bands 1 and up, as far as `bands_at` was asked.
        self._leaves: npt.NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)

    def of_key(self, key: int) -> OrderClass:
        """The class of that key; the nearest one once there are too many."""
        found = self._by_key.get(key)
        if found is None:
            if len(self.all) < limits.CLASSES_MAX:
                found = OrderClass(len(self.all), key, self.band_width)
                self.all.append(found)
            else:
                found = self._nearest(key)
            self._by_key[key] = found
        return found

    def bands_at(
        self, classes: npt.NDArray[np.int64], ages_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """`OrderClass.band_at` of many messages at once."""
        if self.band_width * _BANDS_IN_TABLE_MAX < limits.IMPORTANCE_MAX:
            pairs = zip(classes.tolist(), ages_ms.tolist(), strict=True)
            return np.array([self.all[number].band_at(age) for number, age in pairs])
        if len(self._leaves) != len(self.all):
            self._leaves = self._leaves_of_all()
        # A class leaves its bands from the top down, so those not yet left count up to the band.
        there = ages_ms[:, np.newaxis] < self._leaves[classes]
        bands: npt.NDArray[np.int64] = there.sum(axis=1)
        return bands

    def _leaves_of_all(self) -> npt.NDArray[np.int64]:
        """One row per class; a band above its top was left before it began."""
        leaves = np.full((len(self.all), max(known.top for known in self.all)), -NEVER)
        for number, known in enumerate(self.all):
            leaves[number, : known.top] = np.minimum(known.leaves[1 : known.top + 1], NEVER)
        return leaves

    def _nearest(self, key: int) -> OrderClass:
        importance = key >> (_RATE_BITS + _SPAN_BITS)
        same = [known for known in self.all if known.importance == importance] or self.all
        return min(same, key=lambda known: abs(known.key - key))
