"""Totals: for each device, the weights and the number of the rules true of a message.

Theory of operation. Totals of rules that need nothing but a key are added up when the tables are
built, and are one number (see `pack`), so a key costs a message one addition however many rules
and devices stand behind it. A
condition that is true of nearly everything, such as a NOT, is counted beforehand and taken back
where it is not true: with `base AND NOT a`, count it under `base` and take it back under `a`.

Weights are counted in whole thousandths: sums do not depend on the order, and taking back is exact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.policy.rules.closures import Closures
from ebbmq.policy.rules.keys import Cover, Key, Popularity, cover
from ebbmq.policy.rules.normal import FALSE, TRUE, And, Normal, Spans, join, opposite
from ebbmq.policy.rules.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.policy.rules.cases import Case
    from ebbmq.policy.rules.compile import Test
    from ebbmq.policy.rules.properties import Properties, States

THOUSANDTHS: Final = 1_000
#: A lane of a packed total: the number of rules, and above it their weights in thousandths.
LANE_BITS: Final = 64
LANE: Final = (1 << LANE_BITS) - 1
COUNT_BITS: Final = 24
COUNT: Final = (1 << COUNT_BITS) - 1


class Line(NamedTuple):
    """What rules add to a device: their weights in thousandths, and how many they are."""

    device: int
    weights: int
    rules: int


class _Entry(NamedTuple):
    packed: int
    test: Test | None = None
    #: The case, where a message may meet it under two keys and must count it once.
    once: int | None = None


class Posting(NamedTuple):
    """What counts for whoever meets it, and what is to be tested before."""

    certain: int
    tested: tuple[_Entry, ...]


class Totals:
    """Adds up the rules true of a message."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._entries: defaultdict[Key, list[_Entry]] = defaultdict(list)
        self._always: list[_Entry] = []
        self._closures = Closures()
        popularity = Popularity(
            each for case in cases for each in (case.normal, opposite(case.normal))
        )
        for number, case in enumerate(cases):
            if case.normal != FALSE:
                self._add(number, case, popularity)
        self._tables = Tables(self._entries, self._always, _Making())

    def fixed(self, states: States) -> list[Posting]:
        """What to look at for every message while devices are in these states."""
        met = self._tables.fixed(states)
        # All of it is looked at for each message: what needs the same test is tested once.
        alike: defaultdict[tuple[Test | None, int | None], int] = defaultdict(int)
        for posting in met:
            for entry in posting.tested:
                if entry.once is None or (entry.test, entry.once) not in alike:
                    alike[entry.test, entry.once] += entry.packed
        tested = tuple(_Entry(packed, *test) for test, packed in alike.items())
        certain = sum(posting.certain for posting in met)
        return [Posting(certain, tested)] if certain or tested else []

    def of(self, message: Properties, states: States, fixed: list[Posting]) -> int:
        """The total of the rules true of a message, packed."""
        total = 0
        seen: set[int] | None = None
        for certain, tested in self._tables.met(message, fixed):
            total += certain
            for packed, test, once in tested:
                if once is not None:
                    seen = set() if seen is None else seen
                    if once in seen:
                        continue
                    seen.add(once)
                if test is None or test(message, states):
                    total += packed
        return total

    def _add(self, number: int, case: Case, popularity: Popularity) -> None:
        packed = pack(lines_of(case))
        base, rest = _split(case.normal, popularity)
        if base is None:
            self._enter(_required(case.normal, popularity), packed, TRUE, number)
            return
        if base == TRUE:
            self._always.append(_Entry(packed))
        else:
            self._enter(_required(base, popularity), packed, TRUE, number)
        if rest != TRUE:
            self._enter(_required(opposite(rest), popularity), -packed, base, number)

    def _enter(self, where: Cover, packed: int, besides: Normal, number: int) -> None:
        rest = join([where.rest, besides], conjunction=True)
        test = None if rest == TRUE else self._closures.of(rest)
        once = number if len(where.keys) > 1 and not where.exact else None
        for key in where.keys:
            self._entries[key].append(_Entry(packed, test, once))


class _Making:
    def posting(self, entries: Sequence[_Entry]) -> Posting:
        sure = [each for each in entries if self.is_certain(each)]
        tested = tuple(each for each in entries if not self.is_certain(each))
        return Posting(sum(each.packed for each in sure), tested)

    def is_certain(self, entry: _Entry) -> bool:
        return entry.test is None and entry.once is None

    def condensed(self, entries: Sequence[_Entry]) -> list[_Entry]:
        return [_Entry(sum(each.packed for each in entries))]


def _split(condition: Normal, popularity: Popularity) -> tuple[Normal | None, Normal]:
    """Where to count a condition beforehand, and what must hold besides; no base: do not."""
    found = cover(condition, popularity)
    if found is None:
        return TRUE, condition
    if isinstance(condition, And):
        spans = [part for part in condition.parts if isinstance(part, Spans)]
        rest = join([part for part in condition.parts if part not in spans], conjunction=True)
        if len(spans) == 1 and cover(rest, popularity) is None:
            return spans[0], rest
    return None, TRUE


def _required(condition: Normal, popularity: Popularity) -> Cover:
    found = cover(condition, popularity)
    assert found is not None, "a condition or its opposite has a cover"
    return found


def thousandths(weight: float) -> int:
    """A weight as it is counted in totals."""
    return round(weight * THOUSANDTHS)


def pack(lines: Iterable[Line]) -> int:
    """Lines as one number, a lane for each device, so that adding two adds every lane.

    A lane has room for all rules there may be, and what is taken back was counted before: no lane
    of a total is below 0 or runs over.
    """
    return sum(
        ((weights << COUNT_BITS) + rules) << (LANE_BITS * device)
        for device, weights, rules in lines
    )


def unpack(total: int) -> list[Line]:
    """The lines of a total, of the devices that have a rule."""
    lines = []
    device = 0
    while total:
        lane = total & LANE
        if lane:
            lines.append(Line(device, lane >> COUNT_BITS, lane & COUNT))
        total >>= LANE_BITS
        device += 1
    return lines


def lines_of(case: Case) -> tuple[Line, ...]:
    """What a case adds where it is true."""
    return merged(Line(rule.device, thousandths(rule.weight), 1) for rule in case.rules)


def merged(lines: Iterable[Line]) -> tuple[Line, ...]:
    """One line per device."""
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for device, weights, count in lines:
        sums[device][0] += weights
        sums[device][1] += count
    return tuple(Line(device, *both) for device, both in sorted(sums.items()))
