"""One run of upkeep over an archive: look, choose, write anew, verify, offer it to the brokers.

Nothing that a broker reads is changed here. New packs lie beside the old ones where nobody looks,
and a mapping, written last and never over another one, offers them to the broker of their store. A
run that is killed leaves files that no mapping names; a later run clears them away.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ebbmq.holding.mapping import Mapping, Offered
from ebbmq_spark.attempts import SPARK_ERRORS, failed
from ebbmq_spark.upkeep import looking, offering, rewriting
from ebbmq_spark.upkeep.choosing import DEAD_SHARE, choose
from ebbmq_spark.upkeep.packs import frame_of, packs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.upkeep.packs import Pack, Place

    Seen = dict[str, dict[str, Any]]

#: Footers are small: many of them are one task.
_FOOTERS_A_TASK: Final = 64
_TASKS_MAX: Final = 1_000
STAGES: Final = ("listing", "reading footers", "verifying", "writing packs", "offering", "done")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked for."""

    #: From which share of dead messages on a pack is written anew.
    dead_share: float = DEAD_SHARE
    #: Messages that were first published longer ago are to leave the archive; their broker says
    #: how long that is, and those that are younger by its clock stay.
    keep_ms: int | None = None
    #: Read all packs and compare every checksum.
    verify: bool = False
    #: Write packs anew, and offer that; without it a run only looks.
    compact: bool = True


class Damage(msgspec.Struct, frozen=True):
    """A message, or with None a whole pack, whose bytes are not what was taken in."""

    store: str
    pack: str
    message: str | None
    detail: str


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: str
    packs: int = 0
    bytes: int = 0
    messages: int = 0
    dead: int = 0
    #: Packs that were written anew, into how many, with how many messages and bytes.
    rewritten: int = 0
    made: int = 0
    made_messages: int = 0
    made_bytes: int = 0
    #: Bytes less that these have than what they were made of.
    reclaimed_bytes: int = 0
    expired: int = 0
    verified: bool = False
    damage: list[Damage] = []
    #: Stores for which a mapping was written, and those that have yet to apply an earlier one.
    offered: list[str] = []
    waiting: list[str] = []


def upkeep(
    spark: SparkSession,
    place: Place,
    asked: Asked,
    tell: Callable[[str, int], None] = lambda *_: None,
) -> Told:
    """Look after an archive.

    Args:
        spark: where it runs.
        place: where the archive is.
        asked: what is to be done.
        tell: told at the begin of each of `STAGES`, with how much there is to do.

    Raises:
        UnknownFeed: no broker has an archive there.
        UpkeepFailed: what is alive cannot be told.
        StorageFailed: the bucket cannot be read or written.
        JobFailed: Spark did not carry it through; nothing was offered that is not complete.
    """
    try:
        return _Run(spark, place, asked, tell).run()
    except SPARK_ERRORS as error:
        raise failed(error) from error


