"""Whether a feed can be believed: every kind of slip is found, told by node, and lost by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.testing import assertDataFrameEqual

from ebbmq.feed.steps import STEPS
from ebbmq_spark.schemas import frame_of, schema_of
from ebbmq_spark.transforms.quality import (
    duplicates,
    gaps,
    impossible,
    next_steps,
    rejected,
    stretches,
    summary,
    usable,
    with_faults,
)
from tests.pipeline.rows import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WRONG = {
    "no such event: eaten": {"event": "eaten"},
    "seq is below 1": {"seq": 0},
    "at_ms is below 0": {"at_ms": -1},
    "latency_ms is below 0": {"latency_ms": -1},
    "importance is not 1 to 10": {"importance": 11},
}
POSSIBLE = (
    ("published", "leased", "acked"),
    ("published", "leased", "retried", "peeked", "leased", "lease_expired", "dead_lettered"),
    ("published", "placed", "copied", "leased", "moved", "released", "stale"),
    ("scheduled", "leased", "acked"),
    # The feed began in the middle of a life.
    ("acked",),
    ("leased", "acked"),
)
IMPOSSIBLE = {
    ("acked", "published"): "the message was gone",
    ("published", "acked"): "settled, but not leased",
    ("published", "leased", "leased"): "leased, but the lease before ran",
    ("published", "leased", "acked", "acked"): "the message was gone",
    ("published", "stale", "leased"): "the message was gone",
    ("leased", "published"): "published, but known before",
}


def test_a_row_that_is_none_is_set_aside_with_the_reason(spark: SparkSession) -> None:
    wrong = [{"seq": n, **fields} for n, fields in enumerate(WRONG.values(), 6)]
    told = events(spark, {"seq": 5}, *wrong)
    assert sorted(row.fault for row in rejected(told).collect()) == sorted(WRONG)
    assert [row.seq for row in usable(told).collect()] == [5]


def test_a_row_without_what_every_row_has_is_set_aside(spark: SparkSession) -> None:
    told = events(spark, {"seq": 1}).selectExpr("*", "cast(null as string) as gone")
    told = told.drop("queue").withColumnRenamed("gone", "queue")
    assert [row.fault for row in with_faults(told).collect()] == ["no queue"]


def test_what_is_missing_or_told_twice_is_found_by_node_and_boot(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": seq} for seq in (3, 4, 4, 8)),
        {"seq": 1, "boot": 2},
        {"seq": 1, "node": "b"},
    )
    assertDataFrameEqual(
        gaps(told),
        spark.createDataFrame(
            [("a", 1, 4, 3)], "node string, boot long, after_seq long, missing long"
        ),
    )
    assert [tuple(row) for row in duplicates(told).collect()] == [("a", 1, 4, 2)]
    assert usable(told).count() == 5


def test_of_many_stretches_the_first_are_told_as_one(spark: SparkSession) -> None:
    numbers = (1, 2, 2, 4, 5, 9, 11, 12)
    told = events(spark, *({"seq": seq} for seq in numbers), {"seq": 3, "boot": 2})
    of_boot = {most: stretches(told, most).where("boot = 1").collect() for most in (9, 2)}
    shown = {most: sorted(tuple(row)[2:] for row in found) for most, found in of_boot.items()}
    # From, to, numbers, rows.
    assert shown[9] == [(1, 2, 2, 3), (4, 5, 2, 2), (9, 9, 1, 1), (11, 12, 2, 2)]
    assert shown[2] == [(1, 9, 5, 6), (11, 12, 2, 2)]
    assert [tuple(row)[2:] for row in stretches(told).where("boot = 2").collect()] == [(3, 3, 1, 1)]


def test_the_last_step_of_messages_is_kept_from_a_number_on(spark: SparkSession) -> None:
    boots = spark.createDataFrame(
        [("a", 1, 9, None), ("a", 2, None, 3)],
        "node string, boot long, told_to long, kept_from long",
    )

    def after(before: DataFrame, *rows: tuple[int, str, str]) -> DataFrame:
        names = ("seq", "message_id", "event")
        told = [{"boot": 2, **dict(zip(names, row, strict=True))} for row in rows]
        other = {"seq": 10, "message_id": "of the boot before"}
        found = next_steps(events(spark, *told, other), before, boots).where("is_kept")
        return found.select(*STEPS.names)

    none = frame_of(spark, [], schema_of(STEPS))
    one = after(none, (2, "old", "published"), (3, "m", "published"), (4, "n", "published"))
    two = after(one, (5, "m", "leased"), (6, "n", "peeked"))
    kept = [(row.message_id, row.seq, row.event) for row in two.orderBy("seq").collect()]
    assert kept == [("n", 4, "published"), ("m", 5, "leased")]


def test_only_what_cannot_have_happened_is_found(spark: SparkSession) -> None:
    told = events(
        spark,
        *(
            {"message_id": " ".join(names), "node": f"node {number}", "seq": seq, "event": name}
            for number, names in enumerate((*POSSIBLE, *IMPOSSIBLE))
            for seq, name in enumerate(names, 1)
        ),
    )
    found = {row.message_id: (row.seq, row.fault) for row in impossible(told).collect()}
    assert found == {" ".join(names): (len(names), fault) for names, fault in IMPOSSIBLE.items()}


def test_all_of_it_is_told_by_node(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": n, "event": e} for n, e in ((1, "published"), (1, "published"), (4, "acked"))),
        {"seq": 5, "event": "eaten"},
        {"seq": 1, "node": "b"},
    )
    assertDataFrameEqual(
        summary(told),
        spark.createDataFrame(
            [("a", 4, 1, 1, 2, 1), ("b", 1, 0, 0, 0, 0)],
            "node string, rows long, rejected long, duplicates long, missing long, impossible long",
        ),
    )
