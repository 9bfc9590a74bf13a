"""What a plan asks for in all: a few rows, whatever its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq_spark import soundness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.feed.manifests import Part
    from ebbmq_spark.lake import Lake

_KEYS: Final = ("action", "from_tier", "to_tier")
_SUMS: Final = ("bytes", "freed_bytes")


class Total(NamedTuple):
    """Actions of a kind between two tiers."""

    action: str
    from_tier: str | None
    to_tier: str | None
    times: int
    bytes: int
    freed_bytes: int


def of_parts(lake: Lake, parts: Iterable[Part]) -> list[Total]:
    """Of files of the table PLANS, added up one after the other."""
    some = [_of_file(lake, lake.file(part.path)) for part in parts]
    if not some:
        return []
    sums = ("times", *_SUMS)
    added = pa.concat_tables(some).group_by(_KEYS).aggregate([(name, "sum") for name in sums])
    columns = (*_KEYS, *(f"{name}_sum" for name in sums))
    rows = zip(*(added.column(name).to_pylist() for name in columns), strict=True)
    return sorted((Total(*row) for row in rows), key=lambda each: (each.action, -each.times))


def _of_file(lake: Lake, file: str) -> pa.Table:
    with soundness.named(file), pq.ParquetFile(lake.open(file), read_dictionary=_KEYS) as opened:
        found = opened.read([*_KEYS, *_SUMS]).replace_schema_metadata()
    added = found.group_by(_KEYS).aggregate([([], "count_all"), *((name, "sum") for name in _SUMS)])
    return added.select([*_KEYS, "count_all", *(f"{name}_sum" for name in _SUMS)]).rename_columns(
        [*_KEYS, "times", *_SUMS]
    )
