"""Which messages of a snapshot share a file: those to be looked at soon are by themselves.

Most readers want what is due and pass over files that have nothing of it. Where messages went into
files as they come, one in a hundred of them would be due in nearly every file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc  # type: ignore[import-untyped]  # it has no types

from ebbmq.node.feeding import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

#: Messages of a file: what is made of them takes some 30 MiB.
FILE_ROWS: Final = 256 * 1024
#: Of the first file of those to be looked at soon; of each further one twice as many. So several
#: readers share them where they are few, and files are large where they are many.
_FIRST_ROWS: Final = 64 * 1024
#: As long as a snapshot may be the last one, and a plan looks ahead.
SOON_MS: Final = 2 * 3_600_000


class Parting:
    """Messages on their way into files, as many of them as two files have at most."""

    def __init__(self, at_ms: int) -> None:
        self._until_ms = at_ms + SOON_MS
        self._soon: list[pa.Table] = []
        self._later: list[pa.Table] = []
        self._soon_rows = _FIRST_ROWS

    def take(self, table: pa.Table) -> Iterator[pa.Table]:
        """Add messages; returns those of files that are full."""
        is_soon = pc.fill_null(pc.less_equal(table.column("review_at_ms"), self._until_ms), False)
        count = pc.sum(is_soon).as_py() or 0
        if count:
            self._soon.append(table if count == len(table) else table.filter(is_soon))
        if count < len(table):
            self._later.append(table.filter(pc.invert(is_soon)) if count else table)
        if sum(map(len, self._soon)) >= self._soon_rows:
            yield _in_order(self._soon)
            self._soon, self._soon_rows = [], min(2 * self._soon_rows, FILE_ROWS)
        if sum(map(len, self._later)) >= FILE_ROWS:
            yield _in_order(self._later)
            self._later = []

    def rest(self) -> Iterator[pa.Table]:
        """The others; few messages are one file."""
        left = [*self._soon, *self._later]
        is_one = sum(map(len, left)) <= _FIRST_ROWS
        for some in [left] if is_one else [self._soon, self._later]:
            if some:
                yield _in_order(some)


def _in_order(tables: Sequence[pa.Table]) -> pa.Table:
    return arrays.by_review(arrays.joined(tables))
