"""The decisions log: what was decided about where messages are, bounded on disk (ADR 0030).

For people who ask about a message, so it is never waited for: decisions are noted in RAM and
written some moments later, by a thread that nobody waits for. A kill may cost those moments, and a
disk that takes nothing costs what it did not take; where copies are is in the journal, not here.
Two files take turns, so the newest half of the bound is always there.

    block: [u32 magic][u32 bytes of payload][u32 crc of payload][u32 0]
           [u64 lowest name][u64 highest name] payload
    payload: msgpack, one for each kind of decision:
           [event, device, reason, u64 at_ms * n, u64 first name * n, u32 names * n,
            u32 which in the block * n]
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.core.copies import followed_by
from ebbmq.core.facts import runs_of
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ebbmq.core.copies import Name

_MAGIC: Final = 0x44424245
_BLOCK: Final = Struct("<IIIIQQ")
#: Decisions that wait to be written; where nothing is, the oldest of them are forgotten.
_PENDING_MAX: Final = 16_384
#: Neighbours about which the same was decided so soon after one another are told of together.
_TOGETHER_MS: Final = 50
#: So few are put in order one by one.
_FEW: Final = 16
_FILE_BYTES_MAX: Final = limits.DECISIONS_BYTES_MAX // 2
_INSTANTS, _NAMES, _COUNTS, _NUMBERS = "<u8", "<u8", "<u4", "<u4"
_Packed = tuple[str, str, str, bytes, bytes, bytes, bytes]
_ENCODE: Final = msgspec.msgpack.Encoder()
_DECODE: Final = msgspec.msgpack.Decoder(list[_Packed])


class Told(NamedTuple):
    """One decision about some messages."""

    at_ms: int
    event: str
    device: str
    reason: str
    names: Sequence[Name]


class DecisionLog:
    """The log's files; who notes something is alone, and anybody may write or read."""

    def __init__(self, directory: Path, bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._current = directory / "decisions.log"
        self._former = directory / "decisions.1.log"
        self._bytes_max = bytes_max
        self._pending: deque[Told] = deque(maxlen=_PENDING_MAX)
        #: Guards the files.
        self._writing = threading.Lock()
        self._is_failing = False
        directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._current, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A block cut short by a crash goes.
        self._end = max((end for _, end in _heads(_mapped(self._current))), default=0)
        os.ftruncate(self._descriptor, self._end)

    def note(self, told: Told) -> None:
        """Keep a decision; `flush` writes it."""
        self._pending.append(told)

    def flush(self) -> None:
        """Write what was noted; a disk that does not take it is tried again with the next."""
        if not self._pending:
            return
        with self._writing:
            some: list[Told] = []
            with contextlib.suppress(IndexError):
                while len(some) < _PENDING_MAX:
                    some.append(self._pending.popleft())
            if not some:
                return
            try:
                self._append(_block(some))
            except OSError as error:
                if not self._is_failing:
                    log.warning("decisions_not_written", detail=error.strerror, count=len(some))
                self._is_failing = True
            else:
                self._is_failing = False

    def _append(self, data: bytes) -> None:
        if self._end + len(data) > self._bytes_max and self._end:
            # It is not there if opening a new one failed the last time.
            with contextlib.suppress(FileNotFoundError):
                self._current.replace(self._former)
            full = self._descriptor
            self._descriptor = os.open(self._current, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end = 0
            os.close(full)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, memoryview(data)[done:], self._end + done)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)

    def of(self, name: Name) -> list[Told]:
        """What was decided about a message, as far as it is on record, oldest first."""
        self.flush()
        with self._writing:
            files = [_mapped(self._former), _mapped(self._current)[: self._end]]
        found = [told for data in files for told in _search(data, name)]
        # What the disk did not take, or what came meanwhile.
        found += [told._replace(names=[name]) for told in list(self._pending) if name in told.names]
        return found

    def since_ms(self) -> int | None:
        """Since when decisions are on record; None: none was given up for newer ones."""
        with self._writing:
            data = _mapped(self._former)
        packed = next((_packed(data, head) for head in _heads(data)), None)
        if not packed:
            return None
        return min(int(np.frombuffer(each[3], _INSTANTS).min()) for each in packed)

    def close(self) -> None:
        """Write what was noted, and let go of the file."""
        self.flush()
        with self._writing:
            os.close(self._descriptor)


