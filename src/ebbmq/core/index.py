"""The index: one packed row per live message, found by its number without any per-message object.

Theory of operation. Messages of a partition are numbered 1, 2, 3, ..; row `seq` lives in page
`seq >> 12` at slot `seq & 4095`. A page is one anonymous mapping of 4,096 rows, with a numpy view
over the same bytes for work on many rows at once; it is given back to the system as a whole when
its last row is freed. A full page with few rows left is thinned: its live rows move to a small
buffer and `thin` maps slot offsets to offsets there, so that a straggler costs bytes, not 256 KiB.

Invariants:
1. A row that is not alive is FREE in its first byte, or its page does not exist.
2. A number is never used twice.
3. `page.live` is the number of rows of the page that are not FREE.
4. A page changed after the last checkpoint of it is `dirty`.
"""

from __future__ import annotations

import mmap
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import row as rows
from ebbmq.core.block import LOW32, WHERE, WORDS, as_words
from ebbmq.core.values import distinct_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.core.block import Words

    #: Which rows of a page: a stretch of them, or their slots.
    Where = slice | npt.NDArray[np.int64]

PAGE_BITS: Final = 12
SLOT_MASK: Final = limits.PAGE_ROWS - 1
PAGE_BYTES: Final = limits.PAGE_ROWS * limits.ROW_BYTES
THIN_BELOW: Final = limits.PAGE_ROWS // 16
_SLOTS: Final = np.uint64(SLOT_MASK)
_U64: Final = Struct("<Q")
_U16: Final = Struct("<H")


