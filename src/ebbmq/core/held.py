"""Facts about copies as the journal holds them: what is equal of many messages is said once.

HELD   msgpack: [[copies, pending, dropping, leaving, target, min_copies, durable, replicas],
[first seq, rows, first seq, rows ..]] and so on in pairs
GONE   msgpack: [[devices that have yet to confirm], [first seq, rows ..]] and so on in pairs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core.copies import (
    Changed,
    Devices,
    Fact,
    Gone,
    Held,
    Holding,
    Name,
    name_of,
    parts_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_Told = tuple[list[str], list[str], list[str], list[str], int, int, bool, int]
_DECODE_HELD: Final = msgspec.msgpack.Decoder(list[tuple[_Told, list[int]]])
_DECODE_GONE: Final = msgspec.msgpack.Decoder(list[tuple[list[str], list[int]]])
_ENCODE: Final = msgspec.msgpack.Encoder()


def pack(facts: Iterable[Fact]) -> list[fact.Fact]:
    """Facts of any messages as journal records, in an order that comes to the same."""
    held: dict[Holding, list[Name]] = {}
    gone: dict[Devices, list[Name]] = {}
    for each in facts:
        if isinstance(each, Held):
            held.setdefault(each.holding, []).append(each.name)
        else:
            gone.setdefault(each.waiting, []).append(each.name)
    return pack_changed(Changed(held, gone))


def pack_changed(changed: Changed) -> list[fact.Fact]:
    """The facts of a transition of many as journal records."""
    out = [
        each
        for value, names in changed.held.items()
        for each in told(fact.HELD, _plain(value), names)
    ]
    out += [
        each
        for value, names in changed.gone.items()
        for each in told(fact.GONE, _plain(value), names)
    ]
    return out


def told(kind: int, plain: object, names: Sequence[Name]) -> Iterator[fact.Fact]:
    """What is true of these messages, partition by partition; names sort by partition."""
    by_pid: dict[int, list[tuple[int, int]]] = {}
    for first, count in fact.runs_of(names):
        pid, seq = parts_of(first)
        by_pid.setdefault(pid, []).append((seq, count))
    for pid, runs in by_pid.items():
        for part in _parts(runs):
            payload = _ENCODE.encode([(plain, [number for run in part for number in run])])
            yield fact.Fact(kind, pid, 0, part[0][0], [payload])


def _parts(runs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Runs so that no record is about too many."""
    part: list[tuple[int, int]] = []
    room = limits.RECORD_ROWS_MAX
    for first, count in runs:
        at, end = first, first + count
        while at < end:
            take = min(room, end - at)
            part.append((at, take))
            at, room = at + take, room - take
            if not room:
                yield part
                part, room = [], limits.RECORD_ROWS_MAX
    if part:
        yield part


def unpack(kind: int, pid: int, payload: bytes | memoryview) -> Iterator[Fact]:
    """The facts of a HELD or GONE record."""
    if kind == fact.HELD:
        for told, runs in _DECODE_HELD.decode(payload):
            copies, pending, dropping, leaving = map(frozenset, told[:4])
            holding = Holding(copies, pending, dropping, leaving, *told[4:])
            for seq in _seqs(runs):
                yield Held(name_of(pid, seq), holding)
        return
    for waiting, runs in _DECODE_GONE.decode(payload):
        devices = frozenset(waiting)
        for seq in _seqs(runs):
            yield Gone(name_of(pid, seq), devices)


def seqs_of(kind: int, payload: bytes | memoryview) -> Iterator[int]:
    """The messages a HELD or GONE record is about."""
    about: list[list[int]] = (
        [runs for _, runs in _DECODE_HELD.decode(payload)]
        if kind == fact.HELD
        else [runs for _, runs in _DECODE_GONE.decode(payload)]
    )
    for runs in about:
        yield from _seqs(runs)


def _seqs(runs: list[int]) -> Iterator[int]:
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, first + count)


def _plain(value: Holding | Devices) -> object:
    if isinstance(value, Holding):
        return (*map(sorted, value[:4]), *value[4:])
    return sorted(value)
