"""How fast does Spark read through the connector, and lease, work on and ack what is in a queue?

Reading: the same rows by Spark's own Parquet reader and by the connector, in turns, into nothing:
all columns of a lake and messages of 1 KiB, which must reach the bar, some columns of a lake, and
messages of which a tenth is dead: Spark's own reader takes these for messages like any other. The
connector is asked as a user asks it, so that finding out what there is to read is part of it.

None of it goes through Python. The same files are also read from an object store, and must reach
the bar, too, against Spark's own reader of the directory, by the CPU that Spark takes: the server
that sends them has the same two cores to work with, so that the time by the clock, which is stated,
is its own, too. Then what it takes where Python has to read (of a store that signs no URLs), and
what a source in Python reaches that has its batches at hand and decodes nothing (`at_hand`).

Over Spark Connect the same directories are read by `read_lake` and `read_archive`, which must reach
the bar where the connector must, against Spark's own reader in the same session, which is told the
schema, as they tell it; and by `format("ebbmq")`, which there goes through Python.

Leasing: one `ebbmq serve` and Spark with two cores share the machine; messages of 100 bytes are
leased, read and acked until the queue is empty, from the start of the query to its end.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench import archives, lakes
from bench.connecting import connect_server
from bench.load import KIB
from bench.row import Row, at_least, stated
from bench.serving import served
from bench.stores import object_store
from ebbmq.feed import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.run import Run
    from bench.stores import ObjectStore

_SHARE: Final = 0.75
_RATE: Final = 30_000
_ROUNDS: Final = 5
_BATCH: Final = 5_000
_WHOLE: Final = "rows of a lake"
_MESSAGES: Final = "messages of an archive"
_DEAD_EVERY: Final = 10
_THEIRS: Final = "native"
_OURS: Final = "connector"
_STORED: Final = "in an object store"
_PYTHON: Final = "through Python"
_LEAST: Final = "at hand in Python"
_CONNECT: Final = "over Spark Connect"
_MEMORY: Final = "2g"
_COLUMNS: Final = (
    "at_ms",
    "queue",
    "event",
    "message_id",
    "importance",
    "bytes",
    "enqueued_at_ms",
    "latency_ms",
)
_ARCHIVED: Final = (
    "store",
    "queue",
    "id",
    "importance",
    "enqueued_at",
    "dead_at",
    "decay_rate",
    "type",
    "key",
    "producer_id",
    "headers",
    "body",
)


class _Table(NamedTuple):
    """Rows that are read both ways."""

    name: str
    rows: int
    #: How it is read, and the frame that does it.
    ways: dict[str, Callable[[], Any]]
    settings: dict[str, Any]


class _Archive(NamedTuple):
    """Messages with their bodies, and how many of them are dead."""

    name: str
    place: Path
    rows: int
    dead: int


class _Taken(NamedTuple):
    """What it takes to read a table: time, and CPU of Java, wherever the rows come from."""

    wall_s: float
    java_s: float


def measure(run: Run) -> list[Row]:
    """All of it: in one session, and then in one of a server."""
    from ebbmq_spark.connector import register  # noqa: PLC0415  # an extra
    from ebbmq_spark.connector.at_hand import AtHand, InPython  # noqa: PLC0415
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415

    lake = run.fresh("lake")
    lakes.fill(run, lake, _lake_rows(run))
    filled = list(_archives(run))
    settings = Settings(master="local[2]", memory=_MEMORY, shuffle_partitions=2)
    with spark_session(settings, "ebbmq bench") as spark:
        register(spark)
        for source in (AtHand, InPython):
            spark.dataSource.register(source)
        with object_store(run.fresh("store")) as store:
            tables = [
                *_of_a_lake(run, spark, lake, store),
                *_of_an_archive(spark, filled, store),
            ]
            rows = list(_reading(run, tables, _java_of(spark), _told))
        rows += _leasing(run, spark)
    with (
        connect_server(run.fresh("connect"), 2, _MEMORY) as server,
        spark_session(Settings(master=server.master, shuffle_partitions=2)) as spark,
    ):
        register(spark)
        tables = [*_connected_lake(run, spark, lake), *_connected_archives(spark, filled)]
        return [*rows, *_reading(run, tables, server.pid, _told_of_connect)]


def _java_of(spark: Any) -> int:
    pid: int = spark.sparkContext._gateway.proc.pid  # noqa: SLF001  # it has no public name
    return pid


def _lake_rows(run: Run) -> int:
    return run.scale(20_000_000, 8_000)


def _archives(run: Run) -> Iterator[_Archive]:
    """None of the messages dead, and a tenth of them."""
    count = run.scale(300_000, 2_000)
    for name, dead in (
        (_MESSAGES, range(0)),
        (f"{_MESSAGES}, one in {_DEAD_EVERY} dead,", range(0, count, _DEAD_EVERY)),
    ):
        place = run.fresh(f"archive-{len(dead)}")
        archives.fill(run, place, count)
        archives.kill(place, dead)
        yield _Archive(name, place, count, len(dead))


def _reading(
    run: Run,
    tables: Sequence[_Table],
    java: int,
    tell: Callable[[_Table, dict[str, _Taken]], Iterator[Row]],
) -> Iterator[Row]:
    times: dict[tuple[str, str], list[_Taken]] = {}
    rounds = run.scale(_ROUNDS, 1)
    for number in range(rounds + 1):
        for table in tables:
            for way, frame in table.ways.items():
                taken = _taken(java, frame)
                # The first of each compiles.
                if number:
                    times.setdefault((table.name, way), []).append(taken)
        run.progress("reading", number + 1, rounds + 1)
    for table in tables:
        best = {
            way: [min(each) for each in zip(*times[table.name, way], strict=True)]
            for way in table.ways
        }
        yield from tell(table, {way: _Taken(*each) for way, each in best.items()})


def _taken(java: int, frame: Callable[[], Any]) -> _Taken:
    """What it takes to read all rows of a frame, made by the way."""
    before_s = _cpu_s(java)
    wall_s = _timed(lambda: _read(frame()))
    return _Taken(wall_s, _cpu_s(java) - before_s)


def _cpu_s(pid: int) -> float:
    """The CPU that a process has taken."""
    # Behind its name are the state and, twelfth and thirteenth, ticks of its own and of the kernel.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _told(table: _Table, taken: dict[str, _Taken]) -> Iterator[Row]:
    """How fast a table is read each way, and what that is to Spark's own reader."""
    speeds = {way: table.rows / each.wall_s for way, each in taken.items()}
    told = {"rows": table.rows, **table.settings}
    theirs = speeds[_THEIRS]
    tell = _teller(table)
    name = f"{table.name} read through the connector"
    yield tell(f"{name}, to Spark's own reader", speeds[_OURS] / theirs, "x", **told)
    yield stated(name, speeds[_OURS], "rows/s")
    share = taken[_THEIRS].java_s / taken[_STORED].java_s
    yield tell(f"{table.name} {_STORED}, by the CPU Spark takes", share, "x", **told)
    name = f"{table.name} {_STORED} read through the connector"
    yield stated(f"{name}, the store on the same cores", speeds[_STORED] / theirs, "x", **told)
    yield stated(name, speeds[_STORED], "rows/s")
    yield stated(f"{table.name} read by Spark's own reader", theirs, "rows/s")
    for way in (_PYTHON, _LEAST):
        if way in speeds:
            name = f"{table.name} {way}, to Spark's own reader"
            yield stated(name, speeds[way] / theirs, "x", **told)


