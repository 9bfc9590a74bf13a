"""Which numbers of a boot were told so far, as a few stretches: what is missing, what comes again.

Numbers of a boot are 1, 2, 3 .., so that all of a healthy boot is one stretch, however long it is.
A stretch ends where numbers are missing; if they come after all, two become one. Of a boot with
many gaps the oldest stretches are put together: how much is missing between them is kept, where it
is missing is not, and what comes for it later is taken for told before.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Of each boot, and of each node: what is remembered, the last of it.
STRETCHES_MAX: Final = 64
BOOTS_MAX: Final = 16


class Stretch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Numbers that were told, from the first to the last of them but for some."""

    first: int
    last: int
    #: Numbers between the two that were not told, wherever they are.
    holes: int = 0

    @property
    def count(self) -> int:
        """How many numbers were told."""
        return self.last - self.first + 1 - self.holes


#: By node and boot, in order, without two that touch.
Heard = dict[str, dict[int, tuple[Stretch, ...]]]


class Told(NamedTuple):
    """A stretch that a node told now, and in how many rows."""

    node: str
    boot: int
    stretch: Stretch
    rows: int


class Place(NamedTuple):
    """Numbers of a boot, from the first to the last of them."""

    node: str
    boot: int
    first: int
    last: int


class Added(NamedTuple):
    """What was heard with what is told now, and what that is to what was heard."""

    heard: Heard
    #: Rows with a number that there was before, among them or earlier.
    duplicates: int
    #: Numbers that turned out to be missing, and such that had been, and were told after all.
    missing: int
    recovered: int
    #: Which numbers were heard before.
    again: list[Place]


def add(heard: Mapping[str, Mapping[int, tuple[Stretch, ...]]], told: Iterable[Told]) -> Added:
    """What was heard, and what is told now, put together."""
    new: dict[tuple[str, int], list[Stretch]] = {}
    duplicates = missing = recovered = 0
    for each in told:
        new.setdefault((each.node, each.boot), []).append(each.stretch)
        duplicates += each.rows - each.stretch.count
    whole = {node: dict(boots) for node, boots in heard.items()}
    again: list[Place] = []
    for (node, boot), stretches in sorted(new.items()):
        boots = whole.setdefault(node, {})
        before = boots.get(boot, ())
        after = _together([*before, *stretches])
        twice = _common(before, stretches)
        again += [Place(node, boot, *each) for each in twice]
        duplicates += sum(last - first + 1 for first, last in twice)
        late = sum(last - first + 1 for first, last in _common(_between(before), stretches))
        recovered += late
        missing += late + _missing(after) - _missing(before)
        boots[boot] = _at_most(after)
    for node, boots in whole.items():
        whole[node] = {boot: boots[boot] for boot in sorted(boots)[-BOOTS_MAX:]}
    return Added(whole, duplicates, missing, recovered, again)


def _together(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """All of their numbers, in order; those that touch or overlap are one."""
    out: list[Stretch] = []
    for each in sorted(stretches, key=lambda each: each.first):
        if out and each.first <= out[-1].last + 1:
            first, last = out[-1].first, max(out[-1].last, each.last)
            out[-1] = Stretch(first, last, min(out[-1].holes + each.holes, last - first))
        else:
            out.append(each)
    return tuple(out)


def _common(some: Iterable[Stretch], others: Iterable[Stretch]) -> list[tuple[int, int]]:
    """Where two have numbers in common; few, so that all pairs are looked at."""
    others = list(others)
    return [
        (max(one.first, other.first), min(one.last, other.last))
        for one in some
        for other in others
        if max(one.first, other.first) <= min(one.last, other.last)
    ]


def _between(stretches: tuple[Stretch, ...]) -> list[Stretch]:
    """The gaps between some."""
    pairs = itertools.pairwise(stretches)
    return [Stretch(one.last + 1, other.first - 1) for one, other in pairs]


def _missing(stretches: tuple[Stretch, ...]) -> int:
    """How many numbers are missing; what is before the first may be older than the feed is kept."""
    if not stretches:
        return 0
    return stretches[-1].last - stretches[0].first + 1 - sum(each.count for each in stretches)


def _at_most(stretches: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """The same numbers, as few enough stretches; nothing is missing that was not before."""
    if len(stretches) <= STRETCHES_MAX:
        return stretches
    old, new = stretches[: 1 - STRETCHES_MAX], stretches[1 - STRETCHES_MAX :]
    holes = _missing(old)
    return (Stretch(old[0].first, old[-1].last, holes), *new)
