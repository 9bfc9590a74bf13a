"""From decay scores to a plan for the fleet: which copies to add, drop and move.

Targets and tiers are those of `policy.advice`: what a broker would decide by itself when it is next
asked, for every message at once. What no single broker can see is the room and the cost of the
whole: `bounds` keeps a plan within them.

Messages are joined with the parameters of their queue once, by a broadcast: no row is ever moved.
What is only decided here is written in SQL: a text goes to Spark by one call, of which columns that
are put together take hundreds. Formulas that the broker has, too, are those of `policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from ebbmq.feed.plans import ACTIONS, PLANS
from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import NEVER, WAY_BACK_MIN, WAY_BACK_SHARE, Phase, decay_score
from ebbmq_spark.schemas import schema_of
from ebbmq_spark.transforms.codegen import apart, once
from ebbmq_spark.transforms.importance import current_importance
from ebbmq_spark.transforms.scores import access_rate_at, phase_of, tier_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A repair comes before everything that is merely better.
REPAIR_VALUE: Final = 1_000.0
NEEDED: Final = (
    "node", "queue", "partition", "message_id", "generation", "state", "importance", "decay_rate",
    "ttl_ms", "bytes", "enqueued_at_ms", "access_rate", "access_at_ms", "replicas",
    "replica_target", "copies", "tier", "review_at_ms", "policy_version",
)  # fmt: skip
#: Which of the tiers of a queue phases mean, from 1 on (0: none), as one number.
_PLACE_BITS: Final = 20
_AT: Final = f"cast(shiftright(_places, {_PLACE_BITS} * {{}}) & {(1 << _PLACE_BITS) - 1} AS int)"
_THERE: Final = _AT.format("phase")
#: The phase, or the one its tier is of while it is on the way back from there, as `Terms.settled`.
_SETTLED: Final = f"""
    CASE WHEN _here > 0 AND {_AT.format("_back")} != {_AT.format("_phase")}
    AND _here >= {_AT.format("_back")} THEN _back ELSE _phase END"""
_FRESH, _KEPT, _FADED = map(int, Phase)
_CODES: Final = {action: number for number, action in enumerate(ACTIONS, 1)}
_ASKED: Final = "greatest(replicas, min_copies)"
#: Copies a message should have.
_TARGET: Final = f"""
    cast(CASE WHEN phase = {_FADED} THEN 1
    ELSE least(greatest({_ASKED}, replica_target + cast(phase = {_FRESH} AS int)),
               greatest({_ASKED}, coalesce(max_replicas, replicas)))
    END AS int)"""
_YOUNG: Final = "now_ms - enqueued_at_ms < evaluate_every_ms"
_COLDER: Final = "_here > 0 AND _there > _here"
#: Which of ACTIONS, from 1 on; 0 for none. What a queue wants removed when it has faded, its broker
#: removes.
_ACTION: Final = f"""
    CASE WHEN copies < least(replica_target, target) THEN {_CODES["repair"]}
    WHEN {_YOUNG} OR phase = {_FADED} AND on_faded != 'archive' THEN 0
    WHEN _there > 0 AND _there < _here THEN {_CODES["promote"]}
    WHEN copies < target THEN {_CODES["add_copy"]}
    WHEN {_COLDER} AND phase = {_FADED} THEN {_CODES["archive"]}
    WHEN {_COLDER} THEN {_CODES["move"]}
    WHEN copies > target THEN {_CODES["drop_copy"]}
    ELSE 0 END"""
_HUNDREDTHS: Final = "floor(abs(decay_score) * 100 + 0.5D)"
#: The decay score with two digits after the point, put together of texts. Whole numbers all the
#: way: by decimals a whole plan takes nearly a tenth longer.
_SCORE: Final = f"""
    CASE WHEN decay_score < 0 AND {_HUNDREDTHS} > 0 THEN '-' ELSE '' END,
    cast(floor({_HUNDREDTHS} / 100) AS string),
    get(split('{" ".join(f".{number:02d}" for number in range(100))}', ' '),
        cast({_HUNDREDTHS} % 100 AS int))"""
#: What an action is worth: what the message is worth now, and more if it is read.
_WORTH: Final = "current_importance + least(access_rate, 100.0D)"
#: Copies of a message that moves are all written anew.
_MOVED: Final = f"""
    CASE WHEN _code IN {tuple(_CODES[action] for action in ("promote", "move", "archive"))}
    THEN target ELSE 0 END"""
#: What bounds are about.
_BOUNDED: Final = {
    "written_bytes": "bytes * greatest(_moved, target - copies, 0)",
    "freed_bytes": "bytes * greatest(copies - target + _moved, 0)",
    "value": f"{_WORTH} + CASE WHEN _code = {_CODES['repair']} THEN {REPAIR_VALUE}D ELSE 0.0D END",
}
#: Columns of a plan that are not columns of what was judged.
_PLANNED: Final = {
    "from_tier": "tier",
    "to_tier": "coalesce(wanted_tier, tier)",
    "bytes": "written_bytes",
    "reason": f"concat('decay score ', {_SCORE}, ', copies ', copies, ' of ', target)",
    "decided_at_ms": "now_ms",
}


def wanted_target() -> Column:
    """Copies a message should have, at a review; as `policy.advice` decides.

    Of the columns of a catalog joined with the parameters of its queue, and its phase.
    """
    return F.expr(_TARGET)


def due(catalog: DataFrame, until_ms: int) -> DataFrame:
    """Messages about which there may be something to do by an instant; the others stay unread.

    Files have ranges of this column, and messages in its order, so that most of them are skipped.
    """
    return catalog.where(F.col("review_at_ms") <= until_ms)


def judged(catalog: DataFrame, parameters: DataFrame, now_ms: int) -> DataFrame:
    """Messages about which something is to be done, with what, and by what it was decided.

    At most one action a message: the most urgent; the next run sees what is left to do. Leased
    messages are left alone, for they are about to go. A queue without parameters is dropped: nobody
    can say what to do with it.

    Args:
        catalog: of the table CATALOG, or the columns NEEDED of it.
        parameters: one row a queue, of `parameters.schema()`; or one row a node and queue, with
            `now_ms`, the instant of that node's snapshot.
        now_ms: the instant, where the parameters have none.
    """
    keys: list[str] = [name for name in ("node", "queue") if name in parameters.columns]
    if "now_ms" not in parameters.columns:
        parameters = parameters.withColumn("now_ms", F.lit(now_ms).cast("long"))
    # Known of a queue, not only of a message; one number, for the code of a row has to be short.
    tiers = {phase: tier_of("tiers", int(phase)) for phase in Phase}
    places = [
        f"coalesce(array_position(tiers, {tier}), 0L) * {1 << _PLACE_BITS * phase}L"
        for phase, tier in tiers.items()
    ]
    # A score that does nothing has no tiers either.
    places_of = f"CASE WHEN score_high < {NEVER}D THEN {' + '.join(places)} ELSE 0L END AS _places"
    known = parameters.selectExpr("*", places_of)
    now, enqueued = F.col("now_ms"), F.col("enqueued_at_ms")
    joined = catalog.where("state = 'ready'").join(F.broadcast(known), on=keys, how="inner")
    span_ms = F.coalesce(F.col("ttl_ms"), F.col("decay_unit_ms"))
    age_ms = F.greatest(now - enqueued, F.lit(0))
    worth = current_importance(F.col("importance"), F.col("decay_rate"), age_ms, span_ms)
    score = decay_score(
        (now - enqueued) / DAY_MS,
        F.col("_rate"),
        F.col("score_base"),
        F.col("score_per_day"),
        F.col("score_access_bonus"),
    )
    medium, high = F.col("score_medium"), F.col("score_high")
    phase = phase_of(F.col("_score"), medium, high)
    back = phase_of(F.col("_score"), _way_back(medium), _way_back(high))
    # Each may use those before it: to add one after the other, Spark goes through all of the plan
    # for each, and that takes longer than to plan for few messages.
    by = {
        "_rate": access_rate_at(F.col("access_rate"), F.col("access_at_ms"), now),
        "_score": score,
        "_here": F.expr("array_position(tiers, tier)"),
        "_phase": once(phase),
        "_back": once(back),
        "phase": once(F.expr(_SETTLED)),
        "target": wanted_target(),
        "_there": once(F.expr(_THERE)),
        "_code": once(F.expr(_ACTION)),
    }
    acting = joined.select("*", *(column.alias(name) for name, column in by.items()))
    # What it takes to judge a message and to say what is done with it is too long for one method.
    wanted = apart(acting.where("_code > 0")).withColumn(
        "wanted_tier", F.expr("get(tiers, _there - 1)")
    )
    return wanted.withColumns(
        {
            "access_rate": F.col("_rate"),
            "decay_score": F.col("_score"),
            "current_importance": worth,
            "_moved": once(F.expr(_MOVED)),
            "action": F.expr(f"element_at(array{ACTIONS}, _code)"),
        }
    ).select("*", *(once(F.expr(text)).alias(name) for name, text in _BOUNDED.items()))


def _way_back(threshold: Column) -> Column:
    """As `Score.way_back`."""
    least = F.lit(WAY_BACK_MIN)
    return threshold - F.greatest(F.abs(threshold) * WAY_BACK_SHARE, least)


def as_plan(judged: DataFrame, hold_ms: int) -> DataFrame:
    """What was judged as the plan that brokers read: of the table PLANS."""
    columns = {**_PLANNED, "until_ms": f"now_ms + {hold_ms}"}
    return judged.selectExpr(
        *(
            f"cast({columns.get(field.name, field.name)} AS {field.dataType.simpleString()})"
            f" AS {field.name}"
            for field in schema_of(PLANS)
        )
    )


def planned(catalog: DataFrame, parameters: DataFrame, *, now_ms: int, until_ms: int) -> DataFrame:
    """What should be done with each message, as if there were room for everything.

    Returns:
        of the table PLANS
    """
    return as_plan(judged(catalog, parameters, now_ms), until_ms - now_ms)
