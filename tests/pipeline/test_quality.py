"""Whether a feed can be believed: every kind of slip is found, told by node, and lost by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.testing import assertDataFrameEqual

from ebbmq_spark.transforms.quality import (
    duplicates,
    gaps,
    impossible,
    rejected,
    summary,
    usable,
    with_faults,
)
from tests.pipeline.rows import events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
