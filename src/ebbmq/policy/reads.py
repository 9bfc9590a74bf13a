"""From which of its copies a body is read: the fastest one whose device is well.

A device that strains (its status is low) comes after those that do not; then the one that answers
sooner by far, then the one of the faster kind. Small differences in latency come and go, so they
count only where all else is equal; and what is as good as the node's own log is not asked instead
of it: the log is read without a thread between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.policy.status import EXTRA_COPIES_ABOVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.policy.rules.properties import States

#: Below it one device is as good as another; above, each doubling counts.
_NOTICED_MS: Final = 50.0


def fastest_first(copies: Iterable[str], states: States, log: str) -> list[str]:
    """The devices that can be used, the one to be read from first; `log` is the node's own log."""

    def order(device: str) -> tuple[bool, int, int, bool, float, str]:
        state = states[device]
        doublings = int(min(state.latency_ms, 1e9) / _NOTICED_MS).bit_length()
        return (
            state.status < EXTRA_COPIES_ABOVE,
            doublings,
            state.slowness,
            device != log,
            state.latency_ms,
            device,
        )

    return sorted((each for each in copies if each in states and states[each].usable), key=order)


def before_log(copies: Iterable[str], states: States, log: str) -> list[str]:
    """Those of them that are to be read from rather than the log, which has a copy too."""
    ordered = fastest_first({*copies, log}, states, log)
    return ordered[: ordered.index(log)] if log in ordered else ordered
