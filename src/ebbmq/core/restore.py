"""Putting a partition back from facts, in journal order; `core.rebuild` derives the rest.

Only rows are changed. A fact older than the checkpoint of the page it concerns, or than the
relocation of the row it concerns, is skipped. Numbers that were confirmed gone are never brought
back: a PUBLISH fact only fills rows of numbers that no page knows yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core.block import DUE, LEASE, PLACE
from ebbmq.core.index import PAGE_BITS, PAGE_BYTES, SLOT_MASK
from ebbmq.core.row import FREE, HIGH, IN_DOUBT, LEASED, LOW48

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.index import Page
    from ebbmq.core.names import Names
    from ebbmq.core.partition import Partition

_LOW48: Final = np.uint64(LOW48)


class Restorer:
    """Applies facts to one partition while it is being put back; `settle` after the last one."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._index = partition.index
        #: Rows that were relocated, with the position up to which facts are in them.
        self._as_of: dict[int, int] = {}
        #: The pages they are in; in all others, rows can be taken many at a time.
        self._moved: set[int] = set()
        #: Names of leases granted before this position are known.
        self._named_until = 0

    def settle(self) -> None:
        """Count the rows of every page, none of them in doubt: that is found out next."""
        for page in self._index.pages.values():
            page.view["state"] &= ~IN_DOUBT & 0xFF
            page.live = int(np.count_nonzero(page.view["state"]))

    def page(self, number: int, image: bytes | memoryview, position: int) -> None:
        """Put back a checkpointed page."""
        self._index.load_page(number, image, position)
        self._index.next_seq = max(self._index.next_seq, (number << PAGE_BITS) + 1)

    def named(self, names: Names, position: int) -> None:
        """Put back the names of leases, as they were at a position."""
        self._partition.names = names
        self._named_until = position

    def relocated(
        self, seqs: list[int], row_block: memoryview, as_of: int, checkpoint: int
    ) -> None:
        """Put back rows from an old-generation segment, unless newer knowledge has them.

        A page that a checkpoint taken after `as_of` does not have held no live row then.
        """
        for number, seq in enumerate(seqs):
            page = self._index.pages.get(seq >> PAGE_BITS)
            if as_of <= (checkpoint if page is None or not page.position else page.position):
                continue
            if self._as_of.get(seq, -1) < as_of:
                self._index.write(seq, bytes(row_block[number * 64 : number * 64 + 64]))
                self._as_of[seq] = as_of
                self._moved.add(seq >> PAGE_BITS)

    def published(self, first: int, row_block: memoryview, position: int) -> None:
        """Put back published rows, page by page."""
        count = len(row_block) // 64
        done = 0
        while done < count:
            seq = first + done
            page = self._index.page_for(seq)
            at = (seq & SLOT_MASK) << 6
            take = min(count - done, (PAGE_BYTES - at) >> 6)
            if page.position <= position:
                self._fill(page, at, row_block[done * 64 : (done + take) * 64], seq)
            done += take
        self._index.next_seq = max(self._index.next_seq, first + count)

    def _fill(self, page: Page, at: int, block: memoryview, first: int) -> None:
        if page.number in self._moved:
            for offset in range(0, len(block), 64):
                seq = first + (offset >> 6)
                if seq not in self._as_of:
                    self._index.write(seq, bytes(block[offset : offset + 64]))
            return
        page.buffer[at : at + len(block)] = bytes(block)
        page.dirty = True

    def _known(self, seq: int, position: int) -> tuple[Page, int] | None:
        """Where a row is that a fact at `position` may still change."""
        found = self._index.locate(seq)
        if found is None or found[0].position > position:
            return None
        if self._as_of and self._as_of.get(seq, -1) > position:
            return None
        return found

    def acked(self, runs: list[tuple[int, int]], position: int) -> None:
        """Rows that are gone for good."""
        for first, count in runs:
            done = 0
            while done < count:
                seq = first + done
                page = self._index.pages.get(seq >> PAGE_BITS)
                take = min(count - done, limits.PAGE_ROWS - (seq & SLOT_MASK))
                if page is not None and page.position <= position:
                    self._free_run(page, seq, take, position)
                done += take

    def _free_run(self, page: Page, first: int, count: int, position: int) -> None:
        page.dirty = True
        slot = first & SLOT_MASK
        if page.number not in self._moved:
            page.view["state"][slot : slot + count] = FREE
            return
        for seq in range(first, first + count):
            found = self._known(seq, position)
            if found is not None:
                found[0].buffer[found[1]] = FREE

    def granted(self, grant: fact.Grant, position: int) -> None:
        """Rows that were leased."""
        named: list[tuple[int, int]] = []
        for first, count, generation in grant.runs:
            done = 0
            while done < count:
                seq = first + done
                take = min(count - done, limits.PAGE_ROWS - (seq & SLOT_MASK))
                page = self._index.pages.get(seq >> PAGE_BITS)
                if page is not None and page.position <= position:
                    self._lease_rows(page, seq, take, generation, grant, position)
                done += take
            if grant.name and position >= self._named_until:
                named += [
                    (seq, generation)
                    for seq in range(first, first + count)
                    if self._known(seq, position) is not None
                ]
        if named:
            self._partition.names[grant.name] = named

    def _lease_rows(
        self, page: Page, first: int, count: int, generation: int, grant: fact.Grant, position: int
    ) -> None:
        slot = first & SLOT_MASK
        slots: slice | npt.NDArray[np.intp] = slice(slot, slot + count)
        states = page.view["state"]
        if page.number in self._moved or not states[slots].all():
            base = page.number << PAGE_BITS
            there = (np.flatnonzero(states[slots]) + slot).tolist()
            kept = [s for s in there if self._as_of.get(base + s, -1) <= position]
            slots = np.array(kept, dtype=np.intp)
        words = page.words
        states[slots] = LEASED
        words[slots, DUE] = (words[slots, DUE] & ~_LOW48) | np.uint64(grant.deadline_ms)
        epoch_bits = np.uint64((grant.epoch & 0xFFFF) << HIGH)
        words[slots, PLACE] = (words[slots, PLACE] & _LOW48) | epoch_bits
        words[slots, LEASE] = generation | grant.nonce << 32
        page.dirty = True

    def changed(self, seq: int, row: bytes, history: bytes, position: int) -> None:
        """A row that is as given."""
        if self._known(seq, position) is not None:
            self._index.write(seq, row)
            self._partition.restore_history(seq, history)

    def removed(self, records: npt.NDArray[np.void], position: int) -> None:
        """Rows that left other than by ack."""
        self.acked(fact.runs_of(records["seq"].tolist()), position)
