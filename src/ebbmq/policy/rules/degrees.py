"""Degrees: for each device, how true its rules are of a message, and their weights by that.

The tables are those of the plain conditions around the fuzzy ones: a rule is looked at where it may
be above 0; one that is 1 nearly everywhere is counted as 1 beforehand and looked at where it may be
less. Degrees are counted in whole thousandths, as weights are, so that sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.policy.rules.conditions import KEYWORDS, properties_of
from ebbmq.policy.rules.fuzzy import Degree, core, degree_of, support
from ebbmq.policy.rules.keys import Key, Popularity, cover
from ebbmq.policy.rules.normal import TRUE, normal, opposite
from ebbmq.policy.rules.spans import span_of
from ebbmq.policy.rules.tables import Tables
from ebbmq.policy.rules.totals import THOUSANDTHS, Line, lines_of, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.policy.rules.bank import Bank
    from ebbmq.policy.rules.cases import Case
    from ebbmq.policy.rules.conditions import Property
    from ebbmq.policy.rules.keys import Cover
    from ebbmq.policy.rules.properties import Properties, States
    from ebbmq.policy.rules.spans import Span


#: From so many spans of a number on, all at once is faster than those that are met one by one.
_BANK_MIN: Final = 32


class _Entry(NamedTuple):
    number: int  # of the case, which a message may meet under several keys
    lines: tuple[Line, ...]
    degree: Degree
    counted: int  # what was counted beforehand, in thousandths
    #: The bank that counted it, and where in it; then `degree` says whether it counts.
    bank: tuple[int, int] | None = None


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
        spans = _Spans(cases, softness, popularity)
        for number, (case, (possible, doubtful)) in enumerate(zip(cases, around, strict=True)):
            lines, counted = lines_of(case), 0
            rest = spans.rest_of(number)
            if rest is not None:
                for key in rest.keys:
                    entries[key].append(_Entry(number, lines, rest.test, 0, rest.place))
                continue
            found = cover(possible, popularity)
            if found is None:
                beforehand += lines
                counted = THOUSANDTHS
                found = cover(doubtful, popularity)
                assert found is not None, "a condition or its opposite has a cover"
            entry = _Entry(number, lines, degree_of(case.condition, softness), counted)
            for key in found.keys:
                entries[key].append(entry)
        self._banks = spans.banks(devices)
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
        of_banks = [bank.degrees(get(message)) for get, bank in self._banks]
        seen: set[int] = set()
        for posting in self._tables.met(message, fixed):
            for number, lines, degree, counted, place in posting:
                if number in seen:
                    continue
                seen.add(number)
                if place is not None:
                    # What it asks for besides is not true: then it is not true at all.
                    if not degree(message, states):
                        of_banks[place[0]][place[1]] = 0
                    continue
                more = round(degree(message, states) * THOUSANDTHS) - counted
                if more:
                    for device, weight, rules in lines:
                        weights[device] += weight * more
                        degrees[device] += rules * more
        for (_, bank), found in zip(self._banks, of_banks, strict=True):
            bank.add(found, weights, degrees)
        return weights, degrees


class _Rest(NamedTuple):
    """What a span asks for besides, the keys of messages of which it may not be true, its place."""

    test: Degree
    keys: tuple[Key, ...]
    place: tuple[int, int]


class _Spans:
    """The cases that are spans of one number for nearly every message, where they are many."""

    def __init__(self, cases: Sequence[Case], softness: float, popularity: Popularity) -> None:
        found: defaultdict[Property, list[tuple[int, Span, Cover]]] = defaultdict(list)
        for number, case in enumerate(cases):
            span = span_of(case.condition, softness)
            if span is None or any(of.kind == "number" for of in properties_of(span.rest)):
                continue
            besides = normal(span.rest)
            against = cover(opposite(besides), popularity)
            # Where what is asked besides is rare, the few messages are found by that.
            if against is not None and (besides == TRUE or cover(besides, popularity) is None):
                found[span.property].append((number, span, against))
        self._banked = [(of, those) for of, those in found.items() if len(those) >= _BANK_MIN]
        self._cases = cases
        self._rests = {
            number: _Rest(degree_of(span.rest, softness), against.keys, (bank, at))
            for bank, (_, those) in enumerate(self._banked)
            for at, (number, span, against) in enumerate(those)
        }

    def rest_of(self, number: int) -> _Rest | None:
        """What a case asks for besides its span; None if it is in no bank."""
        return self._rests.get(number)

    def banks(self, devices: int) -> list[tuple[Callable[[Properties], float], Bank]]:
        """The banks, with the number each is about."""
        if not self._banked:
            return []
        from ebbmq.policy.rules.bank import Bank  # noqa: PLC0415  # numpy, for who needs it only

        return [
            (
                attrgetter(KEYWORDS[of.keyword].attribute),
                Bank([(span, lines_of(self._cases[n])) for n, span, _ in those], devices),
            )
            for of, those in self._banked
        ]
