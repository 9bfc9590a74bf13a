"""Plans and rates as the pipeline leaves them in a lake, written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ebbmq.feed import claims, layout, manifests, runs
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import Manifest, Part
from ebbmq.feed.plans import PLANS
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import Record
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ebbmq import Broker
    from ebbmq.feed.table import Table

_numbers = iter(range(1, 1_000_000))


def plan_row(message_id: str, **fields: Any) -> dict[str, Any]:
    """A row of a plan that archives a message."""
    return {
        "node": "n1", "queue": "q", "partition": 0, "message_id": message_id, "generation": 0,
        "action": "archive", "from_tier": "fast", "to_tier": "archive", "target": 1, "bytes": 6,
        "value": 1.0, "reason": "by hand", "policy_version": 1, "decided_at_ms": 0, "until_ms": 0,
        **fields,
    }  # fmt: skip


def rate_row(queue: str, factor: float, **fields: Any) -> dict[str, Any]:
    """A recommended decay factor."""
    return {
        "queue": queue, "factor": factor, "decided_at_ms": 0, "until_ms": 0, "reason": "slow",
        "mean_ms": 900.0, "p95_ms": 1_000.0, "samples": 10, **fields,
    }  # fmt: skip


def write_plan(
    lake: Path, run: str, rows: Sequence[dict[str, Any]], at_ms: int, **fields: Any
) -> Path:
    """A visible plan; returns its file."""
    return write(lake, PLANS, layout.plan_file(run, 0), rows, at_ms, **fields)


def write_rates(
    lake: Path, run: str, rows: Sequence[dict[str, Any]], at_ms: int, **fields: Any
) -> Path:
    """Visible rates; returns their file."""
    return write(lake, RATES, layout.rate_file(run, 0), rows, at_ms, **fields)


def write(
    lake: Path, table: Table, name: str, rows: Sequence[dict[str, Any]], at_ms: int | None, **fields
) -> Path:
    """A file; visible if there is an instant at which it became so."""
    path = lake / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema_of(table)), path)
    if at_ms is not None:
        publish(lake, table, [path], at_ms, rows=len(rows), **fields)
    return path


def write_bad_plan(lake: Path, run: str, row: dict[str, Any], at_ms: int) -> Path:
    """A visible plan whose reason is no UTF-8; returns its file."""
    table = pa.Table.from_pylist([row], schema=schema_of(PLANS))
    at = table.schema.get_field_index("reason")
    offsets = pa.py_buffer(b"\0\0\0\0\4\0\0\0")
    bad = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"a\xff\xfeb"))
    path = lake / layout.plan_file(run, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.set_column(at, table.schema.field(at), bad), path)
    publish(lake, PLANS, [path], at_ms, rows=1)
    return path


def publish(
    lake: Path,
    table: Table,
    paths: Sequence[Path],
    at_ms: int,
    *,
    rows: int,
    version: int | None = None,
) -> Path:
    """The manifest that makes files visible."""
    number = next(_numbers)
    manifest = Manifest(
        table=table.name,
        version=table.version if version is None else version,
        node=layout.PIPELINE,
        boot=0,
        number=number,
        written_at_ms=at_ms,
        parts=tuple(Part(str(path.relative_to(lake)), rows, path.stat().st_size) for path in paths),
    )
    for path in paths:
        run = layout.told_in(str(path.relative_to(lake)), "run")
        if run:
            write_record(lake, run, at_ms)
    claims.claim(lake, "some-node")
    place = lake / layout.manifest_file(table.name, at_ms, layout.PIPELINE, 0, number)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(manifests.encode(manifest))
    return place


def write_record(lake: Path, run: str, at_ms: int) -> None:
    """The record of a run that ended."""
    place = lake / runs.record_file(run)
    place.parent.mkdir(parents=True, exist_ok=True)
    record = Record(run=run, kind="run", started_at_ms=at_ms, ended_at_ms=at_ms)
    place.write_bytes(runs.encode(record))


def until_usable(broker: Broker, *but: str) -> None:
    """Wait until devices answer: what a plan asks of one that does not is refused."""
    wait_until(
        lambda: all(each.usable for each in broker.devices() if each.name not in but),
        "devices that answer",
    )