class _Run:
    """The state of one run."""

    def __init__(
        self, spark: SparkSession, place: Place, asked: Asked, tell: Callable[[str, int], None]
    ) -> None:
        self.spark = spark
        self.place = place
        self.asked = asked
        self.tell = tell
        place.require()
        self.bucket = place.open()
        self.now_ms = time.time_ns() // 1_000_000
        self.told = Told(run=f"{self.now_ms:013d}-{secrets.token_hex(4)}", verified=asked.verify)
        keep_ms = asked.keep_ms
        self.before_ms = 0 if keep_ms is None else max(0, self.now_ms - keep_ms)

    def run(self) -> Told:
        """Go through the stages."""
        self.tell("listing", 0)
        packs = packs_of(self.bucket)
        stores = sorted({pack.store for pack in packs})
        offering.clear_leftovers(self.bucket, stores, self.now_ms)
        waiting = [store for store in stores if offering.is_waiting(self.bucket, store)]
        seen = self._look(packs)
        self.told = replace(
            self.told,
            packs=len(packs),
            bytes=sum(pack.size for pack in packs),
            messages=sum(each["rows"] for each in seen.values()),
            dead=sum(each["dead"] for each in seen.values()),
            damage=_sorted(each for one in seen.values() for each in _damage(one)),
            waiting=waiting,
        )
        if self.asked.compact:
            self._rewrite([pack for pack in packs if pack.store not in waiting], seen)
        self.tell("done", 0)
        return self.told

    def _look(self, packs: list[Pack]) -> Seen:
        if not packs:
            return {}
        self.tell("reading footers", len(packs))
        tasks = min(_TASKS_MAX, -(-len(packs) // _FOOTERS_A_TASK))
        frame = frame_of(self.spark, packs, tasks)
        seen = _by_path(looking.looked_at(frame, self.place, self.before_ms))
        if self.asked.verify:
            self.tell("verifying", len(packs))
            frame = frame_of(self.spark, packs, min(_TASKS_MAX, len(packs)))
            for path, found in _by_path(looking.verified(frame, self.place)).items():
                seen[path] = {**found, "expired": seen.get(path, found)["expired"]}
        return seen

    def _rewrite(self, packs: list[Pack], seen: Seen) -> None:
        bins = choose(packs, seen, self.asked.dead_share)
        made: list[dict[str, Any]] = []
        if bins:
            self.tell("writing packs", len(bins))
            frame = rewriting.frame_of(self.spark, bins)
            rows = rewriting.rewritten(frame, self.place, self.told.run, self.before_ms).collect()
            made = [row.asDict(recursive=True) for row in rows]
        found = [each for one in made for each in _damage({**one, "error": None})]
        known = {(each.store, each.message) for each in self.told.damage}
        damage = [each for each in found if (each.store, each.message) not in known]
        self.told = replace(
            self.told,
            rewritten=sum(len(each.packs) for each in bins),
            damage=_sorted([*self.told.damage, *damage]),
        )
        self.tell("offering", len(made))
        for store in sorted({pack.store for pack in packs}):
            self._offer(store, made, seen)

    def _offer(self, store: str, made: list[dict[str, Any]], seen: Seen) -> None:
        """Make what there is for a store visible to its broker."""
        mine = [each for each in seen.values() if each["store"] == store]
        new = [each for each in made if each["store"] == store]
        expired = [key for each in mine for key in _keys(each["expired"])]
        damaged = sorted({key for each in (*mine, *new) for key in _keys(each["damaged"])})
        packs = [Offered(each["path"], each["bytes"], each["rows"]) for each in new if each["rows"]]
        if not packs and not expired and not damaged:
            return
        found = Mapping(
            store=store,
            run=self.told.run,
            made_at_ms=self.now_ms,
            packs=tuple(sorted(packs, key=lambda each: each.path)),
            expired_before_ms=self.before_ms,
            expired=len(expired),
            damaged=len(damaged),
        )
        if not offering.offer(self.bucket, found, expired, damaged):
            self.told = replace(self.told, waiting=[*self.told.waiting, store])
            return
        self.told = replace(
            self.told,
            made=self.told.made + len(packs),
            made_messages=self.told.made_messages + sum(each.rows for each in packs),
            made_bytes=self.told.made_bytes + sum(each.bytes for each in packs),
            reclaimed_bytes=self.told.reclaimed_bytes
            + sum(each["source_bytes"] - each["bytes"] for each in new),
            expired=self.told.expired + len(expired),
            offered=[*self.told.offered, store],
        )


def _by_path(frame: DataFrame) -> Seen:
    return {row.path: row.asDict(recursive=True) for row in frame.collect()}


def _keys(told: Iterable[dict[str, int]]) -> list[tuple[int, int]]:
    return [(each["pid"], each["seq"]) for each in told]


def _damage(told: dict[str, Any]) -> Iterable[Damage]:
    """What is damaged in one pack."""
    store, path = told["store"], told["path"]
    if told["error"] is not None:
        yield Damage(store, path, None, told["error"])
    for pid, seq in _keys(told["damaged"]):
        yield Damage(store, path, f"{pid:x}-{seq:x}", "its bytes do not match its checksum")


def _sorted(damage: Iterable[Damage]) -> list[Damage]:
    return sorted(damage, key=lambda each: (each.store, each.pack, each.message or ""))
