"""A lake is read by Spark's own reader, and what Python reads is the measure."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual
from typing_extensions import override

from ebbmq.feed import layout, manifests
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import TABLES, Manifest, Part
from ebbmq_spark.connector import EbbMQ, handover, register
from ebbmq_spark.connector.at_hand import IN_PYTHON, InPython
from ebbmq_spark.connector.files import NamedFile
from ebbmq_spark.jobs.running import Arguments, run
from ebbmq_spark.lake import visible
from tests.pipeline.kept import Kept, keeping
from tests.pipeline.lakes import DAY_MS, Node
from tests.pipeline.patience import patiently, to_end
from tests.pipeline.test_connector_read import make_lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.pipeline.kept import Keeping

ROOT = Path(__file__).parents[2]
FILES = "events/date=2023-11-14/hour=22/node=n1"


@pytest.fixture(scope="module", autouse=True)
def both(spark: SparkSession) -> None:
    register(spark)
    spark.dataSource.register(InPython)


@pytest.fixture(params=["directory", "store"])
def keep(request: pytest.FixtureRequest) -> Keeping:
    return keeping(request)


def load(
    spark: SparkSession, lake: Kept | Path | str, source: str = "ebbmq", **options: str
) -> DataFrame:
    kept = lake.options if isinstance(lake, Kept) else {}
    asked = spark.read.format(source).options(**{"table": "events", **kept, **options})
    at = lake.place.address if isinstance(lake, Kept) else str(lake)
    return patiently(lambda: asked.load(at))


def plans_of(frame: DataFrame) -> str:
    """All plans of a query, from what was asked to what is done."""
    query = frame._jdf.queryExecution()  # noqa: SLF001  # it has no public name
    return str(patiently(query.toString))


def is_native(frame: DataFrame) -> bool:
    done = plans_of(frame).partition("== Physical Plan ==")[2]
    assert ("FileScan parquet" in done) != ("BatchScan" in done)
    return "FileScan parquet" in done


def test_spark_reads_the_columns_and_row_groups_that_a_query_needs(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path, 1_000, 3)
    lake = keep(tmp_path)
    secret = {} if lake.is_remote else {"store.secret_access_key": "hidden"}
    asked = load(spark, lake, **secret).where("seq >= 990").select("queue", "latency_ms")
    plans = plans_of(asked)
    assert "PushedFilters: [GreaterThanOrEqual(seq,990)]" in plans
    assert "ReadSchema: struct<seq:bigint,queue:string,latency_ms:bigint>" in plans
    assert "hidden" not in plans
    assert not is_native(load(spark, lake, IN_PYTHON))
    assert is_native(asked)
    assert len(asked.collect()) == 10


@pytest.mark.parametrize(
    "asked",
    [
        lambda frame: frame,
        lambda frame: frame.where("event = 'acked' and seq < 500 and latency_ms is not null"),
        lambda frame: frame.where("decay_score is null and queue in ('q1', 'q4')"),
        lambda frame: frame.where("latency_ms > 900 or queue = 'q2'").select("latency_ms", "node"),
        lambda frame: frame.selectExpr("concat(queue, queue) AS twice", "queue", "seq AS number"),
        lambda frame: frame.groupBy("node", "queue").agg(F.max("seq"), F.count("decay_score")),
        lambda frame: frame.alias("a").join(frame.alias("b"), F.expr("a.seq = b.seq + 1")),
        lambda frame: frame.where("seq < 10").union(frame.where("seq > 900")).union(frame),
        lambda frame: frame.join(frame.groupBy("queue").agg(F.max("seq").alias("last")), "queue"),
        lambda frame: frame.where(frame.select(F.max("seq")).scalar() - F.col("seq") < 3),
        lambda frame: frame.limit(0),
    ],
)
def test_rows_are_those_that_python_reads(
    asked: Callable[[DataFrame], DataFrame], spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path, 1_000, 3)
    lake = keep(tmp_path)
    ours, theirs = asked(load(spark, lake)), asked(load(spark, lake, IN_PYTHON))
    assert ours.schema == theirs.schema
    with validated(spark):
        found = told(ours)
    assert found == told(theirs)


def told(frame: DataFrame) -> list[str]:
    return sorted(map(str, patiently(frame.collect)))


class validated:  # noqa: N801  # it reads as a verb
    """Has Spark look at what every rule made of a plan."""

    _key = "spark.sql.planChangeValidation"

    def __init__(self, spark: SparkSession) -> None:
        self._conf = spark.conf

    def __enter__(self) -> None:
        self._conf.set(self._key, "true")

    def __exit__(self, *failed: object) -> None:
        self._conf.unset(self._key)


def test_columns_are_in_the_order_they_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    make_lake(tmp_path, 100, 2)
    frame = load(spark, tmp_path, columns="queue, decay_score, seq")
    assert is_native(frame)
    assert frame.columns == ["queue", "decay_score", "seq"]
    assert sorted(frame.collect())[:2] == [("q0", None, 0), ("q0", None, 5)]
    assert [field.nullable for field in frame.schema] == [False, True, False]
    spare = spark.read.schema("seq bigint, queue string").format("ebbmq")
    named = spare.option("table", "events").load(str(tmp_path))
    assert is_native(named)
    assert sorted(named.collect())[:2] == [(0, "q0"), (1, "q1")]
    wrong = spark.read.schema("seq string").format("ebbmq").option("table", "events")
    with pytest.raises(Exception, match=r"invalid_spec.*the schema names 'seq' of type string"):
        patiently(wrong.load(str(tmp_path)).collect)


def test_views_caches_and_tables_are_made_of_it(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path / "lake", 300, 2)
    lake = keep(tmp_path / "lake")
    frame = load(spark, lake)
    frame.createOrReplaceTempView("handed_over")
    asked = """SELECT count(*) AS n FROM handed_over AS a
               WHERE seq > (SELECT avg(seq) FROM handed_over)
               AND EXISTS (SELECT 1 FROM handed_over AS b WHERE b.seq = a.seq + 1)"""
    assert spark.sql(asked).collect() == [(149,)]
    frame.write.parquet(str(tmp_path / "copy"))
    assertDataFrameEqual(spark.read.parquet(str(tmp_path / "copy")), frame, ignoreNullable=True)
    frame.cache()
    assert frame.where("seq < 7").count() == 7
    shutil.rmtree(tmp_path / "lake")
    lake.keep()
    assert frame.count() == 300
    frame.unpersist()
    spark.catalog.dropTempView("handed_over")


def test_every_table_of_a_lake_is_the_same(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    with Node(tmp_path, "a") as node:
        node.work(took_ms=4_000, messages=40)
        node.clock.advance(20 * DAY_MS)
    lake = tmp_path / "lake"
    run(spark, Arguments(lake, full=True, bounded=False))
    found = [table for table in TABLES.values() if visible(lake, table).files]
    assert len(found) >= 5
    kept = keep(lake)
    for table in found:
        ours = load(spark, kept, table=table.name)
        theirs = load(spark, kept, IN_PYTHON, table=table.name)
        assert is_native(ours)
        assert ours.schema == theirs.schema
        assert ours.count() > 0
        assert told(ours) == told(theirs)


def test_a_frame_that_is_used_again_reads_what_is_there_by_then(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path, 200, 2)
    lake = keep(tmp_path)
    frame = load(spark, lake)
    assert frame.count() == 200
    make_lake(tmp_path, 300, 3)
    lake.keep()
    assert frame.count() == 300
    (tmp_path / "events" / layout.MANIFESTS / "00000001.json").unlink()
    (tmp_path / FILES / "00000001.parquet").unlink()
    lake.keep()
    assert frame.count() == 200
    shutil.rmtree(tmp_path / "events")
    lake.keep()
    assert frame.collect() == []
    assert is_native(frame.select("seq"))


def torn(lake: Path) -> None:
    file = lake / FILES / "00000001.parquet"
    file.write_bytes(file.read_bytes()[:-10])


def outside(lake: Path) -> None:
    file = lake / FILES / "00000001.parquet"
    file.rename(lake.parent / "elsewhere.parquet")
    file.symlink_to(lake.parent / "elsewhere.parquet")


def lost(lake: Path) -> None:
    (lake / FILES / "00000001.parquet").unlink()


def unknown(lake: Path) -> None:
    manifest = lake / "events" / layout.MANIFESTS / "00000001.json"
    stored = msgspec.json.decode(manifest.read_bytes())
    manifest.write_bytes(msgspec.json.encode({**stored, "version": 99}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (torn, r"unknown_feed.*00000001\.parquet"),
        (lost, r"unknown_feed.*00000001\.parquet"),
        (unknown, r"unknown_feed.*is of version 99 of events"),
    ],
)
def test_what_cannot_be_read_is_told_as_python_tells_it(
    spoil: Callable[[Path], None], said: str, spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path / "lake", 100, 2)
    lake = keep(tmp_path / "lake")
    frame = load(spark, lake)
    assert frame.count() == 100
    spoil(tmp_path / "lake")
    lake.keep()
    with pytest.raises(Exception, match=said):
        patiently(frame.collect)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (outside, r"unknown_feed.*00000001\.parquet is outside of"),
        (shutil.rmtree, "unknown_feed.*there is no directory"),
    ],
)
def test_what_is_wrong_with_a_directory_is_told_as_python_tells_it(
    spoil: Callable[[Path], None], said: str, spark: SparkSession, tmp_path: Path
) -> None:
    make_lake(tmp_path / "lake", 100, 2)
    frame = load(spark, tmp_path / "lake")
    assert frame.count() == 100
    spoil(tmp_path / "lake")
    with pytest.raises(Exception, match=said):
        patiently(frame.collect)


def test_a_value_that_has_to_be_there_is_missed(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    make_lake(tmp_path, 10, 1)
    file = tmp_path / FILES / "00000000.parquet"
    rows = pq.read_table(file, partitioning=None)
    queues = pa.array(["q0"] * 9 + [None])
    pq.write_table(rows.set_column(rows.schema.get_field_index("queue"), "queue", queues), file)
    size = file.stat().st_size
    stored = Manifest(table="events", version=EVENTS.version, node="n1", boot=1, number=0,
                      written_at_ms=1, parts=(Part(f"{FILES}/{file.name}", 10, size),))  # fmt: skip
    manifest = tmp_path / "events" / layout.MANIFESTS / "00000000.json"
    manifest.write_bytes(manifests.encode(stored))
    frame = load(spark, keep(tmp_path))
    assert is_native(frame)
    assert frame.select("seq").count() == 10
    with pytest.raises(Exception, match=r"NOT_NULL_ASSERT_VIOLATION(.|\n)*column queue of a file"):
        frame.select("queue").collect()


@pytest.mark.parametrize("name", ["lake [1] {a,b}", "50%20 * ü#?x", ".hidden/_lake"])
def test_names_of_directories_are_taken_as_they_are(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    make_lake(tmp_path / name, 50, 2)
    for path in (str(tmp_path / name), (tmp_path / name).as_uri()):
        frame = load(spark, path)
        assert is_native(frame)
        assert frame.count() == 50


def test_a_path_that_is_not_absolute_begins_where_spark_was_started(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lake(tmp_path / "lake", 50, 2)
    jvm: Any = spark._jvm  # noqa: SLF001  # it has no public name
    started = jvm.java.lang.System.getProperty("user.dir")
    frame = load(spark, os.path.relpath(tmp_path / "lake", started))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert is_native(frame)
    assert frame.count() == 50


def test_a_session_is_given_the_rule_once_and_those_that_come_from_it_have_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_lake(tmp_path, 50, 2)
    other = spark.newSession()
    threads = [threading.Thread(target=register, args=(each,)) for each in (spark, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in (spark, other):
        java: Any = session._jsparkSession  # noqa: SLF001  # it has no public name
        rules = java.extensions().buildPreCBORules(java)
        names = [rules.apply(at).ruleName() for at in range(rules.size())]
        assert names.count("ebbmq.Handover.ebbmq") == 1
        assert is_native(load(session, tmp_path))


def test_threads_of_python_and_of_java_ask_at_the_same_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_lake(tmp_path / "lake", 100, 2)
    frame = load(spark, tmp_path / "lake")
    frame.select("seq").write.parquet(str(tmp_path / "numbers"))
    counted: dict[int, int] = {}

    def count(number: int) -> None:
        counted[number] = frame.where(f"seq < {number}").count()

    def follow() -> None:
        numbers = spark.readStream.schema("seq bigint").parquet(str(tmp_path / "numbers"))
        joined = numbers.join(frame.where("queue = 'q1'"), "seq")
        query = joined.writeStream.format("parquet").trigger(availableNow=True)
        query = query.option("checkpointLocation", str(tmp_path / "place"))
        to_end(lambda: query.start(str(tmp_path / "joined")))

    threads = [threading.Thread(target=count, args=(number,)) for number in (1, 10, 50)]
    threads.append(threading.Thread(target=follow))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == {1: 1, 10: 10, 50: 50}
    assert spark.read.parquet(str(tmp_path / "joined")).count() == 20


def test_who_does_not_know_the_token_is_told_nothing() -> None:
    asked: list[object] = []

    def files(*scan: object) -> list[NamedFile]:
        asked.append(scan)
        return [NamedFile("/lake/1.parquet", 7)]

    named = handover.Named(files, handover.digest_of("known"), pytest.fail)
    schema = '{"type":"struct","fields":[]}'
    question = {"token": "known", "options": {}, "schema": schema, "directory": "/"}
    assert named.apply(json.dumps(question)) == '[{"path":"/lake/1.parquet","size_bytes":7}]'
    assert named.apply(json.dumps({**question, "token": "guessed"})) is None
    assert len(asked) == 1
    assert "known" not in str(vars(named))


class Failing(EbbMQ):
    @classmethod
    @override
    def name(cls) -> str:
        return "ebbmq_failing"


class Misnamed(EbbMQ):
    @classmethod
    @override
    def name(cls) -> str:
        return "ebbmq_misnamed"


def fails(*_: object) -> None:
    raise ZeroDivisionError("a fault of ours")


def misnames(*_: object) -> list[NamedFile]:
    return [NamedFile("/lake/1.parquet", 7, {"partition": 7})]


@pytest.mark.parametrize(
    ("source", "files", "why"),
    [
        (Failing, fails, "ZeroDivisionError: a fault of ours"),
        (Misnamed, misnames, "a column of IntegerType cannot be told"),
    ],
)
def test_a_question_that_fails_leaves_the_scan_to_python_and_the_log_says_so(
    source: type[EbbMQ],
    files: Any,
    why: str,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_lake(tmp_path, 50, 2)
    assert handover.install(spark, source.name(), files)
    spark.dataSource.register(source)
    frame = load(spark, tmp_path, source.name())
    assert not is_native(frame)
    # Sessions of ours have Java log nothing but errors.
    (said,) = (each for each in caplog.records if each.name == "ebbmq.spark")
    assert said.levelno == logging.WARNING
    assert "read by Python: their files could not be asked for" in said.getMessage()
    assert why in said.getMessage()
    assert patiently(frame.count) == 50
    assert load(spark, tmp_path).count() == 50


def test_a_spark_that_does_not_take_the_rule_is_told_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    jvm: Any = spark._jvm  # noqa: SLF001  # it has no public name
    # A Java in which there is nothing of that name.
    context = SimpleNamespace(_jvm=jvm.nowhere, _gateway=SimpleNamespace())
    without: Any = SimpleNamespace(sparkContext=context, _jsparkSession=spark._jsparkSession)  # noqa: SLF001
    assert not handover.install(without, "ebbmq_without", lambda *_: None)
    assert "lakes and archives are read by Python: this Spark does not take our rule" in caplog.text


def test_a_session_that_is_opened_again_is_registered_again(tmp_path: Path, keep: Keeping) -> None:
    make_lake(tmp_path, 50, 2)
    lake = keep(tmp_path)
    told = [lake.place.address, json.dumps(lake.options)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.reopened_driver", *told],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["50", "native"] * 2
