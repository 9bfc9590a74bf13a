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
        [("a", 1, 9, None, [[1, 0]]), ("a", 2, None, 3, [[2, 0]])],
        "node string, boot long, told_to long, kept_from long, stretches array<array<long>>",
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


def test_what_may_have_happened_where_numbers_are_missing_is_not_impossible(
    spark: SparkSession,
) -> None:
    told = events(
        spark,
        {"seq": 1, "message_id": "before"},
        {"seq": 2, "message_id": "around"},
        {"seq": 3, "message_id": "before", "event": "acked"},
        # What was left out may have leased it.
        {"seq": 7, "message_id": "around", "event": "acked"},
        {"seq": 8, "message_id": "around", "event": "leased"},
        {"seq": 9, "message_id": "after", "event": "acked"},
        {"seq": 11, "message_id": "after", "event": "published"},
    )
    found = {(row.message_id, row.seq) for row in impossible(told).collect()}
    assert found == {("before", 3), ("around", 8)}


def test_of_a_stretch_with_holes_nobody_knows_what_is_missing(spark: SparkSession) -> None:
    schema = "node string, boot long, told_to long, kept_from long, stretches array<array<long>>"
    boots = spark.createDataFrame([("a", 1, 3, 1, [[1, 2], [20, 0], [40, 0]])], schema)
    steps = frame_of(
        spark,
        [("a", 1, "q", "known", 3, "published"), ("a", 1, "q", "sound", 21, "published")],
        schema_of(STEPS),
    )
    told = events(
        spark,
        {"seq": 12, "message_id": "known", "event": "acked"},
        {"seq": 22, "message_id": "sound", "event": "acked"},
        {"seq": 22, "message_id": "of a boot that is forgotten", "boot": 2},
        {"seq": 23, "message_id": "of a boot that is forgotten", "boot": 2, "event": "acked"},
        {"seq": 29, "message_id": "over a gap"},
        {"seq": 40, "message_id": "over a gap", "event": "acked"},
        {"seq": 41, "message_id": "over a gap", "event": "leased"},
    )
    found = next_steps(told, steps, boots).where("impossible > 0")
    assertDataFrameEqual(
        found.select("message_id", "seq", "event", "impossible", "is_kept"),
        spark.createDataFrame(
            [("sound", 22, "acked", 1, True), ("over a gap", 41, "leased", 1, True)],
            "message_id string, seq long, event string, impossible long, is_kept boolean",
        ),
    )


def test_all_of_it_is_told_by_node(spark: SparkSession) -> None:
    told = events(
        spark,
        *({"seq": n, "event": e} for n, e in ((1, "published"), (1, "published"), (4, "acked"))),
        {"seq": 5, "event": "eaten"},
        {"seq": 1, "node": "b"},
        {"seq": 2, "node": "b", "event": "acked"},
    )
    assertDataFrameEqual(
        summary(told),
        spark.createDataFrame(
            [("a", 4, 1, 1, 2, 0), ("b", 2, 0, 0, 0, 1)],
            "node string, rows long, rejected long, duplicates long, missing long, impossible long",
        ),
    )


def test_a_row_that_is_set_aside_is_not_missing_and_hides_only_its_own_message(
    spark: SparkSession,
) -> None:
    told = events(
        spark,
        {"seq": 1, "message_id": "across"},
        {"seq": 2, "message_id": "its own"},
        # It may have been a lease of its message, and of no other one.
        {"seq": 3, "message_id": "its own", "event": "eaten"},
        {"seq": 3, "message_id": "its own", "event": "eaten"},
        {"seq": 4, "message_id": "across", "event": "acked"},
        {"seq": 5, "message_id": "its own", "event": "acked"},
        {"seq": 6, "message_id": "its own", "event": "leased"},
        # This one may have been about any message.
        {"seq": 1, "node": "b"},
        {"seq": 3, "node": "b", "event": "acked"},
    )
    nameless = events(spark, {"seq": 2, "node": "b"}).selectExpr(
        *(f"NULL as {name}" if name == "message_id" else name for name in told.columns)
    )
    assert {tuple(row) for row in summary(told.union(nameless)).collect()} == {
        ("a", 7, 2, 1, 0, 2),
        ("b", 3, 1, 0, 0, 0),
    }
