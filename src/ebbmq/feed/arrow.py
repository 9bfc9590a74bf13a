"""The tables as Arrow schemas; needs pyarrow, which a broker without a feed does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from ebbmq.feed.table import Table

_KINDS: Final = {
    "text": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "bytes": pa.binary(),
}


def schema_of(table: Table) -> pa.Schema:
    """The schema a file of the table is written with; it says which table and version it is."""
    return pa.schema(
        [
            pa.field(column.name, _KINDS[column.kind], nullable=not column.required)
            for column in table.columns
        ],
        metadata=table.metadata(),
    )
