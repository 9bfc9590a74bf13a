"""Order classes: messages that fade in step, so that one ring keeps them in order as they age."""

from __future__ import annotations

from typing import Final

from ebbmq import limits
from ebbmq.core.row import RATE_UNIT
from ebbmq.policy import importance as policy

NEVER: Final = 1 << 62
_RATE_BITS: Final = 9
_SPAN_BITS: Final = 11


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

    __slots__ = ("_by_key", "all", "band_width")

    def __init__(self, band_width: float) -> None:
        self.band_width = band_width
        self.all: list[OrderClass] = []
        self._by_key: dict[int, OrderClass] = {}

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

    def _nearest(self, key: int) -> OrderClass:
        importance = key >> (_RATE_BITS + _SPAN_BITS)
        same = [known for known in self.all if known.importance == importance] or self.all
        return min(same, key=lambda known: abs(known.key - key))
