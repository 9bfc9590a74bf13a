"""Messages that are not where they should be because a device was away or did not take them.

They are not remembered one by one: a review goes through messages in the order of their age, so it
is enough to know how far back it has to begin again. That is done once a device of the tier can be
used, after a pause that doubles while it goes on failing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ebbmq.policy.rules.properties import States

_PAUSE_MS: Final = 1_000
_PAUSE_MS_MAX: Final = 300_000
#: What fails again within so many pauses fails for the same reason.
_SAME_REASON: Final = 4


class Again(NamedTuple):
    """Look again at messages that passed an age, from a number on."""

    pid: int
    age_ms: int
    seq: int


class _Wait(NamedTuple):
    seq: int
    tiers: frozenset[str]
    at_ms: int


class _Pause(NamedTuple):
    ms: int
    forget_at_ms: int


class Unmet:
    """From where on, and when, messages are to be looked at again, by partition and age."""

    def __init__(self) -> None:
        self._waits: dict[tuple[int, int], _Wait] = {}
        self._pauses: dict[tuple[int, int], _Pause] = {}

    def note(self, again: Again, tier: str, now_ms: int) -> None:
        """A message should be on a tier, and is not."""
        key = again.pid, again.age_ms
        wait = self._waits.get(key)
        if wait is not None:
            seq, tiers = min(wait.seq, again.seq), wait.tiers | {tier}
            self._waits[key] = wait._replace(seq=seq, tiers=tiers)
            return
        before = self._pauses.get(key)
        pause_ms = _PAUSE_MS
        if before is not None and now_ms < before.forget_at_ms:
            pause_ms = min(2 * before.ms, _PAUSE_MS_MAX)
        self._pauses[key] = _Pause(pause_ms, now_ms)
        self._waits[key] = _Wait(again.seq, frozenset({tier}), now_ms + pause_ms)

    def due(self, now_ms: int, states: States) -> list[Again]:
        """What to look at now, of those whose devices can be used; they are forgotten here."""
        usable = {state.tier for state in states.values() if state.usable}
        out: list[Again] = []
        for key, wait in list(self._waits.items()):
            if wait.at_ms <= now_ms and wait.tiers & usable:
                del self._waits[key]
                pause = self._pauses[key]
                later_ms = now_ms + _SAME_REASON * pause.ms
                self._pauses[key] = pause._replace(forget_at_ms=later_ms)
                out.append(Again(*key, wait.seq))
        return out

    def first(self, pid: int, age_ms: int) -> int | None:
        """From where on messages of a partition that passed an age are not where they should be."""
        wait = self._waits.get((pid, age_ms))
        return None if wait is None else wait.seq
