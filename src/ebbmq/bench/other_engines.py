"""The plan of the pipeline in DuckDB and in Polars: the same rows in, the same actions out.

They are given what Spark has to look up: the parameters, which are the same of all queues, are
constants, and of each of the three tiers there is one device, which has its name.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ebbmq.limits import DAY_MS
from ebbmq.policy.advice import Places

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.feed.settings import QueueParameters

_MEMORY: Final = "2GB"


class _Way(NamedTuple):
    """What copies come and go where, of a tier that is wanted, a target, and tiers with a copy."""

    wanted: int
    target: int
    #: A bit for each tier.
    held: int
    written: int
    freed: int
    written_to: str | None
    freed_from: str | None


def _ways(tiers: tuple[str, ...]) -> list[_Way]:
    count = len(tiers)
    places = Places(tiers, count, (1,) * count)
    found: list[_Way] = []
    for wanted, target, held in itertools.product(
        range(count), range(1, count + 1), range(1 << count)
    ):
        has = [held >> place & 1 for place in range(count)]
        chosen = places.arranged(has, wanted, target)
        more = [at for at in range(count) if chosen[at] > has[at]]
        less = [at for at in range(count) if chosen[at] < has[at]]
        to, of = (" + ".join(tiers[at] for at in those) for those in (more, less))
        elsewhere = to if more not in ([], [wanted]) else None
        found.append(_Way(wanted, target, held, len(more), len(less), elsewhere, of or None))
    return found


def duckdb_plan(files: list[str], queue: QueueParameters, now_ms: int, out: Path) -> int:
    """Plan with DuckDB; returns how many actions there are."""
    import duckdb  # noqa: PLC0415  # only this question needs it

    tiers = list(queue.tiers)
    values = ", ".join(
        "(" + ", ".join("NULL" if each is None else repr(each) for each in way) + ")"
        for way in _ways(queue.tiers)
    )
    held = " + ".join(
        f"list_contains(devices, '{tier}')::INT * {1 << at}" for at, tier in enumerate(tiers)
    )
    query = f"""
    COPY (
      WITH ways (way_wanted, way_target, way_held, written, freed, written_to, freed_from)
        AS (VALUES {values}),
      scored AS (
        SELECT *,
          {queue.score_base} + ({now_ms} - enqueued_at_ms) / {DAY_MS}.0 * {queue.score_per_day}
            - rate * {queue.score_access_bonus} AS score,
          greatest(importance * (1 - decay_rate * greatest({now_ms} - enqueued_at_ms, 0)
            / coalesce(ttl_ms, {queue.decay_unit_ms})), 0) AS worth
        FROM (SELECT *, CASE WHEN access_rate = 0 THEN 0.0 ELSE access_rate
                * exp(-greatest({now_ms} - access_at_ms, 0) / {DAY_MS}.0) END AS rate
              FROM read_parquet({files!r}) WHERE state = 'ready')
      ), phased AS (
        SELECT *, CASE WHEN score > {queue.score_high} THEN 2
                       WHEN score > {queue.score_medium} THEN 1 ELSE 0 END AS phase
        FROM scored
      ), wanted AS (
        SELECT *, CASE WHEN phase = 2 THEN 1
            ELSE least(greatest(greatest(replicas, {queue.min_copies}),
              replica_target + (phase = 0)::INT),
              greatest(greatest(replicas, {queue.min_copies}), {queue.max_replicas})) END AS target,
          CASE phase WHEN 0 THEN '{tiers[0]}' WHEN 1 THEN '{tiers[1]}' ELSE '{tiers[2]}' END
            AS to_tier,
          coalesce(list_position({tiers!r}, tier), 0) AS here, phase + 1 AS there
        FROM phased
      ), judged AS (
        SELECT *, CASE
          WHEN copies < least(replica_target, target) THEN 'repair'
          WHEN {now_ms} - enqueued_at_ms < {queue.evaluate_every_ms}
            OR phase = 2 AND '{queue.on_faded}' != 'archive' THEN NULL
          WHEN there < here THEN 'promote'
          WHEN copies < target THEN 'add_copy'
          WHEN here > 0 AND there > here AND phase = 2 THEN 'archive'
          WHEN here > 0 AND there > here AND phase = 1 THEN 'move'
          WHEN copies > target THEN 'drop_copy' END AS action
        FROM wanted
      ), counted AS (
        SELECT * REPLACE (
          coalesce(written, greatest(moved, target - copies, 0)) AS written,
          coalesce(freed, greatest(copies - target + moved, 0)) AS freed
        ) FROM (
          SELECT *, (action IN ('promote', 'move', 'archive'))::INT AS moved,
            CASE WHEN copies > 1 OR target > 1 THEN {held} END AS held
          FROM judged WHERE action IS NOT NULL
        ) LEFT JOIN ways ON phase = way_wanted AND least(target, {len(tiers)}) = way_target
          AND held = way_held
      )
      SELECT node, queue, "partition", message_id, generation, action, tier AS from_tier, to_tier,
        target, bytes * written AS bytes, bytes * freed AS freed_bytes, written_to, freed_from,
        worth + least(rate, 100) + CASE WHEN action = 'repair' THEN 1000 ELSE 0 END AS value,
        'decay score ' || score::DECIMAL(18, 2) || ', copies ' || copies || ' of ' || target
          AS reason,
        policy_version, {now_ms} AS decided_at_ms, {now_ms} + 3600000 AS until_ms
      FROM counted WHERE held IS NULL OR written + freed > 0
    ) TO '{out}' (FORMAT parquet, COMPRESSION snappy, PER_THREAD_OUTPUT true)
    """  # noqa: S608  # of numbers and names of this bench
    with duckdb.connect(config={"memory_limit": _MEMORY, "preserve_insertion_order": False}) as db:
        found = db.execute(query).fetchone()
    return int(found[0]) if found else 0


def polars_plan(files: list[str], queue: QueueParameters, now_ms: int, out: Path) -> None:
    """Plan with Polars, streaming."""
    import polars as pl  # noqa: PLC0415  # only this question needs it

    col, lit, tiers = pl.col, pl.lit, queue.tiers
    age = lit(now_ms) - col("enqueued_at_ms")
    unread = pl.max_horizontal(lit(now_ms) - col("access_at_ms"), lit(0))
    rate = (
        pl.when(col("access_rate") == 0)
        .then(0.0)
        .otherwise(col("access_rate") * (-unread / DAY_MS).exp())
    )
    span = col("ttl_ms").fill_null(queue.decay_unit_ms)
    score = queue.score_base + age / DAY_MS * queue.score_per_day - rate * queue.score_access_bonus
    asked = pl.max_horizontal(col("replicas"), lit(queue.min_copies))
    more = col("replica_target") + (col("phase") == 0).cast(pl.Int32)
    most = pl.max_horizontal(asked, lit(queue.max_replicas))
    target = (
        pl.when(col("phase") == 2)
        .then(1)
        .otherwise(  # faded
            pl.min_horizontal(pl.max_horizontal(asked, more), most)
        )
    )
    here = col("tier").replace_strict(
        list(tiers), list(range(len(tiers))), default=None, return_dtype=pl.Int32
    )
    copies, colder = col("copies"), col("phase") > here
    is_left = (col("phase") == 2) & lit(queue.on_faded != "archive")
    action = (
        pl.when(copies < pl.min_horizontal("replica_target", "target"))
        .then(lit("repair"))
        .when((age < queue.evaluate_every_ms) | is_left)
        .then(None)
        .when(col("phase") < here)
        .then(lit("promote"))
        .when(copies < col("target"))
        .then(lit("add_copy"))
        .when(colder & (col("phase") == 2))
        .then(lit("archive"))
        .when(colder & (col("phase") == 1))
        .then(lit("move"))
        .when(copies > col("target"))
        .then(lit("drop_copy"))
    )
    moved = col("action").is_in(["promote", "move", "archive"]).cast(pl.Int32)
    simple = {
        "written": pl.max_horizontal(moved, col("target") - copies, lit(0)),
        "freed": pl.max_horizontal(copies - col("target") + moved, lit(0)),
    }
    held = pl.sum_horizontal(
        *(
            col("devices").list.contains(tier).cast(pl.Int32) * (1 << at)
            for at, tier in enumerate(tiers)
        )
    )
    ways = pl.LazyFrame(
        _ways(tiers), [(f"way_{name}" if at < 3 else name, pl.String if at > 4 else pl.Int32)
                       for at, name in enumerate(_Way._fields)], orient="row",
    )  # fmt: skip
    urgent = pl.when(col("action") == "repair").then(1_000.0).otherwise(0.0)
    hundredths = (col("score").abs() * 100 + 0.5).floor().cast(pl.Int64)
    sign = pl.when((col("score") < 0) & (hundredths > 0)).then(lit("-")).otherwise(lit(""))
    lazy: Any = (
        pl.scan_parquet(files)
        .filter(col("state") == "ready")
        .with_columns(
            rate=rate,
            score=score,
            worth=pl.max_horizontal(
                col("importance")
                * (1 - col("decay_rate") * pl.max_horizontal(age, lit(0)) / span),
                lit(0.0),
            ),
        )
        .with_columns(
            phase=(col("score") > queue.score_medium).cast(pl.Int32)
            + (col("score") > queue.score_high).cast(pl.Int32)
        )
        .with_columns(target=target)
        .with_columns(action=action)
        .filter(col("action").is_not_null())
        .with_columns(
            held=pl.when((copies > 1) | (col("target") > 1)).then(held),
            least=pl.min_horizontal("target", lit(len(tiers))),
        )
        .join(
            ways,
            left_on=["phase", "least", "held"],
            right_on=["way_wanted", "way_target", "way_held"],
            how="left",
        )
        .with_columns(**{name: col(name).fill_null(each) for name, each in simple.items()})
        .filter(col("held").is_null() | (col("written") + col("freed") > 0))
        .select(
            "node", "queue", "partition", "message_id", "generation", "action",
            col("tier").alias("from_tier"),
            col("phase").replace_strict([0, 1, 2], list(tiers)).alias("to_tier"),
            "target",
            (col("bytes") * col("written")).alias("bytes"),
            (col("bytes") * col("freed")).alias("freed_bytes"),
            "written_to",
            "freed_from",
            (col("worth") + pl.min_horizontal("rate", lit(100.0)) + urgent).alias("value"),
            pl.format(
                "decay score {}{}.{}, copies {} of {}", sign, hundredths // 100,
                (hundredths % 100).cast(pl.String).str.zfill(2), "copies", "target",
            ).alias("reason"),
            "policy_version",
            lit(now_ms).alias("decided_at_ms"),
            lit(now_ms + 3_600_000).alias("until_ms"),
        )
    )  # fmt: skip
    lazy.sink_parquet(out / "plan.parquet", compression="snappy")
