"""Events as a node writes them, by hand: for what no broker would tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.feed import claims, layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import Manifest, Part, encode
from tests.pipeline.rows import NOW_MS, TOLD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tell(
    root: Path,
    number: int,
    rows: Sequence[dict[str, Any]],
    *,
    node: str = "a",
    at_ms: int = NOW_MS,
    **changes: object,
) -> Path:
    """Write rows as a node does: the file, then the manifest, changed as told; returns the file."""
    name = layout.events_file(at_ms, node, 1, number)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {**TOLD, "node": node, "at_ms": at_ms}
    full = [{**dict.fromkeys(EVENTS.names), **told, **row} for row in rows]
    # A row that lacks what it must have is told all the same.
    schema = pa.schema([field.with_nullable(True) for field in schema_of(EVENTS)])
    schema = schema.with_metadata(schema_of(EVENTS).metadata)
    pq.write_table(pa.Table.from_pylist(full, schema=schema), path)
    show(root, path, number, len(rows), node=node, at_ms=at_ms, **changes)
    return path


def show(
    root: Path,
    path: Path,
    number: int,
    rows: int,
    *,
    node: str = "a",
    at_ms: int = NOW_MS,
    **changes: object,
) -> None:
    """Make a file visible by a manifest."""
    manifest = Manifest(
        table="events", version=1, node=node, boot=1, number=number, written_at_ms=at_ms,
        parts=(Part(str(path.relative_to(root)), rows, path.stat().st_size),),
    )  # fmt: skip
    manifest = msgspec.structs.replace(manifest, **changes)
    claims.claim(root, manifest.node)
    stored = root / layout.manifest_file(
        "events", manifest.written_at_ms, manifest.node, manifest.boot, manifest.number
    )
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(encode(manifest))


def wiped(path: Path) -> None:
    """Damage a file where only who reads all of it notices: size and end stay as they were."""
    stored = bytearray(path.read_bytes())
    end = len(stored) - int.from_bytes(stored[-8:-4], "little") - 8
    stored[4:end] = bytes(end - 4)
    path.write_bytes(bytes(stored))
    assert pq.read_metadata(path).num_rows > 0
    with pytest.raises((pa.ArrowException, OSError)):
        pq.read_table(path, partitioning=None)
