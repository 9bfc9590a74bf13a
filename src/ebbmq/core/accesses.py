"""How often messages of a partition are read, where the queue's decay score counts that.

A grant is credited and, if that lease fails, reversed: a message that nobody can process must not
look popular. Only messages that were read and are still there take space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.policy.decay import Access

if TYPE_CHECKING:
    from collections.abc import Iterable

NONE: Final = Access()


class Accesses:
    """Access rates by message number."""

    def __init__(self) -> None:
        #: Only of messages that were read.
        self.rates: dict[int, Access] = {}

    def __len__(self) -> int:
        return len(self.rates)

    def of(self, seq: int) -> Access:
        """How often a message is read."""
        return self.rates.get(seq, NONE)

    def credit(self, seqs: Iterable[int], now_ms: int) -> None:
        """These messages were read."""
        rates = self.rates
        for seq in seqs:
            rates[seq] = rates.get(seq, NONE).credited(now_ms)

    def reverse(self, seq: int, granted_at_ms: int, now_ms: int) -> None:
        """The lease granted then failed."""
        found = self.rates.get(seq)
        if found is not None:
            self.rates[seq] = found.reversed(granted_at_ms, now_ms)

    def forget(self, seq: int) -> None:
        """The message left."""
        self.rates.pop(seq, None)