def _teller(table: _Table) -> Callable[..., Row]:
    """All columns of a lake and all messages must reach the bar."""
    return partial(at_least, bar=_SHARE) if table.name in (_WHOLE, _MESSAGES) else stated


def _told_of_connect(table: _Table, taken: dict[str, _Taken]) -> Iterator[Row]:
    """What it is to Spark's own reader in the same session."""
    told = {"rows": table.rows, **table.settings}
    theirs_s = taken[_THEIRS].wall_s
    name = f"{table.name} {_CONNECT}"
    share = theirs_s / taken[_OURS].wall_s
    yield _teller(table)(f"{name}, to Spark's own reader", share, "x", **told)
    yield stated(name, table.rows / taken[_OURS].wall_s, "rows/s")
    share = theirs_s / taken[_PYTHON].wall_s
    yield stated(f"{name} {_PYTHON}, to Spark's own reader", share, "x", **told)


def _read(frame: Any) -> None:
    frame.write.format("noop").mode("append").save()


def _connected(
    spark: Any, place: Path, table: str, columns: Sequence[str], source: str = "ebbmq"
) -> Any:
    asked = spark.read.format(source).options(table=table, columns=",".join(columns))
    return asked.load(str(place))


def _stored(spark: Any, store: ObjectStore, url: str, table: str, columns: Sequence[str]) -> Any:
    options = {f"store.{name}": value for name, value in store.options.items()}
    asked = spark.read.format("ebbmq").options(table=table, columns=",".join(columns), **options)
    return asked.load(url)


def _at_hand(spark: Any, place: Path, columns: Sequence[str]) -> Any:
    asked = spark.read.format("at_hand").option("columns", ",".join(columns))
    return asked.load(str(place))


def _of_a_lake(run: Run, spark: Any, lake: Path, store: ObjectStore) -> Iterator[_Table]:
    """All columns of a lake, and some of them."""
    from ebbmq.feed.events import EVENTS  # noqa: PLC0415
    from ebbmq_spark.connector.at_hand import IN_PYTHON  # noqa: PLC0415
    from ebbmq_spark.lake import read_table, visible  # noqa: PLC0415

    files = visible(lake, EVENTS).files
    url = store.keep(lake)
    whole = tuple(EVENTS.names)
    for some in (whole, _COLUMNS, _COLUMNS[:3]):
        yield _Table(
            name=_lake_name(some, whole),
            rows=_lake_rows(run),
            ways={
                _THEIRS: partial(read_table, spark, EVENTS, files, columns=some),
                _OURS: partial(_connected, spark, lake, "events", some),
                _STORED: partial(_stored, spark, store, url, "events", some),
                _PYTHON: partial(_connected, spark, lake, "events", some, IN_PYTHON),
                **({_LEAST: partial(_at_hand, spark, lake, some)} if some == whole else {}),
            },
            settings={"columns": len(some), "files": len(files)},
        )


