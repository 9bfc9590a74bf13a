"""What plans hold messages to: a target and a tier for each, as long as nothing newer overrides it.

A pin is advice that was checked and applied (ADR 0023). It is kept beside the copies it led to, and
`policy.placement` asks for it whenever it is asked where copies should be. Messages of one run
mostly share what they are held to, so equal advice is one object and a message has its number: six
bytes, however many fields there are.

PINNED   msgpack: [[run, action, target, tier, decided_at_ms, until_ms, generation,
policy_version] or nil, [first seq, rows, first seq, rows ..]] and so on in pairs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ebbmq.core import facts as fact
from ebbmq.core import held
from ebbmq.core.copies import name_of
from ebbmq.core.shared_values import SharedValues
from ebbmq.policy.placement import Pin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.core.copies import Name

_Told = tuple[str, str, int, str | None, int, int, int, int]
_DECODE: Final = msgspec.msgpack.Decoder(list[tuple[_Told | None, list[int]]])


class Advice(NamedTuple):
    """An action of a plan that was applied."""

    run: str
    action: str
    pin: Pin


class Pins:
    """The advice that messages of a node are held to."""

    def __init__(self) -> None:
        self._advice: SharedValues[Advice | None] = SharedValues(None)

    def __len__(self) -> int:
        return len(self._advice)

    def of(self, name: Name) -> Advice | None:
        """What a message is held to."""
        return self._advice.get(name)

    def of_many(self, names: Sequence[Name]) -> list[Advice | None]:
        """What messages are held to; equal advice is the same object."""
        return self._advice.get_many(names) if len(self) else [None] * len(names)

    def pin(self, names: Sequence[Name], advice: Advice | None) -> list[fact.Fact]:
        """Hold messages to advice, or to none any more; returns the facts to append."""
        self._advice.set_many(names, advice)
        return pack(names, advice)

    def forget(self, names: Sequence[Name]) -> None:
        """Messages left; that they did is on the record already."""
        if len(self):
            self._advice.set_many(names, None)

    def has_run_out(self, now_ms: int) -> bool:
        """Whether some advice holds no more."""
        return any(
            advice is not None and advice.pin.until_ms <= now_ms
            for advice, _ in self._advice.counts()
        )

    def runs(self) -> dict[str, int]:
        """How many messages are held to the advice of each run."""
        found: dict[str, int] = {}
        for advice, count in self._advice.counts():
            if advice is not None:
                found[advice.run] = found.get(advice.run, 0) + count
        return found

    def after(self, name: Name, count: int) -> list[tuple[Name, Advice]]:
        """At most `count` messages that are held to some, from a name on; none: no more."""
        return [(each, advice) for each, advice in self._advice.after(name, count) if advice]

    def names(self) -> Iterator[Name]:
        """Every message that is held to some."""
        for name, _ in self._advice.items():
            yield name

    def restore(self, pid: int, payload: bytes | memoryview) -> None:
        """Make a fact true."""
        base = name_of(pid, 0)
        for told, runs in _DECODE.decode(payload):
            advice = None if told is None else _advice(told)
            for first, count in zip(runs[::2], runs[1::2], strict=True):
                self._advice.set_many(range(base | first, (base | first) + count), advice)


def pack(names: Sequence[Name], advice: Advice | None) -> list[fact.Fact]:
    """What messages are held to as journal records."""
    plain = None if advice is None else (advice.run, advice.action, *advice.pin)
    return list(held.told(fact.PINNED, plain, names))


def seqs_of(payload: bytes | memoryview) -> Iterator[int]:
    """The messages a PINNED record is about."""
    for _, runs in _DECODE.decode(payload):
        for first, count in zip(runs[::2], runs[1::2], strict=True):
            yield from range(first, first + count)


def _advice(told: _Told) -> Advice:
    return Advice(told[0], told[1], Pin(*told[2:]))
