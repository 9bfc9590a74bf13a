"""Rows found in their pages, whole ones and those of which little is left."""

from __future__ import annotations

from ebbmq import limits
from ebbmq.core.index import Index
from ebbmq.core.row import LEASED, READY, ROW


def row(state: int) -> bytes:
    return ROW.pack(state, *[0] * 14)


def test_rows_in_a_state_are_found_also_in_a_page_that_was_thinned() -> None:
    index = Index()
    for seq in range(1, 2 * limits.PAGE_ROWS):
        index.write(seq, row(LEASED if seq % 2 else READY))
    for seq in range(1, limits.PAGE_ROWS - 4):
        page, offset = index.locate(seq)
        index.free(page, offset)
    assert index.pages[0].thin is not None
    last = limits.PAGE_ROWS
    assert list(index.live_after(0))[:5] == [last - 4, last - 3, last - 2, last - 1, last]
    assert list(index.live_after(0, READY))[:3] == [last - 4, last - 2, last]
    assert list(index.live_after(last - 3, LEASED))[:2] == [last - 1, last + 1]
