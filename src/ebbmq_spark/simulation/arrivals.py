"""Traffic as it comes in slice by slice: what no policy changes, so many replays share it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.model import Message
from ebbmq_spark.simulation.traffic import NONE

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq_spark.simulation.traffic import Traffic

    Numbers = npt.NDArray[np.intp]

#: A worker tries one policy after the other on the same traffic.
_KEPT: Final = 1


class Arrivals(NamedTuple):
    """Messages of the traffic in the order they come in."""

    #: Which message of the traffic each is.
    numbers: Numbers
    #: What publishers said, and which of these each says.
    kinds: list[Message]
    which: Numbers
    #: Of each message of the traffic: its kind, and from when on it can be leased.
    kind_of: Numbers
    ready_from: npt.NDArray[np.float64]


@lru_cache(maxsize=_KEPT)
def arrivals_of(traffic: Traffic, slice_ms: int | None) -> Arrivals:
    """The messages as they came, or those of a slice by kind, which is much cheaper to take in."""
    kinds, kind_of = _kinds(traffic)
    if slice_ms is None:
        numbers = np.arange(len(traffic), dtype=np.intp)
    else:
        slices = traffic.at_ms // slice_ms
        numbers = np.lexsort((traffic.decay_rate, traffic.ttl_ms, traffic.importance, slices))
    ready_from = (traffic.at_ms + np.maximum(traffic.delay_ms, 0)).astype(np.float64)
    return Arrivals(numbers, kinds, kind_of[numbers], kind_of, ready_from)


def _kinds(traffic: Traffic) -> tuple[list[Message], Numbers]:
    """The messages that differ in what a publisher says, and which of them each row is."""
    columns = (traffic.importance, traffic.ttl_ms, traffic.decay_rate, traffic.delay_ms)
    which = np.zeros(len(traffic), dtype=np.intp)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            _, which = np.unique(which * len(values) + place.reshape(-1), return_inverse=True)
            which = which.reshape(-1)
    _, first = np.unique(which, return_index=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return [_message(*row) for row in rows], which


def _message(importance: int, ttl_ms: int, decay_rate: float, delay_ms: int) -> Message:
    return Message(
        b"",
        importance=None if importance == NONE else importance,
        ttl_ms=None if ttl_ms == NONE else ttl_ms,
        decay_rate=None if decay_rate == NONE else decay_rate,
        delay_ms=max(0, delay_ms),
    )
