"""Some days of traffic, made up the same way every time: what comes, what is read, what is settled.

Three kinds of it. Events are consumed within the hour; orders are settled two days after they came,
and a few of the oldest are read again each hour; readings lie for five days before anybody wants
them. There is more by day than by night, and now and then a burst.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.load import HOUR_MS, KIB

if TYPE_CHECKING:
    from collections.abc import Iterator

#: By queue: its share of the traffic, and after how long it is consumed.
QUEUES: Final = {
    "events": (0.4, HOUR_MS),
    "orders": (0.3, 48 * HOUR_MS),
    "readings": (0.3, 120 * HOUR_MS),
}
#: From here on a message must survive the loss of any one device.
IMPORTANT: Final = 5
READ_AGAIN: Final = 3
_BURST_SHARE: Final = 0.05
_BURST: Final = 6


class Arrival(NamedTuple):
    """A message that comes."""

    queue: str
    importance: int
    size: int


def hours(count: int, mean: int) -> Iterator[list[Arrival]]:
    """What comes in each of so many hours, about `mean` messages in one."""
    dice = random.Random(count * mean)  # noqa: S311  the same traffic in every run
    names, shares = list(QUEUES), [share for share, _ in QUEUES.values()]
    for hour in range(count):
        by_day = 1 - 0.7 * math.cos(2 * math.pi * hour / 24)
        burst = _BURST if dice.random() < _BURST_SHARE else 1
        yield [
            _arrival(dice, dice.choices(names, shares)[0])
            for _ in range(round(mean * by_day * burst))
        ]


def _arrival(dice: random.Random, queue: str) -> Arrival:
    # Orders matter, readings hardly, events may or may not.
    low, high = {"orders": (IMPORTANT, 10), "readings": (1, IMPORTANT - 1)}.get(queue, (1, 10))
    return Arrival(queue, dice.randint(low, high), round(KIB * dice.uniform(0.5, 4)))
