"""`pipeline stream`: the profiles of a lake kept up to date while brokers write it.

Exactly once: Spark's checkpoint says which files a batch reads, and which events were told lately
(in RocksDB), so that one that is told again does not count again; what a batch writes, the sums up
to it and the rows that are none, is named by its number. A batch that is done again after a kill
finds its manifest and writes nothing, or writes the same anew.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types

from ebbmq.errors import InvalidSpec
from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.runs import Record
from ebbmq_spark import soundness
from ebbmq_spark.attempts import SPARK_ERRORS, failed
from ebbmq_spark.directory_lake import DirectoryLake, replace
from ebbmq_spark.jobs import history, writing
from ebbmq_spark.jobs.events import KEEP_MS
from ebbmq_spark.jobs.events_source import FILES_PER_BATCH, FORMAT, EventsSource
from ebbmq_spark.jobs.writing import Output, aside
from ebbmq_spark.lake import opened, read_table, to_spark, visible
from ebbmq_spark.transforms.profiles import merged
from ebbmq_spark.transforms.streamed import counted, lean, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest
    from ebbmq_spark.lake import Lake, Where

    #: What is left to do with Spark; it is told whom to tell of batches.
    Job = Callable[[SparkSession, Callable[[int, int], None]], Record]
    Look = Callable[[Lake, Sequence[Manifest]], dict[str, UnknownFeed]]

WRITER: Final = "stream"
#: So many events are remembered: one that is told again after more than that counts again.
REMEMBERED: Final = 4_000_000
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_LOOK_S: Final = 1


class Arguments(NamedTuple):
    """What to stream, and how."""

    #: Its directory, or what `open_lake` returned.
    lake: Where
    #: End when everything that is there was read; else go on until stopped.
    once: bool = False
    every_ms: int = 10_000
    files_per_batch: int = FILES_PER_BATCH
    #: Tasks, and stores, over which queues are spread; of a checkpoint it stays as it was.
    partitions: int = 4
    #: Events among which one that is told again is found.
    remembered: int = REMEMBERED
    #: Where its place, and what it remembers, are kept; in the lake, if that is a directory.
    state: Path | None = None


class _Stream(msgspec.Struct):
    """Which stream a checkpoint is of: batches are numbered anew in another one."""

    id: int


def stream(
    spark: SparkSession,
    arguments: Arguments,
    told: Callable[[int, int], None] = lambda batch, rows: None,
) -> Record:
    """Follow the events of a lake.

    Args:
        spark: where to run.
        arguments: what to do.
        told: is told of each batch: its number, and how many events were read so far.

    Raises:
        InvalidSpec: the lake is no directory, and there is no `state`.
        UnknownFeed: there is no lake, or a file of it is damaged inside, and was begun with.
        PipelineBusy: another stream is at work on it.
        JobFailed: Spark did not go on; the next one goes on from the last batch.
    """
    with alone(arguments) as follow:
        return follow(spark, told)


@contextlib.contextmanager
def alone(arguments: Arguments) -> Iterator[Job]:
    """Be the only stream on a lake, before Spark is there; yields what is done with Spark.

    Raises:
        InvalidSpec: the lake is no directory, and there is no `state`.
        UnknownFeed: there is no lake.
        PipelineBusy: another stream is at work on it.
    """
    lake = opened(arguments.lake)
    state = _state(lake, arguments)
    with lake.only_one(WRITER):
        yield functools.partial(_follow, lake, state, arguments)


def _follow(
    lake: Lake,
    state: Path,
    arguments: Arguments,
    spark: SparkSession,
    told: Callable[[int, int], None],
) -> Record:
    at_ms = _now_ms()
    batches = _Batches(lake, state)
    try:
        source = EventsSource.options_of(lake, arguments.files_per_batch)
        query = _started(spark, arguments, source, state / "checkpoint", batches)
        seen = _watched(query, told, batches.rejected)
    except SPARK_ERRORS as error:
        raise _damaged(lake, batches) or failed(error) from error
    record = Record(
        run=f"{history.run_name(at_ms)}",
        kind="stream",
        started_at_ms=at_ms,
        ended_at_ms=_now_ms(),
        events=seen.events,
        duplicates=seen.duplicates,
        rejected=seen.rejected,
    )
    Output(lake, record.run, at_ms, WRITER).end(record)
    # There may be no other runs on this lake that would.
    writing.sweep_kind(lake, history.read(lake), "stream")
    return record


def _damaged(lake: Lake, batches: _Batches) -> UnknownFeed | None:
    """What keeps a stream from going on, if it is a damaged file: somebody must say what to do."""
    wrong = batches.unreadable()
    if wrong is not None:
        return wrong
    found = soundness.damaged(lake, visible(lake, EVENTS).manifests)
    for name, why in found.items():
        return UnknownFeed(
            why.detail, f"restore it, or remove {name} to go on without its rows, and start again"
        )
    return None


def _state(lake: Lake, arguments: Arguments) -> Path:
    """Where the place of a stream is kept."""
    if arguments.state is not None:
        return arguments.state
    if isinstance(lake, DirectoryLake):
        return lake.root / "_state" / WRITER
    raise InvalidSpec(
        f"Spark keeps the place of a stream in a directory, and {lake.where} is none",
        "name one that outlives the stream: --state DIR",
    )


def _started(
    spark: SparkSession,
    arguments: Arguments,
    source: dict[str, str],
    checkpoint: Path,
    batches: _Batches,
) -> StreamingQuery:
    spark.dataSource.register(EventsSource)
    told = spark.readStream.format(FORMAT).options(**source).load()
    writer = (
        once(told, arguments.remembered)
        .writeStream.outputMode("append")
        .option("checkpointLocation", to_spark(checkpoint))
        .foreachBatch(batches.write)
    )
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{arguments.every_ms} milliseconds")
    # A query keeps the settings it was started with.
    with _set(spark, {_STORE: _ROCKSDB, _PARTITIONS: str(arguments.partitions)}):
        return writer.start()


@contextlib.contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)


class _Batches:
    """Writes what batches come to."""

    def __init__(self, lake: Lake, state: Path) -> None:
        self._lake = lake
        self._state = str(state)
        self._stream = _identity(state)

    def write(self, batch: DataFrame, number: int) -> None:
        """Write the profiles as they are after a batch, unless that was done already."""
        wrong = self.unreadable(soundness.refused)
        if wrong is not None:
            raise wrong
        own = [each for each in self._written() if each.number <= number + 1]
        if any(each.number == number + 1 for each in own):
            # What it remembers must be there for the next one all the same.
            batch.write.format("noop").mode("overwrite").save()
            return
        spark = batch.sparkSession
        last = max(own, key=lambda each: each.number, default=None)
        files = [self._lake.file(part.path) for part in last.parts] if last else []
        at_ms = _now_ms()
        output = Output(self._lake, self._name(number), at_ms, WRITER)
        known = read_table(spark, PROFILES, files, self._lake)
        # It is gone through twice; Spark would look twice at what it remembers.
        told = lean(batch).persist()
        try:
            whole = merged(known.unionByName(counted(told, at_ms)), at_ms, KEEP_MS)
            parts = output.write(PROFILES, whole.coalesce(1))
            rejected = told.where("fault IS NOT NULL")
            if not rejected.isEmpty():
                output.set_aside(EVENTS, rejected)
                writing.sweep_aside(self._lake, WRITER)
        finally:
            told.unpersist()
        output.publish(PROFILES, parts, number + 1, self._stream)
        writing.sweep(self._lake, PROFILES, writing.WHOLE_KEPT, WRITER)

    def rejected(self, number: int) -> int:
        """How many rows of a batch were set aside; it may have been written elsewhere."""
        rows = 0
        for name in self._lake.list(aside(EVENTS, self._name(number))):
            if name.endswith(".parquet"):
                with pq.ParquetFile(self._lake.open(self._lake.file(name))) as file:
                    rows += file.metadata.num_rows
        return rows

    def _name(self, number: int) -> str:
        return f"{WRITER}-{self._stream}-{number:09d}"

    def unreadable(self, look: Look = soundness.damaged) -> UnknownFeed | None:
        """Why the sums cannot be read that the next batch adds to, if they cannot be."""
        found = visible(self._lake, PROFILES, self._is_own)
        last = max(found.manifests, key=lambda each: each.number, default=None)
        number = 0 if last is None else last.number
        wrong = dict(zip(found.refused_names, found.refused, strict=True))
        later = {name: why for name, why in wrong.items() if _number(name) > number}
        if last is not None:
            later |= look(self._lake, [last])
        for why in later.values():
            return UnknownFeed(
                why.detail,
                f"restore it, or take {self._state} away: then the stream counts anew what there "
                "still is of events",
            )
        return None

    def _is_own(self, told: Named) -> bool:
        return (told.node, told.boot) == (WRITER, self._stream)

    def _written(self) -> list[Manifest]:
        return visible(self._lake, PROFILES, self._is_own).manifests


def _number(name: str) -> int:
    told = layout.named(name)
    return told.number if told is not None else 0


def _identity(place: Path) -> int:
    """The number of the stream of a checkpoint; one that is new, or was taken away, gets a new."""
    path = place / "stream.json"
    if path.exists() and (place / "checkpoint").is_dir():
        return msgspec.json.decode(path.read_bytes(), type=_Stream).id
    made = _Stream(_now_ms() // 1_000)
    (place / "checkpoint").mkdir(parents=True, exist_ok=True)
    replace(path, msgspec.json.encode(made))
    return made.id


class _Seen(NamedTuple):
    """How many events were read, how many of them had been told before, how many are none."""

    events: int = 0
    duplicates: int = 0
    rejected: int = 0


def _watched(
    query: StreamingQuery, told: Callable[[int, int], None], rejected: Callable[[int], int]
) -> _Seen:
    """Wait for the end, and tell of batches meanwhile; `rejected` says how many rows are none."""
    batches: dict[int, _Seen] = {}
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(_LOOK_S) or False
            _look(query, batches, rejected)
            if batches:
                told(max(batches), _total(batches).events)
    except KeyboardInterrupt:
        query.stop()
        _look(query, batches, rejected)
    return _total(batches)


def _look(query: StreamingQuery, batches: dict[int, _Seen], rejected: Callable[[int], int]) -> None:
    """Take up what there is to say of the last batches."""
    for each in query.recentProgress:
        number, seen = each["batchId"], _seen(each)
        known = batches.get(number, _Seen())
        if seen.events:
            none = known.rejected if known.events else rejected(number)
            seen = seen._replace(rejected=none)
        batches[number] = seen


def _seen(progress: StreamingQueryProgress) -> _Seen:
    dropped = (
        each["customMetrics"].get("numDroppedDuplicateRows", 0)
        for each in progress["stateOperators"]
    )
    # Of the whole, Spark Connect does not say it.
    return _Seen(sum(each["numInputRows"] for each in progress["sources"]), sum(dropped))


def _total(batches: dict[int, _Seen]) -> _Seen:
    return _Seen(*(sum(each) for each in zip(*batches.values(), strict=True)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