def _block(some: Sequence[Told]) -> bytes:
    """Decisions as they are written, those of a kind together, and each with its number."""
    kinds: dict[tuple[str, str, str], _Columns] = {}
    for number, (told, names) in enumerate(_together(some)):
        kind = told.event, told.device, told.reason
        columns = kinds.get(kind)
        if columns is None:
            columns = kinds[kind] = _Columns()
        columns.add(told.at_ms, number, names)
    payload = _ENCODE.encode([(*kind, *columns.packed()) for kind, columns in kinds.items()])
    low = min(columns.low for columns in kinds.values())
    high = max(columns.high for columns in kinds.values())
    return _BLOCK.pack(_MAGIC, len(payload), crc32c(payload), 0, low, high) + payload


class _Columns:
    """Decisions of one kind: runs of messages, with when and which it was."""

    def __init__(self) -> None:
        self.low, self.high = 1 << 64, 0
        self._runs: list[tuple[int, int, int, int]] = []
        self._many: list[Sequence[bytes]] = []

    def add(self, at_ms: int, number: int, names: Sequence[Name]) -> None:
        """The same was decided about these messages."""
        if type(names) is range or len(names) <= _FEW:
            runs = runs_of(names)
            self._runs += [(at_ms, first, count, number) for first, count in runs]
            low, high = runs[0][0], sum(runs[-1]) - 1
        else:
            ordered = np.sort(np.array(names, _NAMES))
            low, high = int(ordered[0]), int(ordered[-1])
            begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1]) != 1)
            counts = np.diff(begins, append=len(ordered))
            self._many.append(
                (
                    np.full(len(begins), at_ms, _INSTANTS).tobytes(),
                    ordered[begins].tobytes(),
                    counts.astype(_COUNTS).tobytes(),
                    np.full(len(begins), number, _NUMBERS).tobytes(),
                )
            )
        self.low, self.high = min(self.low, low), max(self.high, high)

    def packed(self) -> list[bytes]:
        """As they are written."""
        forms = (_INSTANTS, _NAMES, _COUNTS, _NUMBERS)
        return [
            b"".join(
                [
                    np.array([run[at] for run in self._runs], form).tobytes(),
                    *(many[at] for many in self._many),
                ]
            )
            for at, form in enumerate(forms)
        ]


def _together(some: Sequence[Told]) -> Iterator[tuple[Told, Sequence[Name]]]:
    """Decisions with their messages; the same about the next message, and soon, is one with it.

    It counts as of the last of them: nothing was decided about a message before it came.
    """
    last, names, since_ms = some[0], some[0].names, some[0].at_ms
    for told in some[1:]:
        more = told.names
        if (
            told[1:4] == last[1:4]
            and more[0] == names[-1] + 1
            and told.at_ms - since_ms <= _TOGETHER_MS
        ):
            last, names = told, followed_by(names, more)
        else:
            yield last, names
            last, names, since_ms = told, more, told.at_ms
    yield last, names


def _search(data: memoryview, name: Name) -> Iterator[Told]:
    for at, end in _heads(data):
        low, high = _BLOCK.unpack_from(data, at)[4:]
        if not low <= name <= high:
            continue
        found: list[tuple[int, Told]] = []
        for event, device, reason, instants, names, counts, numbers in _packed(data, (at, end)):
            first = np.frombuffer(names, _NAMES)
            here = (first <= name) & (name - first < np.frombuffer(counts, _COUNTS))
            found += [
                (number, Told(at_ms, event, device, reason, [name]))
                for at_ms, number in zip(
                    np.frombuffer(instants, _INSTANTS)[here].tolist(),
                    np.frombuffer(numbers, _NUMBERS)[here].tolist(),
                    strict=True,
                )
            ]
        yield from (told for _, told in sorted(found, key=itemgetter(0)))


def _packed(data: memoryview, head: tuple[int, int]) -> list[_Packed]:
    """The decisions of a block; none if it is damaged."""
    at, end = head
    payload = data[at + _BLOCK.size : end]
    if crc32c(payload) != _BLOCK.unpack_from(data, at)[2]:
        return []
    return _DECODE.decode(payload)


def _heads(data: memoryview) -> Iterator[tuple[int, int]]:
    """(start, end) of each block that is there as a whole."""
    at, size = 0, len(data)
    while at + _BLOCK.size <= size:
        magic, length, *_ = _BLOCK.unpack_from(data, at)
        end = at + _BLOCK.size + length
        if magic != _MAGIC or end > size:
            return
        yield at, end
        at = end


def _mapped(path: Path) -> memoryview:
    """A file's bytes, mapped: the log may be larger than the RAM there is to spare."""
    if not path.exists() or not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
