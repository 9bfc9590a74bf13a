"""Lakes in a local directory: events as a broker tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from bench.run import Run

FILES: Final = 40


def fill(run: Run, lake: Path, count: int) -> None:
    """Write so many events, in files as large as a busy broker's."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    from ebbmq.feed import claims, layout, manifests  # noqa: PLC0415
    from ebbmq.feed.arrow import schema_of  # noqa: PLC0415
    from ebbmq.feed.events import EVENTS  # noqa: PLC0415
    from ebbmq.node.feeding import arrays  # noqa: PLC0415

    claims.claim(lake, "node-1")
    random = np.random.default_rng(1)
    size = count // FILES
    schema = schema_of(EVENTS)
    for number in range(FILES):
        seqs = np.arange(number * size, (number + 1) * size)
        columns = {
            "node": pa.repeat("node-1", size),
            "boot": pa.repeat(1, size),
            "seq": seqs,
            "at_ms": seqs // 50 + 1_700_000_000_000,
            "queue": pa.array([f"queue-{n}" for n in range(8)]).take(random.integers(0, 8, size)),
            "partition": pa.repeat(0, size),
            "message_id": arrays.message_ids(np.ones(size, dtype=np.int64), seqs),
            "generation": pa.repeat(1, size),
            "event": pa.array(["published", "leased", "acked"]).take(random.integers(0, 3, size)),
            "importance": random.integers(1, 11, size),
            "decay_rate": pa.repeat(0.5, size),
            "bytes": random.integers(10, 5_000, size),
            "enqueued_at_ms": seqs // 50 + 1_700_000_000_000,
            "latency_ms": random.integers(0, 10_000, size),
        }
        filled = [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(size, field.type)
            for field in schema
        ]
        path = f"{EVENTS.name}/date=2023-11-14/part-{number:05d}.parquet"
        (lake / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(filled, schema=schema), lake / path, compression="zstd")
        part = manifests.Part(path, size, (lake / path).stat().st_size)
        told = manifests.Manifest(
            table=EVENTS.name,
            version=EVENTS.version,
            node="node-1",
            boot=1,
            number=number,
            written_at_ms=0,
            parts=(part,),
        )
        manifest = lake / EVENTS.name / layout.MANIFESTS / f"{number:05d}.json"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(manifests.encode(told))
        run.progress("writing a lake", number + 1, FILES)