class Page:
    """4,096 rows, or the few that are left of them."""

    __slots__ = ("buffer", "dirty", "live", "number", "position", "thin", "view", "words")

    def __init__(self, number: int, *, at_once: bool = False) -> None:
        """A page of free rows; `at_once` has the system give its memory in one go."""
        self.number = number
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (mmap.MAP_POPULATE if at_once else 0)
        self.buffer: mmap.mmap | bytearray = mmap.mmap(-1, PAGE_BYTES, flags=flags)
        self.view = np.frombuffer(self.buffer, dtype=rows.DTYPE)
        #: The same bytes as `core.block` looks at them.
        self.words = as_words(self.buffer)
        self.live = 0
        self.dirty = True
        self.thin: dict[int, int] | None = None
        #: Facts before this journal position are in the rows; recovery skips them.
        self.position = 0

    def offset_of(self, slot_offset: int) -> int:
        """The byte offset of a slot in `buffer`, -1 if a thinned page has dropped it."""
        return slot_offset if self.thin is None else self.thin.get(slot_offset, -1)

    def make_thin(self) -> None:
        """Keep only the live rows in memory."""
        live = np.flatnonzero(self.view["state"])
        kept = bytearray(self.words.take(live, 0).tobytes())
        self.thin = {int(slot) * rows.ROW.size: i * rows.ROW.size for i, slot in enumerate(live)}
        self.buffer = kept
        self.view = np.frombuffer(kept, dtype=rows.DTYPE)
        self.words = as_words(kept)

    def copy_rows(self, where: Where) -> Words:
        """Some rows of a page that is not thin, as they are now."""
        if isinstance(where, slice):
            return self.words[where].copy()
        return self.words.take(where, 0)

    def rows_at(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """`copy_rows` by the names of their fields: thirty times as fast as asking `view`."""
        found: npt.NDArray[np.void] = self.words.take(slots, 0).reshape(-1).view(rows.DTYPE)
        return found

    def image(self) -> bytes:
        """The page as it goes into a checkpoint: whole, or only its live rows if they are few.

        few rows: [u16 slot][row 64] each
        """
        if self.thin is None and self.live * 4 > limits.PAGE_ROWS:
            return bytes(self.buffer)
        parts: list[bytes] = []
        for slot in self.live_slots().tolist():
            offset = self.offset_of(slot << 6)
            parts += [_U16.pack(slot), bytes(self.buffer[offset : offset + 64])]
        return b"".join(parts)

    def live_slots(self, state: int | None = None) -> npt.NDArray[np.int64]:
        """Slot numbers of the live rows, or of those in a state, in order."""
        if self.thin is None:
            states = self.view["state"]
            return np.flatnonzero(states if state is None else states == state)
        there = ((slot >> 6, self.buffer[at]) for slot, at in self.thin.items())
        return np.array(
            sorted(slot for slot, found in there if found and state in (None, found)),
            dtype=np.int64,
        )


class Index:
    """The pages of one partition."""

    __slots__ = ("next_seq", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}
        self.next_seq = 1

    def page_for(self, seq: int) -> Page:
        """The page that holds `seq`, made if need be."""
        number = seq >> PAGE_BITS
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = Page(number)
        return page

    def locate(self, seq: int) -> tuple[Page, int] | None:
        """Page and byte offset of a live row; None if the message is gone."""
        page = self.pages.get(seq >> PAGE_BITS)
        if page is None:
            return None
        offset = (seq & SLOT_MASK) << 6
        if page.thin is not None:
            offset = page.thin.get(offset, -1)
            if offset < 0:
                return None
        return (page, offset) if page.buffer[offset] else None

    def state_of(self, seq: int) -> int:
        """The state byte of a row; FREE if it is gone."""
        found = self.locate(seq)
        return rows.FREE if found is None else found[0].buffer[found[1]]

    def read(self, seq: int) -> tuple[int, ...] | None:
        """All fields of a live row."""
        found = self.locate(seq)
        return None if found is None else rows.ROW.unpack_from(found[0].buffer, found[1])

    def row_bytes(self, seq: int) -> bytes:
        """The 64 bytes of a live row."""
        found = self.locate(seq)
        assert found is not None
        page, offset = found
        return bytes(page.buffer[offset : offset + 64])

    def write(self, seq: int, row: bytes) -> None:
        """Put a whole row in place, alive or FREE."""
        page = self.page_for(seq)
        offset = (seq & SLOT_MASK) << 6
        if page.thin is not None:
            offset = page.thin.get(offset, -1)
            assert offset >= 0, "a freed row of a thinned page never comes back"
        page.live += (row[0] != rows.FREE) - (page.buffer[offset] != rows.FREE)
        page.buffer[offset : offset + 64] = row
        page.dirty = True
        if seq >= self.next_seq:
            self.next_seq = seq + 1

    def put_rows(self, seqs: npt.NDArray[np.uint64], words: Words) -> None:
        """Change whole rows that are there and stay there, in the order of `seqs`."""
        for where, page, slots in self.whole_pages(seqs):
            if page is not None:
                page.words[slots] = words[where]
                page.dirty = True
                continue
            for seq, row in zip(seqs[where].tolist(), words[where], strict=True):
                self.write(seq, row.tobytes())

    def free(self, page: Page, offset: int) -> None:
        """Let go of one row; the page goes with its last one."""
        page.buffer[offset] = rows.FREE
        page.live -= 1
        page.dirty = True
        if page.live <= THIN_BELOW:
            self.tidy(page)

    def tidy(self, page: Page) -> None:
        """Thin or drop a page that has few or no rows left and takes no more."""
        if (page.number + 1) << PAGE_BITS > self.next_seq:
            return
        if page.live == 0:
            self.pages.pop(page.number, None)
        elif page.thin is None and page.live <= THIN_BELOW:
            page.make_thin()

    def enqueued_at(self, seq: int) -> int:
        """When a message that has, or had, a row here was published; 0 if the row is gone."""
        page = self.pages.get(seq >> PAGE_BITS)
        if page is None:
            return 0
        offset = page.offset_of((seq & SLOT_MASK) << 6)
        if offset < 0:
            return 0
        value: int = _U64.unpack_from(page.buffer, offset + rows.AT_ENQUEUED)[0]
        return value & rows.LOW48

    def words_of(self, seqs: npt.NDArray[np.uint64]) -> Words:
        """Whole rows, in the order of `seqs`; all zero where a row is gone."""
        out = np.zeros((len(seqs), WORDS), dtype=np.uint64)
        for where, page, slots in self.whole_pages(seqs):
            if page is not None:
                out[where] = page.words.take(slots, 0)
                continue
            for at, seq in zip(np.arange(len(seqs))[where], seqs[where].tolist(), strict=True):
                if self.locate(seq) is not None:
                    out[at] = np.frombuffer(self.row_bytes(seq), dtype="<u8")
        return out

    def words_at(self, seqs: Sequence[int]) -> Words:
        """`words_of` for numbers that are no column yet; a range in one page is one piece."""
        found = None
        if type(seqs) is range and len(seqs) and seqs.step == 1:
            found = self.stretch(seqs[0], len(seqs))
        if found is not None:
            return found[0].words[found[1]].copy()
        return self.words_of(np.array(seqs, dtype=np.uint64))

    def column(self, seqs: npt.NDArray[np.uint64], name: str) -> npt.NDArray[np.uint64]:
        """One field of many rows (0 where the row is gone), as u64, in the order of `seqs`."""
        out = np.zeros(len(seqs), dtype=np.uint64)
        for number, where in self.by_page(seqs):
            page = self.pages.get(number)
            if page is None:
                continue
            slots = (seqs[where] & np.uint64(SLOT_MASK)).astype(np.int64)
            if page.thin is None:
                out[where] = page.view[name][slots]
            else:
                at = [page.thin.get(int(slot) << 6, -1) for slot in slots]
                out[where] = [int(page.view[name][a >> 6]) if a >= 0 else 0 for a in at]
        return out

    @staticmethod
    def by_page(
        seqs: npt.NDArray[np.uint64],
    ) -> Iterator[tuple[int, slice | npt.NDArray[np.int64]]]:
        """Split row numbers by page: (page number, where those numbers stand in `seqs`)."""
        if not len(seqs):
            return
        numbers = seqs >> np.uint64(PAGE_BITS)
        first = int(numbers[0])
        if bool((numbers == first).all()):
            yield first, slice(0, len(seqs))
            return
        if bool((numbers[1:] >= numbers[:-1]).all()):
            cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
            starts = [0, *cuts.tolist()]
            for start, end in zip(starts, [*cuts.tolist(), len(seqs)], strict=True):
                yield int(numbers[start]), slice(start, end)
            return
        for number in distinct_values(numbers):
            yield int(number), np.flatnonzero(numbers == number)

    def stretch(self, first: int, count: int) -> tuple[Page, slice] | None:
        """Page and rows of consecutive numbers; None if they are not all in one whole page."""
        page = self.pages.get(first >> PAGE_BITS)
        slot = first & SLOT_MASK
        if page is None or page.thin is not None or slot + count > limits.PAGE_ROWS:
            return None
        return page, slice(slot, slot + count)

    def whole_page(self, first: int, last: int) -> Page | None:
        """The page of all rows from one number to another; None if it is not one whole page."""
        number = first >> PAGE_BITS
        page = self.pages.get(number) if number == last >> PAGE_BITS else None
        return None if page is None or page.thin is not None else page

    def whole_pages(
        self, seqs: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[slice | npt.NDArray[np.int64], Page | None, npt.NDArray[np.int64]]]:
        """Split row numbers by page: where they stand in `seqs`, the page, and their slots.

        None stands for a page that is gone or thin.
        """
        for number, where in self.by_page(seqs):
            page = self.pages.get(number)
            slots = (seqs[where] & _SLOTS).astype(np.int64)
            yield where, None if page is None or page.thin is not None else page, slots

    def at_places(self, first: int, last: int, places: set[int]) -> Iterator[int]:
        """The live rows, from one number to another, whose bodies are at places of one segment.

        Rows are in the order of their places, but for those that were relocated.
        """
        low, high, segment = min(places), max(places), min(places) & LOW32
        wanted = np.array([*places], dtype=np.uint64)
        for number in range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1):
            page = self.pages.get(number)
            if page is None or not page.live:
                continue
            where = page.words[:, WHERE]
            begin, end = int(where[0]), int(where[-1])
            if begin & LOW32 == end & LOW32 == segment and (end < low or begin > high):
                continue
            found = np.flatnonzero(np.isin(where, wanted) & (page.view["state"] != rows.FREE))
            slots = None if page.thin is None else list(page.thin)
            for at in found.tolist():
                yield number << PAGE_BITS | (at if slots is None else slots[at] >> 6)

    def live_seqs(self) -> Iterator[tuple[Page, npt.NDArray[np.int64]]]:
        """Every page with the slots of its live rows, in order."""
        for number in sorted(self.pages):
            page = self.pages[number]
            if page.live:
                yield page, page.live_slots()

    def live_after(self, seq: int, state: int | None = None) -> Iterator[int]:
        """Numbers of live rows above one, in order; only of those in a state, if one is given."""
        for number in sorted(self.pages):
            if number < seq >> PAGE_BITS or not self.pages[number].live:
                continue
            first = number << PAGE_BITS
            for slot in self.pages[number].live_slots(state).tolist():
                if first + slot > seq:
                    yield first + slot

    def load_page(self, number: int, image: bytes | memoryview, position: int) -> None:
        """Put back a page from a checkpoint."""
        page = Page(number, at_once=len(image) == PAGE_BYTES)
        if len(image) == PAGE_BYTES:
            page.buffer[:] = bytes(image)
        else:
            for at in range(0, len(image), _U16.size + 64):
                slot = _U16.unpack_from(image, at)[0] << 6
                page.buffer[slot : slot + 64] = bytes(image[at + 2 : at + 66])
        page.live = int(np.count_nonzero(page.view["state"]))
        page.position = position
        page.dirty = False
        self.pages[number] = page
