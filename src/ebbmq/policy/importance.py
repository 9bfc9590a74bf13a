"""How the importance of a message falls with its age, and the instants at which that matters.

`decayed` is the one formula, in + - * / only, so that it takes floats, arrays and Spark columns
alike. Everything else here is for floats. The formula never rises with age, also not by rounding,
because each of its operations is monotonic; hence every threshold has one first millisecond at
which it is reached, and the ages below are exact: they agree with the formula at that millisecond
and at the one before.
"""

from __future__ import annotations

import math
from typing import Any, Final, overload

#: An age never exceeds this, so that an instant plus an age still fits the 48 bits of a row.
AGE_MS_MAX: Final = (1 << 47) - 1

RATE_STEPS: Final = 256
SPAN_STEP: Final = 1.06
_LOG_SPAN_STEP: Final = math.log(SPAN_STEP)


@overload
def decayed(importance: float, rate: float, age_ms: float, span_ms: float) -> float: ...
@overload
def decayed(importance: Any, rate: Any, age_ms: Any, span_ms: Any) -> Any: ...
def decayed(importance: Any, rate: Any, age_ms: Any, span_ms: Any) -> Any:
    """Return the importance left at an age; below 0 once it is used up.

    The span is the message's TTL, or its queue's decay unit where it has none.
    """
    return importance * (1 - rate * age_ms / span_ms)


def current_importance(importance: float, rate: float, age_ms: float, span_ms: float) -> float:
    """Return the importance left at an age, at least 0."""
    left = decayed(importance, rate, age_ms, span_ms)
    return left if left > 0 else 0.0


def band_of(current: float, band_width: float) -> int:
    """Return the smallest band whose upper edge, `band * band_width`, is not below the value."""
    assert band_width > 0, "exact order has no bands"
    if current <= 0:
        return 0
    band = math.ceil(current / band_width)
    # The quotient is rounded; the edges decide, since crossing_age_ms is asked with an edge.
    if current <= (band - 1) * band_width:
        return band - 1
    if current > band * band_width:
        return band + 1
    return band


def crossing_age_ms(importance: float, rate: float, span_ms: float, value: float) -> int | None:
    """Return the first age at which the current importance is at most `value`, or None if never.

    A message leaves band b for b - 1 at the value (b - 1) * band_width.
    """
    if importance <= value:
        return 0
    if rate <= 0 or value < 0:
        return None
    guess = span_ms * (1 - value / importance) / rate
    crossed = math.ceil(guess) if guess < AGE_MS_MAX else AGE_MS_MAX
    step = 1
    while decayed(importance, rate, crossed, span_ms) > value:
        if crossed == AGE_MS_MAX:
            return None
        crossed = min(crossed + step, AGE_MS_MAX)
        step *= 2
    # At a slow rate one value lasts for many milliseconds: stride, then halve, never walk.
    not_crossed = crossed - 1
    step = 1
    while decayed(importance, rate, not_crossed, span_ms) <= value:
        crossed = not_crossed
        not_crossed = max(0, not_crossed - step)
        step *= 2
    while crossed - not_crossed > 1:
        middle = (crossed + not_crossed) // 2
        if decayed(importance, rate, middle, span_ms) <= value:
            crossed = middle
        else:
            not_crossed = middle
    return crossed


def stale_age_ms(
    importance: float, rate: float, span_ms: float, stale_threshold: float
) -> int | None:
    """Return the first age at which a message is stale, or None if it never is.

    Half its own importance bounds the threshold: nothing is stale when it is published.
    """
    threshold = min(stale_threshold, importance / 2)
    return crossing_age_ms(importance, rate, span_ms, math.nextafter(threshold, -math.inf))


def rate_class(rate: float) -> int:
    """Return the nearest of 256 steps; only a rate of 0, which never crosses, is class 0."""
    return max(1, round(rate * RATE_STEPS)) if rate > 0 else 0


def class_rate(rate_class: int) -> float:
    """Return the rate that messages of a class are ordered by."""
    return rate_class / RATE_STEPS


def span_class(span_ms: float) -> int:
    """Return the nearest of the spans that lie 6 % apart."""
    return round(math.log(span_ms) / _LOG_SPAN_STEP)


def class_span(span_class: int) -> float:
    """Return the span in milliseconds that messages of a class are ordered by."""
    return float(SPAN_STEP**span_class)
