"""Which copies come and go where: all ways of a fleet, each worked out once by the broker's policy.

A message has copies in some tiers of its node, and is to have so many around a wanted one. There
are few such cases, however many messages there are: each has a number, by which a plan finds what
is written and freed in which tier (`transforms.plans`). Tiers of several copies are one text,
a tier for each copy; nobody has to take it apart, for what it stands for is told with it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.limits import REPLICAS_MAX
from ebbmq.policy.advice import Places
from ebbmq_spark.schemas import frame_of
from ebbmq_spark.transforms.plans import WAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.settings import DeviceRoom

#: Of the tiers of a node as a queue sees them, and in all; what has more is booked where it is, and
#: where it should be.
_CASES_MAX: Final = 1 << 15
_CASES_IN_ALL_MAX: Final = 1 << 18
_BETWEEN: Final = " + "


class Numbering(NamedTuple):
    """How cases are numbered for a queue of a node, as `transforms.plans` does."""

    #: Of the first one; None where there are too many.
    first: int | None
    #: Targets and ways to have copies that are told apart.
    targets: int
    helds: int
    order: list[str]
    #: By device: what a copy there adds to the number.
    weights: dict[str, int]


class Ways:
    """The cases of a fleet, as they are asked for."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str | None, str | None, int, int]] = []
        self._first: dict[Places, int | None] = {}
        #: What texts stand for: tiers, and how many copies in each.
        self.texts: dict[str, Counter[str]] = {}

    def of(self, tiers: Sequence[str], devices: Sequence[DeviceRoom]) -> Numbering:
        """How the cases of a queue with these tiers are numbered, on a node with these devices."""
        usable = [each for each in devices if each.usable]
        # As placement has it: where copies last, then what is no archive.
        others = sorted(usable, key=lambda each: (not each.durable, each.kind == "object"))
        order = [*tiers, *dict.fromkeys(e.tier for e in others if e.tier not in tiers)]
        counts = Counter(each.tier for each in usable)
        # A tier that is named twice counts where it stands first.
        room = [counts.pop(tier, 0) for tier in order]
        places = Places(tuple(order), len(tiers), tuple(room))
        sizes = [count + 1 for count in room]
        weights = {
            each.name: math.prod(sizes[: order.index(each.tier)]) if each.usable else 0
            for each in devices
        }
        targets = max(1, min(sum(room), REPLICAS_MAX))
        first = self._numbered(places, targets, sizes)
        return Numbering(first, targets, math.prod(sizes), order, weights)

    def _numbered(self, places: Places, targets: int, sizes: list[int]) -> int | None:
        if places not in self._first:
            first, count = len(self._rows), len(sizes) * targets * math.prod(sizes)
            fits = count <= _CASES_MAX and first + count <= _CASES_IN_ALL_MAX
            self._first[places] = first if fits else None
            if fits:
                self._add(places, targets, sizes)
        return self._first[places]

    def _add(self, places: Places, targets: int, sizes: list[int]) -> None:
        # The first place counts least.
        helds = [each[::-1] for each in itertools.product(*map(range, reversed(sizes)))]
        for wanted, target, held in itertools.product(
            range(len(sizes)), range(1, targets + 1), helds
        ):
            chosen = places.arranged(held, wanted, target)
            more = [max(0, new - old) for new, old in zip(chosen, held, strict=True)]
            less = [max(0, old - new) for new, old in zip(chosen, held, strict=True)]
            # Where there is no device of the wanted tier it stays as it is, for want of room there.
            there = places.devices[wanted]
            self._rows.append(
                (
                    len(self._rows),
                    self._text(places.tiers, more) if there and sum(more) > more[wanted] else None,
                    self._text(places.tiers, less) if any(less) else None,
                    sum(more) if there else max(1, sum(more)),
                    sum(less),
                )
            )

    def _text(self, tiers: Sequence[str], counts: Sequence[int]) -> str:
        copies = [[tier] * count for tier, count in zip(tiers, counts, strict=True)]
        named = Counter(itertools.chain.from_iterable(copies))
        text = _BETWEEN.join(named.elements())
        self.texts[text] = named
        return text

    def frame(self, spark: SparkSession) -> DataFrame:
        """All cases, as `judged` takes them."""
        return frame_of(spark, self._rows, WAYS)

    def priced(self, prices: Mapping[str, float]) -> dict[str, float]:
        """The prices, with those of texts: the mean over the copies they stand for."""
        means = {
            text: sum(prices.get(tier, 0.0) * count for tier, count in counts.items())
            / counts.total()
            for text, counts in self.texts.items()
        }
        return {**means, **prices}


def several(texts: Mapping[str, Counter[str]], tiers: Iterable[str]) -> list[str]:
    """The texts of more than one copy that speak of these tiers only."""
    known = set(tiers)
    return [text for text, counts in texts.items() if counts.total() > 1 and counts.keys() <= known]
