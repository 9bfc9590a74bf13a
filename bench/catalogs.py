"""Lakes with catalogs of many messages, written as a broker writes them, to plan for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.feed import claims, layout, manifests
from ebbmq.feed.manifests import Manifest, Part
from ebbmq.feed.settings import DeviceRoom, QueueParameters, Settings
from ebbmq.feed.snapshots import CATALOG
from ebbmq.limits import DAY_MS, GIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

#: Messages that a snapshot comes to at a time, and those of a queue in a row.
_TABLE_ROWS: Final = 32 * 1024
_QUEUE_ROWS: Final = 256 * 1024
NODE: Final = "bench"
TIERS: Final = ("ssd", "hdd", "s3")
QUEUES: Final = 16
_DAYS: Final = 30
_PER_DAY: Final = 4.0


def settings(free_bytes: int) -> Settings:
    """Queues whose messages fade within a month, and devices with so much room a tier."""
    queues = tuple(
        QueueParameters(
            name=f"queue-{number:02d}",
            version=1,
            decay_unit_ms=3_600_000,
            band_width=1.0,
            stale_threshold=1.0,
            score_base=0.0,
            score_per_day=_PER_DAY,
            score_access_bonus=1.0,
            score_medium=50.0,
            score_high=100.0,
            evaluate_every_ms=60_000,
            on_faded="archive",
            min_copies=1,
            max_replicas=2,
            tiers=TIERS,
        )
        for number in range(QUEUES)
    )
    devices = tuple(
        DeviceRoom(
            name=tier,
            kind="file",
            tier=tier,
            durable=True,
            usable=True,
            used_bytes=100 * GIB,
            capacity_bytes=100 * GIB + free_bytes,
            cost_per_gib_month=0.1 / 5**number,
        )
        for number, tier in enumerate(TIERS)
    )
    return Settings(queues=queues, devices=devices)


def write(
    root: Path, rows: int, due: float, now_ms: int, tell: Callable[[int], None]
) -> list[Part]:
    """Write a catalog of which a share is due, the same of each queue, in files as a broker has."""
    from ebbmq.node.feeding import arrays  # noqa: PLC0415  # only this question needs it
    from ebbmq.node.feeding.parting import Parting  # noqa: PLC0415

    parts: list[Part] = []

    def keep(whole: pa.Table) -> None:
        path = layout.catalog_file(now_ms, NODE, 1, len(parts))
        data = arrays.encode(whole, is_by_review=True)
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        parts.append(Part(path, len(whole), len(data)))
        tell(sum(part.rows for part in parts))

    parting, generator = Parting(now_ms), np.random.default_rng(5)
    for first in range(0, rows, _TABLE_ROWS):
        count = min(_TABLE_ROWS, rows - first)
        for whole in parting.take(_table(generator, first, count, due, now_ms)):
            keep(whole)
    for whole in parting.rest():
        keep(whole)
    return parts


def repeated(root: Path, parts: list[Part], times: int) -> list[Part]:
    """The same files under further names: as many times the rows."""
    out = list(parts)
    at_ms = int(layout.told_in(parts[0].path, "at") or 0)
    for _ in range(1, times):
        for part in parts:
            path = layout.catalog_file(at_ms, NODE, 1, len(out))
            os.link(root / part.path, root / path)
            out.append(Part(path, part.rows, part.bytes))
    return out


def publish(root: Path, parts: list[Part], now_ms: int, number: int, free_bytes: int) -> None:
    """Make these files the node's last snapshot."""
    manifest = Manifest(
        table=CATALOG.name,
        version=CATALOG.version,
        node=NODE,
        boot=1,
        number=number,
        written_at_ms=now_ms,
        parts=tuple(parts),
        settings=settings(free_bytes),
    )
    claims.claim(root, NODE)
    place = root / layout.manifest_file(CATALOG.name, now_ms, NODE, 1, number)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(manifests.encode(manifest))


def _table(
    generator: np.random.Generator, first: int, count: int, due: float, now_ms: int
) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415  # only this question needs it

    from ebbmq.feed.arrow import schema_of  # noqa: PLC0415
    from ebbmq.node.feeding import arrays  # noqa: PLC0415

    age = np.sort(generator.integers(DAY_MS, _DAYS * DAY_MS, count))[::-1]
    phase = (age * _PER_DAY > 50.0 * DAY_MS).astype(int) + (age * _PER_DAY > 100.0 * DAY_MS)
    acts = generator.random(count) < due
    # What is due has one tier, or one copy, other than it should; the others are as they should be.
    tier = np.where(acts & (phase > 0), phase - 1, phase)
    copies = np.where((phase == 0) & ~acts, 2, 1)
    review = np.where(acts, now_ms, now_ms + generator.integers(3_600_000, 9 * DAY_MS, count))

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    def words(codes: object, of: list[str]) -> pa.Array:
        return arrays.coded(np.asarray(codes), pa.array(of, pa.string()))

    queue = f"queue-{first // _QUEUE_ROWS % QUEUES:02d}"
    zeros = np.zeros(count, dtype=np.int32)
    columns = {
        "node": words(zeros, [NODE]),
        "boot": same(1, pa.int64()),
        "at_ms": same(now_ms, pa.int64()),
        "queue": words(zeros, [queue]),
        "partition": same(0, pa.int32()),
        "message_id": arrays.message_ids(
            np.ones(count, dtype=np.int64), np.arange(first, first + count)
        ),
        "generation": same(0, pa.int32()),
        "state": words(zeros, ["ready"]),
        "importance": arrays.plain(generator.integers(1, 11, count).astype(np.int32)),
        "decay_rate": arrays.plain(np.where(generator.random(count) < 0.5, 0.5, 0.0)),
        "ttl_ms": same(60 * DAY_MS, pa.int64()),
        "bytes": arrays.plain(generator.integers(100, 4_000, count)),
        "attempts": same(0, pa.int32()),
        "failures": same(0, pa.int32()),
        "enqueued_at_ms": arrays.plain(now_ms - age),
        "access_rate": same(0.0, pa.float64()),
        "access_at_ms": same(0, pa.int64()),
        "decay_score": arrays.plain(age / DAY_MS * _PER_DAY),
        "durable": same(True, pa.bool_()),
        "replicas": same(1, pa.int32()),
        "replica_target": arrays.plain(copies.astype(np.int32)),
        "copies": arrays.plain(copies.astype(np.int32)),
        "tier": words(tier, list(TIERS)),
        # One device of each tier, by its name; a second copy is in the next one.
        "devices": pa.array(
            [*([tier] for tier in TIERS), list(TIERS[:2])], pa.list_(pa.string())
        ).take(pa.array(np.where(copies > 1, len(TIERS), tier))),
        "review_at_ms": arrays.plain(review),
        "policy_version": same(1, pa.int64()),
    }
    return arrays.table_of(columns, schema_of(CATALOG))
