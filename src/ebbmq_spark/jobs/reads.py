"""Who reads what, for a report: reads a day, hours of the day, and how few messages take most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from ebbmq.feed import events as feed
from ebbmq.feed.snapshots import CATALOG
from ebbmq_spark.lake import read_table
from ebbmq_spark.transforms.access import heat
from ebbmq_spark.transforms.profiles import HOUR_MS, access_rates
from ebbmq_spark.transforms.scores import access_rate_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.jobs.fleet import Fleet
    from ebbmq_spark.lake import Lake

#: Queues that are shown: those read the most.
QUEUES_SHOWN: Final = 5
#: The hot set takes this share of the reads.
HOT_SHARE: Final = 0.5
HOURS_A_DAY: Final = 24


class Reads(NamedTuple):
    """How a queue is read."""

    queue: str
    #: Reads a day, exponentially weighted, of all its messages together.
    rate: float
    #: Live messages that were read and not done, and how few of them take half of their reads;
    #: None where nothing depends on it, so that brokers do not count the reads of each message.
    messages: int | None
    hot: int | None
    #: By the hour of the day, in UTC: how many were published, how many read.
    published: Sequence[int]
    read: Sequence[int]


def reads(
    spark: SparkSession,
    lake: Lake,
    fleet: Fleet,
    profiles: DataFrame,
    hours: Iterable[Mapping[str, Any]],
    clocks: DataFrame,
) -> list[Reads]:
    """How queues are read, those read the most first.

    Args:
        spark: where to run.
        lake: which.
        fleet: its last snapshots.
        profiles: of the table PROFILES.
        hours: its queue, hour_ms, event and count.
        clocks: node, now_ms: what its clock says.
    """
    of_day = _by_hour_of_day(hours)
    rates: dict[str, float] = {}
    for row in access_rates(profiles, clocks).collect():
        rates[row.queue] = rates.get(row.queue, 0.0) + row.access_rate
    shown = sorted(
        (queue for queue, rate in rates.items() if rate > 0),
        key=lambda queue: (-rates[queue], queue),
    )[:QUEUES_SHOWN]
    if not shown:
        return []
    hot = {**_uncounted(fleet), **_hot(spark, lake, fleet, shown)}
    nothing = [0] * HOURS_A_DAY
    return [
        Reads(
            queue,
            rates[queue],
            *hot.get(queue, (0, 0)),
            of_day.get((queue, "published"), nothing),
            of_day.get((queue, "read"), nothing),
        )
        for queue in shown
    ]


def _uncounted(fleet: Fleet) -> dict[str, tuple[None, None]]:
    """Queues whose score does not depend on reads: unless a rule does, nobody counts them."""
    counted = {
        queue.name
        for each in fleet.snapshots
        for queue in each.settings.queues
        if queue.score_access_bonus
    }
    known = {queue.name for each in fleet.snapshots for queue in each.settings.queues}
    return dict.fromkeys(known - counted, (None, None))


def _by_hour_of_day(hours: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for row in hours:
        event = "read" if row["event"] in feed.READS else row["event"]
        if event in ("read", "published"):
            counts = found.setdefault((row["queue"], event), [0] * HOURS_A_DAY)
            counts[row["hour_ms"] // HOUR_MS % HOURS_A_DAY] += row["count"]
    return found


def _hot(
    spark: SparkSession, lake: Lake, fleet: Fleet, queues: list[str]
) -> dict[str, tuple[int, int]]:
    """By queue: live messages that were read, and how many of them are the hot set."""
    catalog = read_table(
        spark, CATALOG, fleet.files, lake, ("node", "queue", "access_rate", "access_at_ms")
    ).where((F.col("access_rate") > 0) & F.col("queue").isin(queues))
    clocks = spark.createDataFrame(
        [(each.node, each.now_ms) for each in fleet.snapshots], "node string, now_ms long"
    )
    rate = access_rate_at(F.col("access_rate"), F.col("access_at_ms"), F.col("now_ms"))
    read = catalog.join(F.broadcast(clocks), on="node").withColumn("access_rate", rate)
    found: dict[str, list[tuple[int, float]]] = {}
    for row in heat(read).orderBy(F.col("degree").desc()).collect():
        found.setdefault(row.queue, []).append((row.messages, row.access_rate))
    return {
        queue: (sum(messages for messages, _ in degrees), _fewest(degrees))
        for queue, degrees in found.items()
    }


def _fewest(degrees: list[tuple[int, float]]) -> int:
    """How many messages take the share of the reads, the hottest first."""
    left = HOT_SHARE * sum(rate for _, rate in degrees)
    taken = 0
    for messages, rate in degrees:
        if rate >= left:
            return taken + max(1, round(messages * left / rate))
        taken += messages
        left -= rate
    return taken
