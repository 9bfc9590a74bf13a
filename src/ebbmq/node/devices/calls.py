"""Calls that wait for a device, in the order they are made.

Reads come first, since somebody waits for a delivery; then probes; then what changes copies, in the
order it was asked for. After a number of reads one of the others gets its turn, so that nothing
waits for ever. Neighbours of one kind are made one call: a device flushes once for all of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

Verb = Literal["put", "get", "delete", "scan", "probe", "release"]

PENDING_BYTES_MAX: Final = 64 * limits.MIB
_CALLS_MAX: Final = 10_000
_TOGETHER_BYTES_MAX: Final = 4 * limits.MIB
_TOGETHER_COUNT_MAX: Final = 4_096
_READS_IN_A_ROW: Final = 16
_MERGED: Final = ("put", "get", "delete")


class Call(NamedTuple):
    """What to do, with how many bytes, and who is told."""

    verb: Verb
    given: Sequence[Any]
    nbytes: int
    future: Future[Any]


class Waiting:
    """The calls of a device that nobody has begun; bounded. The port that owns it has the lock."""

    def __init__(self) -> None:
        self._reads: deque[Call] = deque()
        self._probes: deque[Call] = deque()
        self._changes: deque[Call] = deque()
        self._reads_in_a_row = 0
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._reads) + len(self._changes)

    def __bool__(self) -> bool:
        return bool(self._reads or self._probes or self._changes)

    def has_room(self, nbytes: int) -> bool:
        """Whether another call may wait; a single one always may."""
        if not self._changes:
            return len(self) < _CALLS_MAX
        return len(self) < _CALLS_MAX and self.pending_bytes + nbytes <= PENDING_BYTES_MAX

    def add(self, call: Call) -> None:
        """Wait behind those of its kind."""
        if call.verb == "get":
            self._reads.append(call)
        elif call.verb == "probe":
            self._probes.append(call)
        else:
            self._changes.append(call)
            self.pending_bytes += call.nbytes

    def take(self) -> list[Call]:
        """What is next, with its neighbours of the same kind; those given up are left out."""
        while self:
            calls = [call for call in self._next() if call.future.set_running_or_notify_cancel()]
            if calls:
                return calls
        return []

    def take_all(self, *, probes: bool = False) -> list[Call]:
        """Everything; probes, which are for times like these, only if asked for."""
        found = [*self._reads, *self._changes, *(self._probes if probes else ())]
        self._reads.clear()
        self._changes.clear()
        if probes:
            self._probes.clear()
        self.pending_bytes = 0
        return [call for call in found if call.future.set_running_or_notify_cancel()]

    def _next(self) -> list[Call]:
        others = self._probes or self._changes
        if self._reads and (not others or self._reads_in_a_row < _READS_IN_A_ROW):
            self._reads_in_a_row += 1
            return _together(self._reads)
        self._reads_in_a_row = 0
        if self._probes:
            return [self._probes.popleft()]
        calls = _together(self._changes)
        self.pending_bytes -= sum(call.nbytes for call in calls)
        return calls


def _together(calls: deque[Call]) -> list[Call]:
    found = [calls.popleft()]
    verb, count, nbytes = found[0].verb, len(found[0].given), found[0].nbytes
    while calls and verb in _MERGED and calls[0].verb == verb:
        count += len(calls[0].given)
        nbytes += calls[0].nbytes
        if count > _TOGETHER_COUNT_MAX or nbytes > _TOGETHER_BYTES_MAX:
            break
        found.append(calls.popleft())
    return found