def _lake_name(some: Sequence[str], whole: Sequence[str]) -> str:
    return _WHOLE if some == whole else f"{len(some)} of {len(whole)} columns of a lake"


def _connected_lake(run: Run, spark: Any, lake: Path) -> Iterator[_Table]:
    """The same over Spark Connect."""
    from ebbmq.feed.events import EVENTS  # noqa: PLC0415
    from ebbmq_spark.connector import read_lake  # noqa: PLC0415
    from ebbmq_spark.lake import read_table, visible  # noqa: PLC0415

    files = visible(lake, EVENTS).files
    whole = tuple(EVENTS.names)
    for some in (whole, _COLUMNS, _COLUMNS[:3]):
        yield _Table(
            name=_lake_name(some, whole),
            rows=_lake_rows(run),
            ways={
                _THEIRS: partial(read_table, spark, EVENTS, files, columns=some),
                _OURS: partial(read_lake, spark, lake, EVENTS.name, some),
                _PYTHON: partial(_connected, spark, lake, EVENTS.name, some),
            },
            settings={"columns": len(some), "files": len(files)},
        )


def _of_an_archive(spark: Any, filled: Sequence[_Archive], store: ObjectStore) -> Iterator[_Table]:
    """Messages with their bodies."""
    from ebbmq_spark.connector.at_hand import IN_PYTHON  # noqa: PLC0415

    for name, place, rows, dead in filled:
        url = store.keep(place)
        yield _Table(
            name=name,
            rows=rows,
            ways={
                _THEIRS: partial(_plain, spark, place),
                _OURS: partial(_connected, spark, place, "archive", _ARCHIVED),
                _STORED: partial(_stored, spark, store, url, "archive", _ARCHIVED),
                _PYTHON: partial(_connected, spark, place, "archive", _ARCHIVED, IN_PYTHON),
            },
            settings={"columns": len(_ARCHIVED), "body": KIB, "dead": dead},
        )


def _connected_archives(spark: Any, filled: Sequence[_Archive]) -> Iterator[_Table]:
    """The same over Spark Connect."""
    from ebbmq_spark.connector import read_archive  # noqa: PLC0415

    for name, place, rows, dead in filled:
        yield _Table(
            name=name,
            rows=rows,
            ways={
                _THEIRS: partial(_plain, spark, place, _schema_of_packs()),
                _OURS: partial(read_archive, spark, place, _ARCHIVED),
                _PYTHON: partial(_connected, spark, place, "archive", _ARCHIVED),
            },
            settings={"columns": len(_ARCHIVED), "body": KIB, "dead": dead},
        )


def _schema_of_packs() -> Any:
    from ebbmq_spark.connector.columns import ARCHIVED  # noqa: PLC0415

    return type(ARCHIVED)([ARCHIVED[name] for name in _ARCHIVED])


def _plain(spark: Any, archive: Path, schema: Any = None) -> Any:
    """Packs as Spark reads them, who does not know of dead rows."""
    read = spark.read if schema is None else spark.read.schema(schema)
    return read.parquet(str(archive / layout.ARCHIVE)).select(*_ARCHIVED)


def _leasing(run: Run, spark: Any) -> list[Row]:
    from ebbmq import Client, Message, QueueSpec  # noqa: PLC0415

    count = run.scale(1_000_000, 4_000)
    messages = [Message(b"%-100d" % number) for number in range(_BATCH)]
    times = []
    with (
        served(run.fresh("broker")) as broker,
        Client(f"http://{broker.host}:{broker.port}") as client,
    ):
        client.declare(QueueSpec("q"))
        # The first query compiles.
        for number, size in enumerate((run.scale(200_000, 2_000), count, count)):
            for done in range(0, size, _BATCH):
                client.publish("q", messages[: size - done], confirm="written")
                run.progress("publishing", done, size)
            checkpoint = run.fresh(f"checkpoint-{number}")
            times.append(_timed(lambda at=checkpoint: _drain(spark, client.url, at)))
            depth = client.stats("q")["depth"]
            assert not any(depth.values()), depth
    return [
        at_least(
            "messages leased, read by Spark and acked",
            count / min(times[1:]),
            "msg/s",
            _RATE,
            messages=count,
            bytes=len(messages[0].body),
        )
    ]


def _drain(spark: Any, url: str, checkpoint: Path) -> None:
    stream = spark.readStream.format("ebbmq").options(url=url, queue="q").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
