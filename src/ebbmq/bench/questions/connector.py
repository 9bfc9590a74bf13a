"""How fast does Spark read through the connector, and lease, work on and ack what is in a queue?

Reading: the same rows of a lake, by Spark's own Parquet reader and by the connector, in turns, into
nothing. Leasing: one `ebbmq serve` and Spark with two cores share the machine; messages of 100
bytes are leased, read and acked until the queue is empty, from the start of the query to its end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ebbmq.bench.row import Row, at_least, stated
from ebbmq.bench.serving import served

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.bench.run import Run

_SHARE: Final = 0.75
_RATE: Final = 30_000
_ROUNDS: Final = 5
_FILES: Final = 40
_BATCH: Final = 5_000


def measure(run: Run) -> list[Row]:
    """Both, in one session."""
    from ebbmq_spark.connector import register  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import Settings, spark_session  # noqa: PLC0415

    settings = Settings(master="local[2]", memory="2g", shuffle_partitions=2)
    with spark_session(settings, "ebbmq bench") as spark:
        register(spark)
        return [*_reading(run, spark), *_leasing(run, spark)]


def _reading(run: Run, spark: Any) -> list[Row]:
    from ebbmq.feed.events import EVENTS  # noqa: PLC0415
    from ebbmq_spark.lake import read_table, visible  # noqa: PLC0415

    count = run.scale(20_000_000, 8_000)
    lake = run.fresh("lake")
    _fill_lake(run, lake, count)
    files = visible(lake, EVENTS).files
    frames = {
        "native": lambda: read_table(spark, EVENTS, files),
        "connector": lambda: spark.read.format("ebbmq").option("table", "events").load(str(lake)),
    }
    times: dict[str, list[float]] = {name: [] for name in frames}
    rounds = run.scale(_ROUNDS, 1)
    for number in range(rounds + 1):
        for name, frame in frames.items():
            taken = _timed(lambda frame=frame: frame().write.format("noop").mode("append").save())
            # The first of each compiles.
            if number:
                times[name].append(taken)
        run.progress("reading", number + 1, rounds + 1)
    rates = {name: count / min(taken) for name, taken in times.items()}
    return [
        at_least(
            "rows of a lake read through the connector, to Spark's own reader",
            rates["connector"] / rates["native"],
            "x",
            _SHARE,
            rows=count,
            files=len(files),
        ),
        stated("rows of a lake read through the connector", rates["connector"], "rows/s"),
        stated("rows of a lake read by Spark's own reader", rates["native"], "rows/s"),
    ]


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


def _fill_lake(run: Run, lake: Path, count: int) -> None:
    """Events as a broker tells them, in files as large as a busy one's."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    from ebbmq.feed import layout, manifests  # noqa: PLC0415
    from ebbmq.feed.arrow import schema_of  # noqa: PLC0415
    from ebbmq.feed.events import EVENTS  # noqa: PLC0415
    from ebbmq.node.feeding import arrays  # noqa: PLC0415

    random = np.random.default_rng(1)
    size = count // _FILES
    schema = schema_of(EVENTS)
    for number in range(_FILES):
        seqs = np.arange(number * size, (number + 1) * size)
        columns = {
            "node": pa.repeat("node-1", size),
            "boot": pa.repeat(1, size),
            "seq": seqs,
            "at_ms": seqs // 50 + 1_700_000_000_000,
            "queue": pa.array([f"queue-{n}" for n in range(8)]).take(random.integers(0, 8, size)),
            "partition": pa.repeat(0, size),
            "message_id": arrays.hexadecimal(seqs.astype(np.uint64), b"1-"),
            "generation": pa.repeat(1, size),
            "event": pa.array(["published", "leased", "acked"]).take(random.integers(0, 3, size)),
            "importance": random.integers(1, 11, size),
            "decay_rate": pa.repeat(0.5, size),
            "bytes": random.integers(10, 5_000, size),
            "enqueued_at_ms": seqs // 50 + 1_700_000_000_000,
            "latency_ms": random.integers(0, 10_000, size),
        }
        filled = [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(size, field.type)
            for field in schema
        ]
        path = f"{EVENTS.name}/date=2023-11-14/part-{number:05d}.parquet"
        (lake / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(filled, schema=schema), lake / path, compression="zstd")
        part = manifests.Part(path, size, (lake / path).stat().st_size)
        told = manifests.Manifest(
            table=EVENTS.name,
            version=EVENTS.version,
            node="node-1",
            boot=1,
            number=number,
            written_at_ms=0,
            parts=(part,),
        )
        manifest = lake / EVENTS.name / layout.MANIFESTS / f"{number:05d}.json"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(manifests.encode(told))
        run.progress("writing a lake", number + 1, _FILES)
