"""Latency histories of messages that failed: twelve bytes a failure, in pages like the index.

A page is a run of records in order of arrival. A message's records are found by looking through
its page, which is read seldom: failures are rare, and a page has at most `PAGE_ROWS` messages.
Records of messages that left stay until half of a page is of them.

    u16 slot   u8 node (number of its name)   u8 outcome   u32 attempt   u32 duration_ms
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.core.index import PAGE_BITS, SLOT_MASK
from ebbmq.core.values import distinct_values
from ebbmq.model import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_RECORD: Final = Struct("<HBBII")
_SLOT: Final = Struct("<H")
_DTYPE: Final = np.dtype(
    [("slot", "<u2"), ("node", "u1"), ("outcome", "u1"), ("attempt", "<u4"), ("ms", "<u4")]
)
_GONE: Final = 0xFFFF
_OUTCOMES: Final = ("retried", "lease_expired")
_NODES_MAX: Final = 255
_DURATION_MS_MAX: Final = (1 << 32) - 1
assert limits.PAGE_ROWS < _GONE


class _Page:
    """The records of one page of messages."""

    __slots__ = ("gone", "records")

    def __init__(self, records: bytes = b"") -> None:
        self.records = bytearray(records)
        self.gone = 0

    def at(self, slot: int) -> list[int]:
        """Where the records of a message are, oldest first."""
        view = np.frombuffer(self.records, dtype=_DTYPE)
        found: list[int] = np.flatnonzero(view["slot"] == slot).tolist()
        return found

    def at_any(self, slots: list[int]) -> list[tuple[int, int]]:
        """Where the records of some messages are, oldest first, and of which slot each is."""
        wanted = np.zeros(_GONE + 1, dtype=np.bool_)
        wanted[slots] = True
        found = np.frombuffer(self.records, dtype=_DTYPE)["slot"]
        places = np.flatnonzero(wanted[found])
        return list(zip(places.tolist(), found[places].tolist(), strict=True))

    def drop(self, places: Sequence[int]) -> None:
        """Take records out."""
        for place in places:
            _SLOT.pack_into(self.records, place * _RECORD.size, _GONE)
        self.gone += len(places)
        if self.gone * 2 * _RECORD.size > len(self.records):
            self.records = bytearray(self.live())
            self.gone = 0

    def live(self) -> bytes:
        """The records of messages that are still there."""
        view = np.frombuffer(self.records, dtype=_DTYPE)
        return bytes(view[view["slot"] != _GONE].tobytes())


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """All histories of a partition, as a checkpoint keeps them."""

    nodes: list[str]
    pages: dict[int, bytes]


class Histories:
    """The last timings of each message that failed, by message number."""

    __slots__ = ("_nodes", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, _Page] = {}
        self._nodes: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._pages)

    def __contains__(self, seq: int) -> bool:
        page = self._pages.get(seq >> PAGE_BITS)
        return page is not None and bool(page.at(seq & SLOT_MASK))

    def get(self, seq: int) -> tuple[Timing, ...]:
        """What is known of a message, oldest first."""
        page = self._pages.get(seq >> PAGE_BITS)
        if page is None:
            return ()
        return tuple(self._timing(page, place) for place in page.at(seq & SLOT_MASK))

    def of(self, seqs: Iterable[int]) -> dict[int, tuple[Timing, ...]]:
        """`get` for many messages; those without a history are left out."""
        by_page: dict[int, list[int]] = {}
        for seq in seqs:
            by_page.setdefault(seq >> PAGE_BITS, []).append(seq & SLOT_MASK)
        out: dict[int, tuple[Timing, ...]] = {}
        for number in by_page.keys() & self._pages.keys():
            page = self._pages[number]
            for place, slot in page.at_any(by_page[number]):
                seq = number << PAGE_BITS | slot
                out[seq] = (*out.get(seq, ()), self._timing(page, place))
        return out

    def add(self, seq: int, timing: Timing, failures: int) -> None:
        """Add the latest of a message that failed that often; the oldest go."""
        page = self._pages.setdefault(seq >> PAGE_BITS, _Page())
        slot = seq & SLOT_MASK
        page.records += _RECORD.pack(
            slot,
            self._node(timing.node),
            _OUTCOMES.index(timing.outcome),
            timing.attempt,
            min(timing.duration_ms, _DURATION_MS_MAX),
        )
        if failures > limits.HISTORY_ENTRIES_MAX:
            page.drop(page.at(slot)[: -limits.HISTORY_ENTRIES_MAX])

    def replace(self, seq: int, timings: Sequence[Timing]) -> None:
        """Make the history of a message what is given."""
        self.forget(seq)
        for timing in timings:
            self.add(seq, timing, 1)

    def forget(self, seq: int) -> None:
        """Drop the history of a message that left; one that never failed has none."""
        page = self._pages.get(seq >> PAGE_BITS)
        if page is None:
            return
        page.drop(page.at(seq & SLOT_MASK))
        if not page.records:
            del self._pages[seq >> PAGE_BITS]

    def keep(self, is_there: Callable[[int], bool]) -> None:
        """Drop the histories of messages that are not there."""
        for number, page in list(self._pages.items()):
            slots = distinct_values(np.frombuffer(page.records, dtype=_DTYPE)["slot"]).tolist()
            for slot in slots:
                seq = number << PAGE_BITS | slot
                if slot != _GONE and not is_there(seq):
                    self.forget(seq)

    def pack(self) -> bytes:
        """Everything, for a checkpoint."""
        pages = {number: page.live() for number, page in self._pages.items()}
        return msgspec.msgpack.encode(Packed(self._nodes, pages))

    def restore(self, packed: bytes) -> None:
        """Take what `pack` gave; for an empty one."""
        found = msgspec.msgpack.decode(packed, type=Packed)
        self._nodes = found.nodes
        self._pages = {number: _Page(records) for number, records in found.pages.items()}

    def _timing(self, page: _Page, place: int) -> Timing:
        _, node, outcome, attempt, duration_ms = _RECORD.unpack_from(
            page.records, place * _RECORD.size
        )
        return Timing(self._nodes[node], attempt, duration_ms, _OUTCOMES[outcome])

    def _node(self, name: str) -> int:
        if name in self._nodes:
            return self._nodes.index(name)
        if len(self._nodes) == _NODES_MAX:
            self._nodes[-1] = name  # a store renamed this often has no use for its oldest names
            return _NODES_MAX - 1
        self._nodes.append(name)
        return len(self._nodes) - 1
