"""What messages of a catalog are worth, and how faded they are, at an instant: literal frames."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyspark.testing import assertDataFrameEqual

from ebbmq.model import QueueSpec
from ebbmq_spark.transforms.importance import with_importance
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.scores import with_scores
from tests.pipeline.rows import DAY_MS, NOW_MS, catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


def test_scores_phases_and_tiers_are_those_of_the_instant(spark: SparkSession) -> None:
    spec = QueueSpec(
        "q", score_base=1, score_per_day=10, score_access_bonus=2, score_medium=50, score_high=100,
        tiers=("ssd", "hdd", "s3"),
    )  # fmt: skip
    plain = QueueSpec("plain")
    stored = catalog(
        spark,
        {"message_id": "fresh", "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "kept", "enqueued_at_ms": NOW_MS - 7 * DAY_MS},
        {"message_id": "faded", "enqueued_at_ms": NOW_MS - 20 * DAY_MS},
        {"message_id": "read", "enqueued_at_ms": NOW_MS - 7 * DAY_MS, "access_rate": 20.0,
         "access_at_ms": NOW_MS - DAY_MS},
        {"message_id": "without tiers", "queue": "plain", "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "of no queue", "queue": "unknown"},
    )  # fmt: skip
    found = with_scores(stored, parameters_of(spark, [spec, plain]), NOW_MS)
    assert found.columns == [*stored.columns, "phase", "wanted_tier"]
    rate = 20 * math.exp(-1)
    assertDataFrameEqual(
        found.select("message_id", "access_rate", "decay_score", "phase", "wanted_tier"),
        spark.createDataFrame(
            [
                ("fresh", 0.0, 11.0, 0, "ssd"),
                ("kept", 0.0, 71.0, 1, "hdd"),
                ("faded", 0.0, 201.0, 2, "s3"),
                ("read", rate, 71.0 - 2 * rate, 1, "hdd"),
                ("without tiers", 0.0, 0.0, 0, None),
            ],
            "message_id string, access_rate double, decay_score double, phase int, "
            "wanted_tier string",
        ),
    )


def test_worth_bands_and_staleness_are_those_of_the_instant(spark: SparkSession) -> None:
    specs = [
        QueueSpec("q", decay_unit_ms=HOUR_MS, band_width=2.0, stale_threshold=2.0),
        QueueSpec("exact", decay_unit_ms=HOUR_MS, band_width=0.0, stale_threshold=2.0),
    ]
    stored = catalog(
        spark,
        {"message_id": "as published", "importance": 9, "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "half", "importance": 8, "decay_rate": 0.5,
         "enqueued_at_ms": NOW_MS - HOUR_MS},
        {"message_id": "by its ttl", "importance": 8, "decay_rate": 1.0, "ttl_ms": 4 * HOUR_MS,
         "enqueued_at_ms": NOW_MS - HOUR_MS},
        {"message_id": "stale", "importance": 8, "decay_rate": 1.0, "ttl_ms": 10 * HOUR_MS,
         "enqueued_at_ms": NOW_MS - 9 * HOUR_MS},
        {"message_id": "long ago", "importance": 8, "decay_rate": 1.0,
         "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "of a clock ahead", "importance": 3, "decay_rate": 1.0,
         "enqueued_at_ms": NOW_MS + DAY_MS},
        # Half of its importance is below the threshold, and it is not below that.
        {"message_id": "low", "importance": 2, "decay_rate": 0.0},
        {"message_id": "without bands", "queue": "exact", "importance": 8, "decay_rate": 0.4375,
         "enqueued_at_ms": NOW_MS - HOUR_MS},
        {"message_id": "of no queue", "queue": "unknown"},
    )  # fmt: skip
    found = with_importance(stored, parameters_of(spark, specs), NOW_MS)
    assert found.columns == [*stored.columns, "current_importance", "band", "stale"]
    assertDataFrameEqual(
        found.select("message_id", "current_importance", "band", "stale"),
        spark.createDataFrame(
            [
                ("as published", 9.0, 5, False),
                ("half", 4.0, 2, False),
                ("by its ttl", 6.0, 3, False),
                ("stale", 0.8, 1, True),
                ("long ago", 0.0, 0, True),
                ("of a clock ahead", 3.0, 2, False),
                ("low", 2.0, 1, False),
                ("without bands", 4.5, 5, False),
            ],
            "message_id string, current_importance double, band int, stale boolean",
        ),
    )
