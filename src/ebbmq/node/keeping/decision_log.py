"""The decisions log: what was decided about where messages are, bounded on disk (ADR 0030).

For people who ask about a message, so it is never waited for: decisions are noted in RAM and
written some moments later, by a thread that nobody waits for. A kill may cost those moments, and a
disk that takes nothing costs what it did not take; where copies are is in the journal, not here.
Two files take turns, so the newest half of the bound is always there.

    block: [u32 magic][u32 bytes of payload][u32 crc of payload][u32 0]
           [u64 lowest name][u64 highest name] payload
    payload: msgpack, [alike, saids, batches]
    alike: one for each kind of decision:
           [event, device, reason, u64 at_ms * n, u64 first name * n, u32 names * n,
            u32 which in the block * n]
    batches: of messages placed together for many reasons:
           [at_ms, first name, which in the block, u32 which of saids, + 1, or 0 * messages]
    saids: [device, reason]
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from operator import add, itemgetter
from struct import Struct, pack
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

_MAGIC: Final = 0x45424245
_BLOCK: Final = Struct("<IIIIQQ")
#: Decisions that wait to be written; where nothing is, the oldest of them are forgotten.
_PENDING_MAX: Final = 16_384
#: Neighbours about which the same was decided so soon after one another are told of together.
_TOGETHER_MS: Final = 50
#: So few are put in order, and packed, one by one.
_FEW: Final = 16
_FILE_BYTES_MAX: Final = limits.DECISIONS_BYTES_MAX // 2
_INSTANTS, _NAMES, _COUNTS, _NUMBERS = "<u8", "<u8", "<u4", "<u4"
_Packed = tuple[str, str, str, bytes, bytes, bytes, bytes]
_Batched = tuple[int, int, int, bytes]
_ENCODE: Final = msgspec.msgpack.Encoder()


class Said(NamedTuple):
    """Where a message goes, and why."""

    device: str
    reason: str


class Batch(NamedTuple):
    """What was decided about messages in a row as they were placed."""

    at_ms: int
    first: Name
    #: Of each of them; None: there was nothing to decide.
    saids: Sequence[Said | None]

    def of(self, name: Name) -> Said | None:
        """What was said of one."""
        at = name - self.first
        return self.saids[at] if 0 <= at < len(self.saids) else None


_Payload = tuple[list[_Packed], list[Said], list[_Batched]]
_DECODE: Final = msgspec.msgpack.Decoder(_Payload)
_PLACED: Final = "placed"


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
        self._pending: deque[Told | Batch] = deque(maxlen=_PENDING_MAX)
        #: Guards the files.
        self._writing = threading.Lock()
        self._is_failing = False
        directory.mkdir(parents=True, exist_ok=True)
        # A block cut short by a crash goes.
        self._end = max((end for _, end in _heads(_mapped(self._current))), default=0)
        self._descriptor = os.open(self._current, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, self._end)

    def note(self, told: Told | Batch) -> None:
        """Keep a decision; `flush` writes it."""
        self._pending.append(told)

    def flush(self) -> None:
        """Write what was noted; a disk that does not take it is tried again with the next."""
        if not self._pending:
            return
        with self._writing:
            if self._descriptor < 0:
                return
            some: list[Told | Batch] = []
            with contextlib.suppress(IndexError):
                while len(some) < _PENDING_MAX:
                    some.append(self._pending.popleft())
            if not some:
                return
            try:
                self._append(_block(some))
            except (OSError, UnicodeEncodeError) as error:
                # What people may ask about is not worth more than what a broker does.
                if not self._is_failing:
                    log.warning("decisions_not_written", detail=str(error), count=len(some))
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
        for told in list(self._pending):
            if isinstance(told, Batch):
                said = told.of(name)
                if said is not None:
                    found.append(Told(told.at_ms, _PLACED, *said, [name]))
            elif name in told.names:
                found.append(told._replace(names=[name]))
        return found

    def since_ms(self) -> int | None:
        """Since when decisions are on record; None: none was given up for newer ones."""
        with self._writing:
            data = _mapped(self._former)
        alike, _, batches = next((_packed(data, head) for head in _heads(data)), ([], [], []))
        instants = [int(np.frombuffer(each[3], _INSTANTS).min()) for each in alike]
        return min([*instants, *(at_ms for at_ms, *_ in batches)], default=None)

    def close(self) -> None:
        """Write what was noted, and let go of the file; nothing is written after that."""
        try:
            self.flush()
        finally:
            with self._writing:
                # By now its number may be that of another file.
                descriptor, self._descriptor = self._descriptor, -1
                if descriptor >= 0:
                    os.close(descriptor)


def _block(some: Sequence[Told | Batch]) -> bytes:
    """Decisions as they are written, those of a kind together, and each with its number."""
    kinds: dict[tuple[str, str, str], _Columns] = {}
    saids: dict[Said | None, int] = {None: 0}
    batches: list[_Batched] = []
    low, high = 1 << 64, 0
    for number, (told, names) in enumerate(_together(some)):
        if isinstance(told, Batch):
            for said in set(told.saids).difference(saids):
                saids[said] = len(saids)
            which = np.array([saids[said] for said in told.saids], _NUMBERS).tobytes()
            batches.append((told.at_ms, told.first, number, which))
            low, high = min(low, told.first), max(high, told.first + len(told.saids) - 1)
            continue
        kind = told[1:4]
        columns = kinds.get(kind)
        if columns is None:
            columns = kinds[kind] = _Columns()
        columns.add(told.at_ms, number, names)
    alike = [(*kind, *columns.packed()) for kind, columns in kinds.items()]
    payload = _ENCODE.encode((alike, list(saids)[1:], batches))
    low = min([low, *(columns.low for columns in kinds.values())])
    high = max([high, *(columns.high for columns in kinds.values())])
    return _BLOCK.pack(_MAGIC, len(payload), crc32c(payload), 0, low, high) + payload


class _Columns:
    """Decisions of one kind: runs of messages, with when and which it was."""

    __slots__ = ("_counts", "_firsts", "_instants", "_numbers")

    def __init__(self) -> None:
        self._instants: list[int] = []
        self._firsts: list[Name] = []
        self._counts: list[int] = []
        self._numbers: list[int] = []

    def add(self, at_ms: int, number: int, names: Sequence[Name]) -> None:
        """The same was decided about these messages."""
        if len(names) == 1:
            self._instants.append(at_ms)
            self._firsts.append(names[0])
            self._counts.append(1)
            self._numbers.append(number)
            return
        if type(names) is range or len(names) <= _FEW:
            runs = runs_of(names)
            self._firsts += [first for first, _ in runs]
            self._counts += [count for _, count in runs]
        else:
            ordered = np.sort(np.array(names, _NAMES))
            begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1]) != 1)
            self._firsts += ordered[begins].tolist()
            self._counts += np.diff(begins, append=len(ordered)).tolist()
        more = len(self._firsts) - len(self._instants)
        self._instants += [at_ms] * more
        self._numbers += [number] * more

    @property
    def low(self) -> Name:
        """The lowest name among them."""
        return min(self._firsts)

    @property
    def high(self) -> Name:
        """The highest."""
        highest: Name = max(map(add, self._firsts, self._counts)) - 1
        return highest

    def packed(self) -> tuple[bytes, bytes, bytes, bytes]:
        """As they are written."""
        return (
            _column(self._instants, _INSTANTS),
            _column(self._firsts, _NAMES),
            _column(self._counts, _COUNTS),
            _column(self._numbers, _NUMBERS),
        )


def _column(values: list[int], form: str) -> bytes:
    """Values as numpy packs them; few ones cost less without it."""
    if len(values) > _FEW:
        return np.array(values, form).tobytes()
    return pack(f"<{len(values)}{'Q' if form == _NAMES else 'I'}", *values)


def _together(some: Sequence[Told | Batch]) -> Iterator[tuple[Told | Batch, Sequence[Name]]]:
    """Decisions with their messages; the same about the next message, and soon, is one with it.

    It counts as of the last of them: nothing was decided about a message before it came.
    """
    last: Told | None = None
    names: Sequence[Name] = ()
    since_ms = 0
    for told in some:
        if (
            last is not None
            and isinstance(told, Told)
            and told[1:4] == last[1:4]
            and told.names[0] == names[-1] + 1
            and told.at_ms - since_ms <= _TOGETHER_MS
        ):
            last, names = told, followed_by(names, told.names)
            continue
        if last is not None:
            yield last, names
        last = None
        if isinstance(told, Batch):
            yield told, ()
        else:
            last, names, since_ms = told, told.names, told.at_ms
    if last is not None:
        yield last, names


def _search(data: memoryview, name: Name) -> Iterator[Told]:
    for at, end in _heads(data):
        low, high = _BLOCK.unpack_from(data, at)[4:]
        if not low <= name <= high:
            continue
        found: list[tuple[int, Told]] = []
        alike, saids, batches = _packed(data, (at, end))
        for at_ms, begin, number, which in batches:
            batch = np.frombuffer(which, _NUMBERS)
            if begin <= name < begin + len(batch) and batch[name - begin]:
                said = saids[int(batch[name - begin]) - 1]
                found.append((number, Told(at_ms, _PLACED, *said, [name])))
        for event, device, reason, instants, names, counts, numbers in alike:
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


def _packed(data: memoryview, head: tuple[int, int]) -> _Payload:
    """The decisions of a block; none if it is damaged."""
    at, end = head
    payload = data[at + _BLOCK.size : end]
    if crc32c(payload) != _BLOCK.unpack_from(data, at)[2]:
        return [], [], []
    decoded: _Payload = _DECODE.decode(payload)
    return decoded


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
