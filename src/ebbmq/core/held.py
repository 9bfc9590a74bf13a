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
from ebbmq.core.copies import Fact, Gone, Held, Holding, name_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Told = tuple[list[str], list[str], list[str], list[str], int, int, bool, int]
_DECODE_HELD: Final = msgspec.msgpack.Decoder(list[tuple[_Told, list[int]]])
_DECODE_GONE: Final = msgspec.msgpack.Decoder(list[tuple[list[str], list[int]]])
_ENCODE: Final = msgspec.msgpack.Encoder()


def pack(facts: Iterable[Fact]) -> list[fact.Fact]:
    """Facts of any messages as journal records, in an order that comes to the same."""
    groups: dict[tuple[int, int], dict[object, list[int]]] = {}
    for each in facts:
        pid, seq = parts_of(each.name)
        if isinstance(each, Held):
            groups.setdefault((fact.HELD, pid), {}).setdefault(each.holding, []).append(seq)
        else:
            groups.setdefault((fact.GONE, pid), {}).setdefault(each.waiting, []).append(seq)
    out: list[fact.Fact] = []
    for (kind, pid), told in groups.items():
        for value, seqs in told.items():
            for at in range(0, len(seqs), limits.RECORD_ROWS_MAX):
                part = seqs[at : at + limits.RECORD_ROWS_MAX]
                runs = [number for run in fact.runs_of(part) for number in run]
                payload = _ENCODE.encode([(_plain(value), runs)])
                out.append(fact.Fact(kind, pid, 0, min(part), [payload]))
    return out


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
    for fact_of in unpack(kind, 0, payload):
        yield fact_of.name


def _seqs(runs: list[int]) -> Iterator[int]:
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, first + count)


def _plain(value: object) -> object:
    if isinstance(value, Holding):
        return (*map(sorted, value[:4]), *value[4:])
    assert isinstance(value, frozenset)
    return sorted(value)
