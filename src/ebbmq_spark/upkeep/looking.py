"""Packs in, what is in each of them out: by its footer, or by reading all of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq.errors import DamagedRecord
from ebbmq.holding import pack as packs
from ebbmq.holding.footers import footer_of
from ebbmq_spark.upkeep import rows as of_rows
from ebbmq_spark.upkeep.packs import Pack, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from ebbmq.holding.bucket import Bucket

KEYS: Final = pa.list_(pa.struct([("pid", pa.int64()), ("seq", pa.int64())]))
SEEN: Final = pa.schema(
    [
        ("store", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("dead", pa.int64()),
        ("live_bytes", pa.int64()),
        ("expired", KEYS),
        ("damaged", KEYS),
        ("error", pa.string()),
    ]
)
_SEEN_DDL: Final = (
    "store string, path string, rows long, dead long, live_bytes long, "
    "expired array<struct<pid: long, seq: long>>, damaged array<struct<pid: long, seq: long>>, "
    "error string"
)


def looked_at(frame: DataFrame, place: Place, expired_before_ms: int) -> DataFrame:
    """What footers say: rows, dead ones, and messages first published before an instant."""

    def look(bucket: Bucket, pack: Pack) -> dict[str, Any]:
        footer = footer_of(bucket, pack.path, pack.size)
        if footer is None:
            return {}
        rows = packs.read_rows(footer)
        live = of_rows.alive(rows, pack.dead_at())
        expired: list[dict[str, int]] = []
        oldest_ms = of_rows.oldest_ms(footer) if expired_before_ms else None
        if oldest_ms is not None and oldest_ms < expired_before_ms:
            table = packs.read_table(bucket.get(pack.path) or b"")
            expired = of_rows.keys_of(rows, live & of_rows.older(table, expired_before_ms))
        return _seen(rows, live, expired=expired)

    return frame.mapInArrow(_each(place, look), _SEEN_DDL)


def verified(frame: DataFrame, place: Place) -> DataFrame:
    """What is damaged: each message's bytes are read and compared with its checksum of intake."""

    def verify(bucket: Bucket, pack: Pack) -> dict[str, Any]:
        data = bucket.get(pack.path)
        if data is None:
            return {}
        rows = packs.read_rows(data)
        live = of_rows.alive(rows, pack.dead_at())
        wrong = of_rows.wrong(data, rows, live)
        told = _seen(rows, live, damaged=of_rows.keys_of(rows, wrong))
        try:
            if of_rows.columns_differ(packs.read_table(data), rows):
                told["error"] = "its columns are damaged; the broker does not need them"
        except DamagedRecord as error:
            told["error"] = f"{error.detail}; the broker does not need its columns"
        return told

    return frame.mapInArrow(_each(place, verify), _SEEN_DDL)


def _seen(rows: packs.Rows, live: of_rows.Flags, **more: Any) -> dict[str, Any]:
    sizes = rows["envelope_bytes"].astype(np.int64) + rows["body_bytes"]
    return {
        "rows": len(rows),
        "dead": int(np.count_nonzero(~live)),
        "live_bytes": int(sizes[live].sum()),
        **more,
    }


def _each(
    place: Place, look: Callable[[Bucket, Pack], dict[str, Any]]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that runs where the tasks run: a row for each pack that is still there."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        bucket = place.open()
        for batch in batches:
            for row in batch.to_pylist():
                pack = Pack(**row)
                nothing = {"rows": 0, "dead": 0, "live_bytes": 0, "expired": [], "damaged": []}
                try:
                    told = look(bucket, pack)
                except DamagedRecord as error:
                    told = {"error": error.detail}
                if told:
                    seen = {"store": pack.store, "path": pack.path, **nothing, **told}
                    yield pa.RecordBatch.from_pylist([seen], schema=SEEN)

    return run
