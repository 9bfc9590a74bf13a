"""A first-in-first-out line of row numbers at two to four bytes an entry.

Row numbers are 64 bits and mostly increase, so each chunk keeps 32-bit offsets from a base of its
own. The base lies on a grid of 2**31, one step below the chunk's first row number: numbers up to
2**31 before or after that one share the chunk, and up to 2**32 the base is 0 (an offset is the row
number, there is nothing to add). A chunk that is used up is freed at once.

A deep line is mostly chunks that nobody touches before their turn comes. Where row numbers rise in
steps below 2**16, such a chunk is packed: its first and last offset, and the steps as 16 bits each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    #: Offsets, or what `_packed` made of them.
    Kept = array[int] | bytes

CHUNK_ROWS: Final = 4_096
_OFFSET_END: Final = 1 << 32
_STEP_MAX: Final = (1 << 16) - 1
_ENDS: Final = Struct("=II")
#: Below this many rows a list is faster than numpy.
_FEW_ROWS: Final = 24


def _base_for(seq: int) -> int:
    return max(0, (seq >> 31) - 1) << 31


def _packed(chunk: array[int]) -> Kept:
    """Offsets for keeping: 16 bits each if they rise in small steps, else as they are.

    packed: [u32 first][u32 last][u16 step to it from the one before] for each
    """
    offsets = np.frombuffer(chunk, dtype=np.uint32)
    # A step down wraps around, to one that is far too large.
    steps = np.zeros_like(offsets)
    np.subtract(offsets[1:], offsets[:-1], out=steps[1:])
    if int(steps.max()) > _STEP_MAX:
        # An array grows in strides; what it has in hand is not needed any more.
        return chunk[:]
    return _ENDS.pack(chunk[0], chunk[-1]) + steps.astype(np.uint16).tobytes()


def _unpacked(chunk: Kept) -> array[int]:
    """Offsets as `_packed` was given them: the kept ones themselves where they are not packed."""
    if not isinstance(chunk, bytes):
        return chunk
    offsets = np.frombuffer(chunk, dtype=np.uint16, offset=_ENDS.size).astype(np.uint32)
    offsets[0] = _ENDS.unpack_from(chunk)[0]
    return array("I", np.cumsum(offsets, out=offsets).tobytes())


def _ends(chunk: Kept) -> tuple[int, int, int]:
    """The first offset, the last one, and how many there are."""
    if not isinstance(chunk, bytes):
        return chunk[0], chunk[-1], len(chunk)
    return *_ENDS.unpack_from(chunk), (len(chunk) - _ENDS.size) // 2


class Ring:
    """Row numbers in order of arrival, taken from the head or from the tail.

    Invariants: (1) no chunk is empty except a sole one, which is head and tail; (2) `_at` counts
    the entries taken from the head and is below its length, or the ring is empty and it is 0;
    (3) only chunks between head and tail are packed.
    """

    __slots__ = ("_at", "_count", "_head", "_head_base", "_inner", "_sifted", "_tail", "_tail_base")

    def __init__(self) -> None:
        self._head = self._tail = array("I")
        self._head_base = self._tail_base = 0
        #: (base, chunk) of those between head and tail.
        self._inner: list[tuple[int, Kept]] = []
        self._at = 0
        self._count = 0
        self._sifted = 0

    @classmethod
    def from_numpy(cls, seqs: npt.NDArray[np.uint64]) -> Ring:
        """Return a ring of these rows, the first one at the head."""
        ring = cls()
        ring.extend_array(seqs)
        return ring

    def __len__(self) -> int:
        return self._count

    def push(self, seq: int) -> None:
        """Add one row at the tail."""
        offset = seq - self._tail_base
        if not 0 <= offset < _OFFSET_END or len(self._tail) >= CHUNK_ROWS:
            self._start_chunk(seq)
            offset = seq - self._tail_base
        self._tail.append(offset)
        self._count += 1

    def extend(self, seqs: Sequence[int]) -> None:
        """Add rows at the tail, in this order."""
        if isinstance(seqs, range) and seqs.step == 1:
            self.extend_range(seqs.start, len(seqs))
            return
        at = 0
        while at < len(seqs):
            self._make_room(seqs[at])
            room = CHUNK_ROWS - len(self._tail)
            part = seqs if at == 0 and len(seqs) <= room else seqs[at : at + room]
            base = self._tail_base
            try:
                # Made apart from the chunk: a number that does not fit leaves the chunk as it was.
                offsets = array("I", [seq - base for seq in part] if base else part)
            except OverflowError:
                for seq in part:
                    self.push(seq)
            else:
                self._tail.extend(offsets)
                self._count += len(offsets)
            at += len(part)

    def extend_range(self, first: int, count: int) -> None:
        """Add `count` consecutive rows at the tail."""
        while count > 0:
            self._make_room(first)
            offset = first - self._tail_base
            part = min(count, CHUNK_ROWS - len(self._tail), _OFFSET_END - offset)
            if part < _FEW_ROWS:
                self._tail.extend(range(offset, offset + part))
            else:
                self._tail.frombytes(np.arange(offset, offset + part, dtype=np.uint32).tobytes())
            self._count += part
            first += part
            count -= part

    def extend_array(self, seqs: npt.NDArray[np.uint64]) -> None:
        """Add rows at the tail, in this order."""
        at = 0
        while at < len(seqs):
            first = int(seqs[at])
            self._make_room(first)
            part = seqs[at : at + CHUNK_ROWS - len(self._tail)]
            base = self._tail_base
            if len(part) < _FEW_ROWS or not self._all_fit(part):
                self.extend(part.tolist())
            else:
                self._tail.frombytes((part - np.uint64(base)).astype(np.uint32).tobytes())
                self._count += len(part)
            at += len(part)

    def head(self) -> int:
        """Return the row delivered next, or -1."""
        return self._head_base + self._head[self._at] if self._count else -1

    def newest(self) -> int:
        """Return the row at the tail, or -1."""
        return self._tail_base + self._tail[-1] if self._count else -1

    def pop(self) -> int:
        """Take the row at the head.

        Raises:
            IndexError: the ring is empty.
        """
        chunk = self._head
        at = self._at
        seq = self._head_base + chunk[at]
        self._count -= 1
        self._at = at = at + 1
        if at == len(chunk):
            self._free_head()
        return seq

    def take_some(self, n: int) -> list[int]:
        """Take up to n rows of the chunk at the head, but never its last one."""
        base, chunk, at = self._head_base, self._head, self._at
        part = chunk[at : min(at + n, len(chunk) - 1)].tolist() if self._count else []
        self._at += len(part)
        self._count -= len(part)
        return [base + offset for offset in part] if base else part

    def give_back(self, n: int) -> None:
        """Undo the taking of some; nothing else was taken since."""
        self._at -= n
        self._count += n

    def pop_many(self, n: int) -> list[int]:
        """Take up to n rows from the head."""
        taken = self.peek(n)
        self._drop(len(taken))
        return taken

    def pop_array(self, n: int) -> npt.NDArray[np.uint64]:
        """Take up to n rows from the head."""
        parts = []
        while n > 0 and self._count:
            part = self._head_array(n)
            parts.append(part)
            n -= len(part)
            self._drop(len(part))
        return _joined(parts)

    def peek_array(self, n: int) -> npt.NDArray[np.uint64]:
        """Return up to n rows at the head that share a chunk, leaving them there."""
        return self._head_array(n)

    def first_chunk(self) -> tuple[int, int]:
        """Return the first row and the last row of the chunk at the head.

        Raises:
            IndexError: the ring is empty.
        """
        base, chunk = self._head_base, self._head
        return base + chunk[self._at], base + chunk[-1]

    def give_chunks(self, to: Ring, may_go: Callable[[int, int], bool], rows: int) -> int:
        """Hand over the chunk at the head to the tail of another ring, and some that follow it.

        Those that are packed stay so: no more than three chunks are copied.

        Args:
            to: who gets them.
            may_go: whether one that follows goes, too, by its first and its last row.
            rows: none is begun with when there were so many.

        Returns:
            how many rows went
        """
        chunk, base = self._head, self._head_base
        if self._at or chunk is self._tail:
            chunk = chunk[self._at :]
        given, following = len(chunk), 0
        for inner_base, kept in self._inner:
            first, last, count = _ends(kept)
            if given >= rows or not may_go(inner_base + first, inner_base + last):
                break
            given += count
            following += 1
        others = self._inner[:following]
        del self._inner[:following]
        self._count -= given
        self._free_head()
        if chunk:
            to._adopt(base, chunk)
        if others:
            to._adopt_kept(others, given - len(chunk))
        return given

    def copy_below(self, limit_seq: int, n: int, into: dict[int, array[int]]) -> int:
        """Copy up to n rows at the head that are below the limit, offsets by their base.

        Only for a ring whose rows increase. Returns how many there were.
        """
        copied = 0
        at = self._at
        for base, chunk in self._open():
            end = len(chunk)
            if end and base + chunk[-1] >= limit_seq:
                end = bisect_left(chunk, limit_seq - base, at)
            end = min(end, at + n - copied)
            if end > at:
                part = chunk[at:end]
                copied += end - at
                if base in into:
                    into[base].extend(part)
                else:
                    into[base] = part
            if end < len(chunk):
                break
            at = 0
        return copied

    def drop(self, n: int) -> None:
        """Let go of the first n rows, at most as many as there are."""
        self._drop(min(n, self._count))

    def peek_newest(self, n: int) -> list[int]:
        """Return up to n rows at the tail, the newest first."""
        seen: list[int] = []
        n = min(n, self._count)
        for base, chunk in self._open_newest():
            if n <= 0:
                break
            # The slice may reach rows of the head that were taken; n does not.
            part = chunk[-n:].tolist()
            part.reverse()
            seen += [base + offset for offset in part] if base else part
            n -= len(part)
        return seen

    def take_newest(self, n: int) -> list[int]:
        """Take up to n rows from the tail, the newest first."""
        taken = self.peek_newest(n)
        n = len(taken)
        self._count -= n
        while n:
            part = min(n, len(self._tail))
            del self._tail[-part:]
            n -= part
            if not self._tail:
                self._free_tail()
        if not self._count:
            self._free_head()
        return taken

    def sift(self, keep: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]) -> None:
        """Let go of the rows of one inner chunk that are not to be kept; the chunks take turns."""
        if not self._inner:
            return
        at = self._sifted if self._sifted < len(self._inner) else 0
        self._sifted = at + 1
        base, packed = self._inner[at]
        chunk = _unpacked(packed)
        kept = keep(np.array(chunk, dtype=np.uint64) + np.uint64(base))
        if kept.all():
            return
        rest = array("I", np.frombuffer(chunk, dtype=np.uint32)[kept].tobytes())
        self._count -= len(chunk) - len(rest)
        before_base, before = self._inner[at - 1] if at else (self._head_base, self._head)
        before = _unpacked(before)
        if rest and (before_base != base or len(before) + len(rest) > CHUNK_ROWS):
            self._inner[at] = base, _packed(rest)
            return
        # Short chunks must not pile up: an array costs as much as twenty rows.
        before.extend(rest)
        if at:
            self._inner[at - 1] = before_base, _packed(before)
        del self._inner[at]
        self._sifted = at

    def take_while_below(self, limit_seq: int, n: int) -> list[int]:
        """Take rows from the head, at most n, up to the first that is not below the limit."""
        taken = self.peek(n)
        if taken and max(taken) >= limit_seq:
            stop = next(i for i, seq in enumerate(taken) if seq >= limit_seq)
            del taken[stop:]
        self._drop(len(taken))
        return taken

    def pop_newest(self) -> int:
        """Take the row at the tail.

        Raises:
            IndexError: the ring is empty.
        """
        if not self._count:
            raise IndexError("pop from an empty ring")
        seq = self._tail_base + self._tail.pop()
        self._count -= 1
        if not self._count:
            self._free_head()
        elif not self._tail:
            self._free_tail()
        return seq

    def peek(self, n: int, start: int = 0) -> list[int]:
        """Return up to n rows as they would be taken, leaving out the first `start`."""
        seen: list[int] = []
        at = self._at + start
        for base, chunk in self._open():
            if at >= len(chunk):
                at -= len(chunk)
                continue
            part = chunk[at : at + n].tolist()
            seen += [base + offset for offset in part] if base else part
            n -= len(part)
            at = 0
            if n <= 0:
                break
        return seen

    def to_numpy(self, n: int | None = None) -> npt.NDArray[np.uint64]:
        """Return all rows, or up to n, the head first."""
        n = self._count if n is None else min(n, self._count)
        parts = []
        at = self._at
        for base, chunk in self._open():
            part = np.array(chunk[at : at + n], dtype=np.uint64)
            parts.append(part + np.uint64(base) if base else part)
            n -= len(part)
            at = 0
            if not n:
                break
        return _joined(parts)

    def _open(self) -> Iterator[tuple[int, array[int]]]:
        """Base and offsets of every chunk; those taken are among the head's."""
        yield self._head_base, self._head
        for base, chunk in self._inner:
            yield base, _unpacked(chunk)
        if self._tail is not self._head:
            yield self._tail_base, self._tail

    def _open_newest(self) -> Iterator[tuple[int, array[int]]]:
        """`_open`, the tail first."""
        if self._tail is not self._head:
            yield self._tail_base, self._tail
        for base, chunk in reversed(self._inner):
            yield base, _unpacked(chunk)
        yield self._head_base, self._head

    def _head_array(self, n: int) -> npt.NDArray[np.uint64]:
        at = self._at
        return np.array(self._head[at : at + n], dtype=np.uint64) + np.uint64(self._head_base)

    def _adopt(self, base: int, chunk: array[int]) -> None:
        if not self._count:
            self._head, self._head_base, self._at = chunk, base, 0
        elif base == self._tail_base and len(self._tail) + len(chunk) <= CHUNK_ROWS:
            # Short chunks must not pile up: an array costs as much as twenty rows.
            self._tail.extend(chunk)
            self._count += len(chunk)
            return
        else:
            self._close_tail()
        self._tail, self._tail_base = chunk, base
        self._count += len(chunk)

    def _adopt_kept(self, chunks: list[tuple[int, Kept]], count: int) -> None:
        """Add chunks to a ring that has rows; the last one becomes the tail."""
        self._close_tail()
        self._inner += chunks[:-1]
        self._tail_base, last = chunks[-1]
        self._tail = _unpacked(last)
        self._count += count

    def _all_fit(self, seqs: npt.NDArray[np.uint64]) -> bool:
        base = self._tail_base
        return int(seqs.min()) >= base and int(seqs.max()) - base < _OFFSET_END

    def _make_room(self, seq: int) -> None:
        if not 0 <= seq - self._tail_base < _OFFSET_END or len(self._tail) >= CHUNK_ROWS:
            self._start_chunk(seq)

    def _start_chunk(self, seq: int) -> None:
        base = _base_for(seq)
        if self._count:
            self._close_tail()
            self._tail = array("I")
        else:
            self._head_base = base
        self._tail_base = base

    def _close_tail(self) -> None:
        """Keep the tail for its turn; another one takes its place."""
        if self._tail is self._head:
            # An array grows in strides; what it has in hand is not needed any more.
            self._head = self._tail[:]
        else:
            self._inner.append((self._tail_base, _packed(self._tail)))

    def _drop(self, n: int) -> None:
        self._count -= n
        while n:
            left = len(self._head) - self._at
            if n < left:
                self._at += n
                return
            n -= left
            self._free_head()

    def _free_head(self) -> None:
        self._at = 0
        if self._tail is self._head:
            del self._tail[:]
        elif self._inner:
            self._head_base, chunk = self._inner.pop(0)
            self._head = _unpacked(chunk)
        else:
            self._head, self._head_base = self._tail, self._tail_base

    def _free_tail(self) -> None:
        if self._inner:
            self._tail_base, chunk = self._inner.pop()
            self._tail = _unpacked(chunk)
        else:
            self._tail, self._tail_base = self._head, self._head_base


def _joined(parts: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)
