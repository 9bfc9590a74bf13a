"""Degrees: for each device, how true its rules are of a message, and their weights by that.

The tables are those of the plain conditions around the fuzzy ones: a rule is looked at where it may
be above 0; one that is 1 nearly everywhere is counted as 1 beforehand and looked at where it may be
less. Degrees are counted in whole thousandths, as weights are, so that sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ebbmq.policy.rules.fuzzy import Degree, core, degree_of, support
from ebbmq.policy.rules.keys import Key, Popularity, cover
from ebbmq.policy.rules.normal import normal, opposite
from ebbmq.policy.rules.tables import Tables
from ebbmq.policy.rules.totals import THOUSANDTHS, Line, lines_of, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.policy.rules.cases import Case
    from ebbmq.policy.rules.properties import Properties, States


class _Entry(NamedTuple):
    number: int  # of the case, which a message may meet under several keys
    lines: tuple[Line, ...]
    degree: Degree
    counted: int  # what was counted beforehand, in thousandths


Posting = tuple[_Entry, ...]


class _Making:
    def posting(self, entries: Sequence[_Entry]) -> Posting:
        return tuple(entries)

    def is_certain(self, entry: _Entry) -> bool:
        return False

    def condensed(self, entries: Sequence[_Entry]) -> list[_Entry]:
        return list(entries)


class Degrees:
    """Adds up the rules by how true they are of a message."""

    def __init__(self, cases: Sequence[Case], devices: int, softness: float) -> None:
        self._devices = devices
        entries: defaultdict[Key, list[_Entry]] = defaultdict(list)
        around = [
            (
                normal(support(case.condition, softness)),
                opposite(normal(core(case.condition, softness))),
            )
            for case in cases
        ]
        popularity = Popularity(each for both in around for each in both)
        beforehand: list[Line] = []
        for number, (case, (possible, doubtful)) in enumerate(zip(cases, around, strict=True)):
            lines, counted = lines_of(case), 0
            found = cover(possible, popularity)
            if found is None:
                beforehand += lines
                counted = THOUSANDTHS
                found = cover(doubtful, popularity)
                assert found is not None, "a condition or its opposite has a cover"
            entry = _Entry(number, lines, degree_of(case.condition, softness), counted)
            for key in found.keys:
                entries[key].append(entry)
        self._beforehand = merged(beforehand)
        self._tables = Tables(entries, (), _Making())

    def fixed(self, states: States) -> list[Posting]:
        """What to look at for every message while devices are in these states."""
        return self._tables.fixed(states)

    def of(
        self, message: Properties, states: States, fixed: list[Posting]
    ) -> tuple[list[int], list[int]]:
        """By device: weights times degrees in millionths, and degrees in thousandths."""
        weights, degrees = [0] * self._devices, [0] * self._devices
        for device, weight, rules in self._beforehand:
            weights[device] += weight * THOUSANDTHS
            degrees[device] += rules * THOUSANDTHS
        seen: set[int] = set()
        for posting in self._tables.met(message, fixed):
            for number, lines, degree, counted in posting:
                if number in seen:
                    continue
                seen.add(number)
                more = round(degree(message, states) * THOUSANDTHS) - counted
                if more:
                    for device, weight, rules in lines:
                        weights[device] += weight * more
                        degrees[device] += rules * more
        return weights, degrees
