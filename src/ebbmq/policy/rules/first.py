"""First match: of the rules true of a message, the one with the highest adjusted weight.

Theory of operation. A status shifts all rules of a device alike, so their order among each other
never changes: nothing is sorted again when a status does. Every posting is sorted by weight; since
a status is never above 0, a posting can be left as soon as its weights are below the best found.
Of rules under the same key that need no further test, only the best of each device can ever win.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.policy.rules.closures import Closures
from ebbmq.policy.rules.keys import Key, Popularity, cover
from ebbmq.policy.rules.normal import FALSE, INF, TRUE
from ebbmq.policy.rules.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.policy.rules.cases import Case
    from ebbmq.policy.rules.compile import Test
    from ebbmq.policy.rules.properties import Properties, States

#: Up to so many conditions, trying each is faster than asking tables.
_TRY_EACH: Final = 12


class _Entry(NamedTuple):
    weight: float
    rank: int
    device: int
    test: Test | None


Posting = tuple[_Entry, ...]


class FirstMatch:
    """Finds the winning rule among all."""

    def __init__(self, cases: Sequence[Case]) -> None:
        entries: defaultdict[Key, list[_Entry]] = defaultdict(list)
        always: list[_Entry] = []
        closures, popularity = Closures(), Popularity(case.normal for case in cases)
        for case in cases:
            if case.normal == FALSE:
                continue
            found = cover(case.normal, popularity) if len(cases) > _TRY_EACH else None
            rest = case.normal if found is None else found.rest
            test = None if rest == TRUE else closures.of(rest)
            these = [_Entry(rule.weight, rule.rank, rule.device, test) for rule in case.rules]
            if found is None:
                always += these
            else:
                for key in found.keys:
                    entries[key] += these
        self._tables = Tables(entries, always, _Making())

    def fixed(self, states: States) -> list[Posting]:
        """What to look at for every message while devices are in these states."""
        return self._tables.fixed(states)

    def best(
        self,
        message: Properties,
        states: States,
        fixed: list[Posting],
        statuses: Sequence[float],
    ) -> tuple[int, float] | None:
        """The rank and the adjusted weight of the winner; None if no rule is true of the message.

        A device whose status is minus infinity is passed over.
        """
        best, best_rank = -INF, -1
        for posting in self._tables.met(message, fixed):
            for weight, rank, device, test in posting:
                if weight < best:
                    break
                adjusted = weight + statuses[device]
                if (adjusted > best or (adjusted == best and rank < best_rank)) and (
                    test is None or test(message, states)
                ):
                    best, best_rank = adjusted, rank
        return None if best_rank < 0 else (best_rank, best)

    def best_of_each(
        self, message: Properties, states: States, fixed: list[Posting], devices: int
    ) -> list[tuple[float, int, int]]:
        """(weight, rank, device) of the winner among the rules of each device that has one."""
        weights, ranks = [-INF] * devices, [-1] * devices
        least = -INF  # every device has a rule of this weight already
        for posting in self._tables.met(message, fixed):
            for weight, rank, device, test in posting:
                if weight < least:
                    break
                known = weights[device]
                if (weight > known or (weight == known and rank < ranks[device])) and (
                    test is None or test(message, states)
                ):
                    weights[device], ranks[device] = weight, rank
                    if known <= least:
                        least = min(weights)
        return [
            (weight, rank, device)
            for device, (weight, rank) in enumerate(zip(weights, ranks, strict=True))
            if rank >= 0
        ]


class _Making:
    def posting(self, entries: Sequence[_Entry]) -> Posting:
        certain: set[int] = set()
        kept: list[_Entry] = []
        for entry in sorted(entries, key=lambda each: (-each.weight, each.rank)):
            if entry.device not in certain:
                kept.append(entry)
                if entry.test is None:
                    certain.add(entry.device)
        return tuple(kept)

    def is_certain(self, entry: _Entry) -> bool:
        return entry.test is None

    def condensed(self, entries: Sequence[_Entry]) -> list[_Entry]:
        return list(self.posting(entries))
