"""What is in one pack: which rows are alive, too old or damaged. Runs where the tasks run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.holding.pack import Rows

    Flags = npt.NDArray[np.bool_]

ENQUEUED: str = "enqueued_at"


def alive(rows: Rows, dead_at: npt.NDArray[np.uint32]) -> Flags:
    """Rows that no mark names."""
    return ~np.isin(rows["body_at"], dead_at)


def wrong(data: bytes, rows: Rows, asked: Flags) -> Flags:
    """Rows, of those asked for, whose bytes are not what was taken in."""
    view, check = memoryview(data), crc32c.crc32c
    found = np.zeros(len(rows), bool)
    places = np.flatnonzero(asked)
    columns = ("envelope_at", "envelope_bytes", "body_at", "body_bytes", "crc")
    values = zip(*(rows[name][places].tolist() for name in columns), strict=True)
    for place, (block_at, block_bytes, at, nbytes, crc) in zip(
        places.tolist(), values, strict=True
    ):
        before = check(view[block_at : block_at + block_bytes]) if block_bytes else 0
        if check(view[at : at + nbytes], before) != crc:
            found[place] = True
    return found


def older(table: pa.Table, before_ms: int) -> Flags:
    """Rows of messages that were first published before an instant; unknown is not."""
    if not before_ms:
        return np.zeros(len(table), bool)
    instants = table.column(ENQUEUED).cast(pa.int64()).fill_null(before_ms).to_numpy()
    flags: Flags = instants < before_ms
    return flags


def oldest_ms(footer: bytes) -> int | None:
    """When the first of a pack's messages was published, by its footer; None if it does not say."""
    metadata: Any = pq.read_metadata(pa.BufferReader(footer))
    found: list[int] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(metadata.num_columns):
            column = group.column(at)
            if column.path_in_schema == ENQUEUED and column.statistics is not None:
                least = column.statistics.min_raw if column.statistics.has_min_max else None
                if least is None:
                    return None
                found.append(least if isinstance(least, int) else int(least))
    return min(found, default=None)


def keys_of(rows: Rows, chosen: Flags) -> list[dict[str, int]]:
    """The messages of some rows."""
    part = rows[chosen]
    return [
        {"pid": pid, "seq": seq}
        for pid, seq in zip(part["pid"].tolist(), part["seq"].tolist(), strict=True)
    ]


def columns_differ(table: pa.Table, rows: Rows) -> bool:
    """Whether what other readers see of a pack is not what the broker sees."""
    return any(
        not np.array_equal(table.column(name).to_numpy(), rows[name].astype(np.int64))
        for name in ("pid", "seq", "crc")
    )
