"""One formula, one rule text, two engines: floats in the broker and columns in Spark agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from ebbmq.model import QueueSpec
from ebbmq.policy import importance as policy
from ebbmq.policy.decay import Access, Phase, Score, decay_score
from ebbmq.policy.placement import Terms
from ebbmq.policy.rules.compile import test_of as closure_of
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq_spark.rules import column_of
from ebbmq_spark.transforms.importance import band_of, current_importance, is_stale
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.scores import access_rate_at, phase_of, tier_of, with_scores
from tests.pipeline.rows import DAY_MS, NOW_MS, catalog
from tests.property.rule_strategies import conditions, messages, states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# One example is one job of Spark on many rows, hence few examples.
FEW = hypothesis.settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
plain = st.floats(-1e6, 1e6, allow_nan=False)
ROWS = 128
FACTORY = "spark.sql.codegen.factoryMode"


@pytest.fixture(scope="module", autouse=True)
def compiled(spark: SparkSession) -> Iterator[None]:
    """Formulas are compiled, as they are for users."""
    before = spark.conf.get(FACTORY)
    assert before is not None
    spark.conf.set(FACTORY, "FALLBACK")
    yield
    spark.conf.set(FACTORY, before)


@FEW
@given(rows=st.lists(st.tuples(*[plain] * 7), min_size=ROWS, max_size=ROWS))
def test_scores_are_the_same_to_the_last_bit(spark: SparkSession, rows: list[tuple]) -> None:
    names = ["age", "access", "base", "per_day", "bonus", "medium", "high"]
    frame = spark.createDataFrame(rows, [*names])
    score = decay_score(*(F.col(name) for name in names[:5]))
    got = frame.select(
        score.alias("score"), phase_of(score, F.col("medium"), F.col("high")).alias("phase")
    ).collect()
    for row, (found, phase) in zip(rows, got, strict=True):
        assert found == decay_score(*row[:5])
        assert Phase(phase) is Score(*row[2:]).phase(found)


@FEW
@given(
    rows=st.lists(
        st.tuples(
            st.integers(1, 10),
            st.floats(0, 1),
            st.integers(0, 10**9),
            st.integers(1, 10**9),
            st.sampled_from([0.25, 0.3, 1.0, 2.0, 10.0]),
            st.floats(0, 10),
        ),
        min_size=ROWS,
        max_size=ROWS,
    )
)
def test_importance_band_and_staleness_are_the_same_to_the_last_bit(
    spark: SparkSession, rows: list[tuple]
) -> None:
    frame = spark.createDataFrame(
        rows, "importance int, rate double, age long, span long, width double, threshold double"
    )
    current = current_importance(F.col("importance"), F.col("rate"), F.col("age"), F.col("span"))
    got = frame.select(
        current.alias("current"),
        band_of(current, F.col("width")).alias("band"),
        is_stale(current, F.col("importance"), F.col("threshold")).alias("stale"),
    ).collect()
    for (importance, rate, age, span, width, threshold), row in zip(rows, got, strict=True):
        exact = policy.current_importance(importance, rate, age, span)
        assert row.current == exact
        assert row.band == policy.band_of(exact, width)
        stale_age = policy.stale_age_ms(importance, rate, span, threshold)
        assert row.stale == (stale_age is not None and age >= stale_age)


@FEW
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(0, 100 * DAY_MS)), min_size=ROWS, max_size=ROWS
    )
)
def test_access_rates_fade_alike(spark: SparkSession, rows: list[tuple[float, int]]) -> None:
    frame = spark.createDataFrame(rows, "rate double, at long")
    got = frame.select(access_rate_at(F.col("rate"), F.col("at"), 50 * DAY_MS)).collect()
    # Java and C round exp differently in the last place.
    for (rate, at_ms), (found,) in zip(rows, got, strict=True):
        assert found == pytest.approx(Access(rate, at_ms).rate_at(50 * DAY_MS), rel=1e-12)


@FEW
@given(
    tried=st.lists(conditions, min_size=12, max_size=12),
    rows=st.lists(messages, min_size=24, max_size=24),
    devices=states,
)
def test_rules_match_the_same_rows(spark: SparkSession, tried: list, rows: list, devices: dict):
    kinds = {
        word.attribute: "map<string,string>"
        if word.needs == "header"
        else {"number": "double", "text": "string"}[word.kind]
        for word in KEYWORDS.values()
        if word.needs != "device"
    }
    values = [tuple(_value(row, name) for name in kinds) for row in rows]
    frame = spark.createDataFrame(values, ", ".join(f"{n} {kind}" for n, kind in kinds.items()))
    columns = {name: F.col(name) for name in kinds}
    got = frame.select(
        *(column_of(each, columns, devices).alias(f"c{i}") for i, each in enumerate(tried))
    ).collect()
    for row, matched in zip(rows, got, strict=True):
        assert list(matched) == [closure_of(each)(row, devices) for each in tried]


def _value(row: object, name: str) -> object:
    value = getattr(row, name)
    return dict(value) if name == "headers" else value


@pytest.mark.parametrize(
    "tiers", [(), ("ssd",), ("ram", "hdd"), ("ram", "ssd", "s3"), tuple("abcd")]
)
def test_a_phase_has_the_tier_it_has_in_the_broker(spark: SparkSession, tiers: tuple) -> None:
    frame = spark.createDataFrame(
        [(list(tiers), int(p)) for p in Phase], "tiers array<string>, phase int"
    )
    got = [row[0] for row in frame.selectExpr(tier_of("tiers", "phase")).collect()]
    assert got == [Terms(tiers=tiers).tier(phase) for phase in Phase]


def test_messages_get_the_score_of_the_instant_asked_for(spark: SparkSession) -> None:
    specs = [
        QueueSpec("q", score_per_day=10, score_access_bonus=2, tiers=("ssd", "hdd", "s3")),
        QueueSpec("other", score_base=60),
    ]
    rows = catalog(
        spark,
        {"message_id": "young", "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "old", "enqueued_at_ms": NOW_MS - 11 * DAY_MS},
        {"message_id": "read", "enqueued_at_ms": NOW_MS - 11 * DAY_MS,
         "access_rate": 10.0, "access_at_ms": NOW_MS},
        {"message_id": "based", "queue": "other"},
        {"message_id": "of a queue nobody knows", "queue": "gone"},
    )  # fmt: skip
    got = with_scores(rows, parameters_of(spark, specs), NOW_MS).collect()
    assert {r.message_id: (r.decay_score, Phase(r.phase), r.wanted_tier) for r in got} == {
        "young": (10.0, Phase.FRESH, "ssd"),
        "old": (110.0, Phase.FADED, "s3"),
        "read": (90.0, Phase.KEPT, "hdd"),
        "based": (60.0, Phase.KEPT, None),
    }
