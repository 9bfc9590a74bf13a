"""Reading a lake as any reader must: the files that manifests name, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ebbmq.feed import layout, manifests
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.feed.manifests import Manifest
    from ebbmq.feed.table import Table


def manifests_of(lake: Path, table: Table = EVENTS) -> list[Manifest]:
    """Every manifest of a table, in order; each must name files that are as it says."""
    found = []
    for path in sorted((lake / table.name / layout.MANIFESTS).rglob("*.json")):
        manifest = manifests.decode(path.read_bytes(), path.name)
        for part in manifest.parts:
            assert (lake / part.path).stat().st_size == part.bytes
            assert pq.read_metadata(lake / part.path).num_rows == part.rows
        found.append(manifest)
    return found


def table_of(lake: Path, table: Table = EVENTS) -> pa.Table:
    """All rows of a table."""
    parts = [
        pq.read_table(lake / part.path, partitioning=None)
        for manifest in manifests_of(lake, table)
        for part in manifest.parts
    ]
    schema = schema_of(table)
    for part in parts:
        assert part.schema.metadata == schema.metadata
        assert [(field.name, field.nullable) for field in part.schema] == [
            (field.name, field.nullable) for field in schema
        ]
        assert not any(pa.types.is_dictionary(field.type) for field in part.schema)
    # Parquet has its own names for what is in a list.
    return pa.concat_tables(part.cast(schema) for part in parts) if parts else schema.empty_table()


def rows_of(lake: Path, table: Table = EVENTS) -> list[dict[str, Any]]:
    """All rows of a table, as told."""
    return table_of(lake, table).to_pylist()


def shown(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of some rows."""
    return [tuple(row[column] for column in columns) for row in rows]
