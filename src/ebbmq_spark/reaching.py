"""How far files reach: which of them have rows up to a bound, and how many, by their ends.

Rows of a file are in the order of the column that is asked about, in groups whose ranges its end
tells. So that is all that is read of most files, and one column of one group of the others.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.errors import EbbError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq_spark.lake import Lake, Reach

#: Files that are looked at at once: it is mostly waiting.
_AT_ONCE: Final = 8


class Reached(NamedTuple):
    """Files that have rows up to a bound, and how many those are."""

    files: list[str]
    rows: int


def within(lake: Lake, files: Sequence[str], reach: Reach) -> Reached:
    """The files, as `read_table` takes them, without those that have nothing up to a bound.

    A file that cannot be read stays: whoever reads its rows says what is wrong with it.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        counts = list(pool.map(lambda file: _count(lake, file, reach), files))
    found = [file for file, rows in zip(files, counts, strict=True) if rows != 0]
    return Reached(found, sum(rows or 0 for rows in counts))


def _count(lake: Lake, file: str, reach: Reach) -> int | None:
    """Rows up to the bound; None if that cannot be told."""
    try:
        with pq.ParquetFile(lake.open(file)) as opened:
            return _rows(opened, reach)
    except (pa.ArrowException, OSError, EbbError):
        return None


def _rows(file: pq.ParquetFile, reach: Reach) -> int:
    told = file.metadata
    names = told.schema.names
    if reach.column not in names:
        return 0  # an older file lacks the column, so that it is empty
    at, rows, some = names.index(reach.column), 0, []
    for number in range(told.num_row_groups):
        group = told.row_group(number)
        known = _known(group.column(at).statistics, group.num_rows, reach.until)
        if known is None:
            some.append(number)
        else:
            rows += known
    if some:
        values = file.read_row_groups(some, columns=[reach.column], use_threads=False).column(0)
        rows += pc.sum(pc.less_equal(values, reach.until)).as_py() or 0
    return rows


def _known(told: Any, rows: int, until: int) -> int | None:
    """Rows of a group up to the bound, as far as its range tells; None if they must be counted."""
    if told is None:
        return None
    if told.has_null_count and told.null_count == rows:
        return 0
    if not told.has_min_max or told.min <= until < told.max:
        return None
    return int(told.num_values) if told.max <= until else 0
