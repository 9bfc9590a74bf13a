"""Made-up traffic for who has none yet: bursts, a day, an overload. The seed says all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from ebbmq_spark.simulation.traffic import NONE, Traffic

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Pattern = Literal["bursts", "diurnal", "overload"]
START_MS: Final = 1_700_000_000_000
CONSUMERS: Final = 8
_GRID: Final = 4_096
#: Much of little importance, little of much: one in eight is at least an 8.
_IMPORTANCE_SHARES: Final = (0.16, 0.15, 0.13, 0.12, 0.12, 0.11, 0.085, 0.055, 0.04, 0.03)


class Shape(NamedTuple):
    """How traffic of a pattern is: how long, how useful, and capacity over mean rate."""

    duration_ms: int
    useful_ms: int
    capacity: float
    says: str


SHAPES: Final[dict[Pattern, Shape]] = {
    "bursts": Shape(1_200_000, 30_000, 1.25, "20 minutes, now and then six times the usual"),
    "diurnal": Shape(86_400_000, 1_800_000, 1.15, "a day; at noon 40 % more than can be done"),
    "overload": Shape(900_000, 60_000, 1 / 1.4, "15 minutes, 5 of them at thrice the capacity"),
}


def generate(pattern: Pattern, messages: int, *, seed: int = 1, consumers: int = 0) -> Traffic:
    """Traffic of a pattern: so many messages, and consumers fast enough for the usual rate.

    Messages say how important they are and nothing of TTL and decay, so that a queue's own decide.
    """
    shape = SHAPES[pattern]
    hands = consumers or CONSUMERS
    chance = np.random.default_rng(seed)
    at_ms = _instants(pattern, shape, messages, chance)
    # As many hands as there are, each as fast as the capacity over the mean rate asks for.
    service_mean_ms = hands * shape.duration_ms / (messages * shape.capacity)
    sigma = 0.5
    service_ms = chance.lognormal(-(sigma**2) / 2, sigma, messages) * service_mean_ms
    importance = chance.choice(np.arange(1, 11), size=messages, p=_IMPORTANCE_SHARES)
    failures = chance.choice([0, 1, 3], size=messages, p=[0.989, 0.01, 0.001])
    return Traffic(
        queue="work",
        at_ms=at_ms,
        importance=importance.astype(np.int64),
        ttl_ms=np.full(messages, NONE, dtype=np.int64),
        decay_rate=np.full(messages, float(NONE)),
        delay_ms=np.zeros(messages, dtype=np.int64),
        bytes=np.minimum(chance.lognormal(7.6, 1.0, messages), 1e6).astype(np.int64),
        service_ms=service_ms,
        failures=failures.astype(np.int64),
        useful_ms=np.full(messages, shape.useful_ms, dtype=np.int64),
        consumers=hands,
    )


def _instants(
    pattern: Pattern, shape: Shape, messages: int, chance: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Random instants as dense as the pattern's rate is high."""
    share = np.linspace(0.0, 1.0, _GRID)
    rate = _rates(pattern, share, chance)
    total = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    drawn = np.sort(chance.random(messages))
    at = np.interp(drawn, total / total[-1], share)
    return START_MS + (at * shape.duration_ms).astype(np.int64)


def _rates(pattern: Pattern, share: Floats, chance: np.random.Generator) -> Floats:
    """The rate over the time, in any unit."""
    match pattern:
        case "bursts":
            rate = np.ones_like(share)
            for begin in chance.random(12):
                rate[(share >= begin) & (share < begin + 0.012)] += 5.0
            return rate
        case "diurnal":
            return 1.0 - 0.6 * np.cos(2 * np.pi * share)
        case "overload":
            return np.where((share > 1 / 3) & (share < 2 / 3), 3.0, 0.6)
