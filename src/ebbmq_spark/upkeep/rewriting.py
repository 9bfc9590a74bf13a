"""Bins of packs in, a new pack for each out, without what is dead or too old, verified.

A task reads packs from the bucket and writes the new one there, so that bodies never pass through
Java. A new pack is not visible to anybody until a mapping names it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq.errors import DamagedRecord
from ebbmq.holding import dead_marks, mapping
from ebbmq.holding import pack as packs
from ebbmq_spark.upkeep import rows as of_rows
from ebbmq_spark.upkeep.looking import KEYS
from ebbmq_spark.upkeep.packs import Pack, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.holding.bucket import Bucket
    from ebbmq_spark.upkeep.choosing import Bin

_BINS: Final = (
    "store string, directory string, number long, packs array<struct<"
    "store: string, path: string, number: long, size: long, dead: binary>>"
)
MADE: Final = pa.schema(
    [
        ("store", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("source_rows", pa.int64()),
        ("source_bytes", pa.int64()),
        ("damaged", KEYS),
    ]
)
_MADE_DDL: Final = (
    "store string, path string, bytes long, rows long, source_rows long, source_bytes long, "
    "damaged array<struct<pid: long, seq: long>>"
)


class _Part(NamedTuple):
    """What goes on of one pack."""

    table: pa.Table
    rows: packs.Rows
    number: int


def frame_of(spark: SparkSession, bins: list[Bin]) -> DataFrame:
    """Bins as rows, a task each."""
    values = [
        (each.store, each.directory, each.number, [tuple(pack) for pack in each.packs])
        for each in bins
    ]
    return spark.createDataFrame(values, _BINS).repartitionByRange(len(bins), "number")


def rewritten(frame: DataFrame, place: Place, run: str, expired_before_ms: int) -> DataFrame:
    """The new packs, each stored and read back, with the keys of what was found damaged."""
    return frame.mapInArrow(_rewriter(place, run, expired_before_ms), _MADE_DDL)


def _rewriter(
    place: Place, run: str, expired_before_ms: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rewrite(batches: Iterator[Any]) -> Iterator[Any]:
        bucket = place.open()
        for batch in batches:
            for row in batch.to_pylist():
                # A task may be tried again, or twice at once: what nobody names is cleared away.
                name = f"new-{row['number']:05d}-{secrets.token_hex(4)}.parquet"
                made = _rewrite(
                    bucket,
                    f"{mapping.run_root(row['store'], run)}/{row['directory']}/{name}",
                    [Pack(**each) for each in row["packs"]],
                    expired_before_ms,
                )
                told = {"store": row["store"], **made}
                yield pa.RecordBatch.from_pylist([told], schema=MADE)

    return rewrite


def _rewrite(
    bucket: Bucket, path: str, sources: list[Pack], expired_before_ms: int
) -> dict[str, Any]:
    parts: list[_Part] = []
    told: dict[str, Any] = {"path": path, "damaged": [], "source_rows": 0, "source_bytes": 0}
    for source in sources:
        data = bucket.get(source.path)
        if data is None:
            continue
        try:
            rows, table = packs.read_rows(data), packs.read_table(data)
        except DamagedRecord:
            continue
        told["source_rows"] += len(rows)
        told["source_bytes"] += len(data)
        live = of_rows.alive(rows, source.dead_at()) & ~of_rows.older(table, expired_before_ms)
        wrong = of_rows.wrong(data, rows, live)
        told["damaged"] += of_rows.keys_of(rows, wrong)
        kept = live & ~wrong
        parts.append(_Part(packs.chosen(table, kept), rows[kept], source.number))
    count = sum(len(part.rows) for part in parts)
    return {**told, "rows": count, "bytes": _store(bucket, path, parts) if count else 0}


def _store(bucket: Bucket, path: str, parts: list[_Part]) -> int:
    """Write a pack and what it is made of; returns its size."""
    rows = np.concatenate([part.rows for part in parts])
    numbers = np.concatenate([np.full(len(part.rows), part.number) for part in parts])
    table = pa.concat_tables([part.table for part in parts])
    order = np.lexsort((rows["seq"], rows["pid"]))
    if not np.array_equal(order, np.arange(len(order))):
        table = table.take(order)
    data, _ = packs.write(table.combine_chunks())
    origins = np.stack([numbers, rows["body_at"]], axis=1)[order]
    bucket.put(path, data)
    bucket.put(mapping.Offered(path, len(data), len(rows)).origins_path, dead_marks.pack(origins))
    return len(data)
