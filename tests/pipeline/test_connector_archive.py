"""An archive is read by Spark's own reader, and what Python reads is the measure."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import crc32c
import numpy as np
import pytest
from pyspark.sql import functions as F

from ebbmq import Message
from ebbmq.core import envelope
from ebbmq.errors import DamagedRecord, InvalidSpec
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.holding import pack
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Copy, DeviceSpec, Key, Properties
from ebbmq.holding.objects import ObjectDevice
from ebbmq_spark import places
from ebbmq_spark.connector import bits, packs, read_archive, register
from ebbmq_spark.connector.archive import packs_of
from ebbmq_spark.connector.at_hand import IN_PYTHON, InPython
from ebbmq_spark.connector.files import NamedFile
from tests.pipeline.kept import Kept, keeping
from tests.pipeline.patience import patiently
from tests.pipeline.test_connector_handover import is_native, plans_of, told, validated
from tests.pipeline.test_connector_handover import load as load_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.pipeline.kept import Keeping

ONE, TWO = b"1" * 16, b"2" * 16
AT_MS = 1_700_000_000_000
SPEC = DeviceSpec(
    name="archive", tier="s3", durable=True, failure_domain="s3", capacity_bytes=1 << 30
)


@pytest.fixture(scope="module", autouse=True)
def both(spark: SparkSession) -> None:
    register(spark)
    spark.dataSource.register(InPython)


def device(directory: Path) -> ObjectDevice:
    return ObjectDevice(SPEC, Bucket(directory.as_uri()), time.perf_counter)


def copy(seq: int, queue: str = "orders", store: bytes = ONE, size: int = 20, **more: Any) -> Copy:
    body = b"%d " % seq * size
    block = envelope.pack(Message(body, **more)) if more else b""
    dead_at_ms = AT_MS + 7 * seq if seq % 3 else None
    known = Properties(queue, seq % 10, AT_MS + 999 * seq, dead_at_ms, seq / 8, len(block))
    return Copy(Key(store, 1, seq), block + body, crc32c.crc32c(block + body), known)


def put(directory: Path, copies: Sequence[Copy], dead: Sequence[int] = ()) -> None:
    """The pack of some messages, and which of them are dead."""
    archive = device(directory)
    archive.put_many(copies)
    if dead:
        archive.delete_many([Key(copies[0].key.store, 1, seq) for seq in dead])
    archive.close()


def thinned(directory: Path) -> None:
    """Three packs of 40, of which every third message is left."""
    for at in range(0, 120, 40):
        seqs = range(at, at + 40)
        put(directory, [copy(seq) for seq in seqs], [seq for seq in seqs if seq % 3])


def fill(directory: Path) -> None:
    """Packs of two stores, of one group of rows and of several, with dead rows and without."""
    # 20 rows to a group: first and last ones are dead, whole groups, and some here and there.
    large = [copy(seq, size=12_000) for seq in range(100, 200)]
    put(directory, large, [100, 101, 119, 120, *range(140, 160), 177, 199])
    headers = ({"region": "eu", "n": ""}, {}, None)
    small = [
        copy(n, "pay/ments", headers=headers[n % 3], key=f"k{n % 2}", id=f"p-{n}", type="TEXT")
        for n in range(60)
    ]
    put(directory, small)
    put(directory, [copy(n, "ü %41=*?#") for n in range(300, 370)], range(301, 365))
    put(directory, [copy(n, "pay/ments", TWO) for n in range(100, 140)], [100, 139])
    put(directory, [copy(7, "orders", TWO)])
    put(directory, [copy(8, "orders", TWO)._replace(properties=None)])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archived")
    fill(directory)
    return directory


@pytest.fixture(scope="module", params=["directory", "store"])
def archived(request: pytest.FixtureRequest, archive: Path) -> Kept:
    """The same, where it was made and in a store."""
    return keeping(request)(archive)


@pytest.fixture(params=["directory", "store"])
def keep(request: pytest.FixtureRequest) -> Keeping:
    return keeping(request)


def load(
    spark: SparkSession, place: Kept | Path | str, source: str = "ebbmq", **options: str
) -> DataFrame:
    return load_table(spark, place, source, table="archive", **options)


@contextmanager
def under(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


SPLIT = {"spark.sql.files.maxPartitionBytes": "300000", "spark.sql.files.openCostInBytes": "1"}
WAYS: list[dict[str, str]] = [
    {},
    SPLIT,
    {**SPLIT, "spark.sql.parquet.enableVectorizedReader": "false"},
    {**SPLIT, "spark.sql.codegen.wholeStage": "true", "spark.sql.adaptive.enabled": "true"},
]


@pytest.mark.parametrize(
    "asked",
    [
        lambda frame: frame,
        lambda frame: frame.agg(F.count("*")),
        lambda frame: frame.select("pack", "queue"),
        lambda frame: frame.groupBy("store", "queue", "pack").agg(F.count("*"), F.max("id")),
        # Whole groups of rows of the large pack are not read for these.
        lambda frame: frame.where(F.col("enqueued_at") > F.timestamp_millis(F.lit(AT_MS + 160_000)))
        .select("id", "importance"),
        lambda frame: frame.where("importance = 7 and unix_millis(enqueued_at) < 1700000130000"),
        lambda frame: frame.where("importance = 7 and enqueued_at < '2023-11-14 22:15:30 UTC'"),
        lambda frame: frame.where("queue = 'pay/ments' and dead_at is null").select("headers"),
        lambda frame: frame.where("pack > 2 or importance = 3").select("id", "store"),
        lambda frame: frame.where("pack = 2 and id is not null or queue like 'ü%'").select("body"),
        lambda frame: frame.where("headers['region'] = 'eu'").select(F.size("headers"), "type"),
        lambda frame: frame.where("store is null or queue = 'nowhere'"),
        lambda frame: frame.where(F.length("queue") > 6).select("queue", "decay_rate"),
        lambda frame: frame.alias("a")
        .join(frame.alias("b"), F.expr("a.id = b.id and a.store != b.store"))
        .select("a.pack", "b.pack", "a.queue", "b.body"),
        lambda frame: frame.where("pack = 1").union(frame.where("pack = 3")).union(frame)
        .select("id", "pack"),
        lambda frame: frame.join(frame.where("id = '1-7'").select("queue"), "queue", "left_semi"),
        lambda frame: frame.where(frame.select(F.max("pack")).scalar() == F.col("pack")),
        lambda frame: frame.selectExpr("pack + 1 AS next", "upper(queue) AS queue", "pack")
        .where("next > 2 and queue != 'ORDERS'"),
        lambda frame: frame.where(F.col("decay_rate") > F.rand(7) * 0 + 20).select("id"),
    ],
)  # fmt: skip
def test_rows_are_those_that_python_reads(
    asked: Callable[[DataFrame], DataFrame], spark: SparkSession, archived: Kept
) -> None:
    ours = asked(load(spark, archived))
    theirs = asked(load(spark, archived.directory, IN_PYTHON))
    assert ours.schema == theirs.schema
    expected = told(theirs)
    # What becomes of rows is the same wherever they come from, how they are asked for is not.
    for settings in WAYS[1:3] if archived.is_remote else WAYS:
        with under(spark, settings), validated(spark):
            made = asked(load(spark, archived))
            assert told(made) == expected, settings
            assert is_native(made)
            if not archived.is_remote:
                kept = asked(read_archive(spark, archived.directory))
                assert told(kept) == expected, settings
                assert is_native(kept)


def test_every_row_is_as_it_was_written(spark: SparkSession, archive: Path) -> None:
    for store, queue, left in (
        (ONE, "orders", [*range(102, 119), *range(121, 140), *range(160, 177), *range(178, 199)]),
        (ONE, "pay/ments", list(range(60))),
        (ONE, "ü %41=*?#", [300, *range(365, 370)]),
        (TWO, "pay/ments", list(range(101, 139))),
    ):
        frame = load(spark, archive).where(
            (F.col("store") == store.hex()) & (F.col("queue") == queue)
        )
        rows = {int(row.id.partition("-")[2], 16): row for row in frame.collect()}
        assert sorted(rows) == left
        assert all(bytes(row.body).startswith(b"%d " % seq) for seq, row in rows.items())
        assert all(row.importance == seq % 10 for seq, row in rows.items())
    assert load(spark, archive).count() == 74 + 60 + 6 + 38 + 2


def scanned(frame: DataFrame) -> int:
    """How many files a query has read."""
    plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001  # it has no public name
    leaves = plan.collectLeaves()
    return sum(leaves.apply(at).metrics().apply("numFiles").value() for at in range(leaves.size()))


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("true", 6),
        ("queue = 'pay/ments'", 2),
        ("pack = 1", 2),
        ("pack = 1 and queue != 'orders'", 1),
        ("queue like 'ü%' and importance = 0", 1),
        ("queue = '__HIVE_DEFAULT_PARTITION__'", 1),
        ("store = 'none'", 0),
        ("pack = 1 and importance > 5 or pack = 3 and importance < 5", 4),
    ],
)
def test_a_filter_of_what_a_path_says_leaves_packs_out(
    condition: str, files: int, spark: SparkSession, archived: Kept
) -> None:
    archive = archived.directory
    asked = load(spark, archived).where(condition)
    rows = asked.collect()
    assert scanned(asked) == files
    assert told(load(spark, archive, IN_PYTHON).where(condition)) == sorted(map(str, rows))


def test_only_the_columns_of_a_query_are_read(spark: SparkSession, archive: Path) -> None:
    asked = (
        load(spark, archive).where("importance > 3 and queue = 'pay/ments'").select("id", "pack")
    )
    plans = plans_of(asked)
    assert "PushedFilters: [IsNotNull(importance), GreaterThan(importance,3)]" in plans
    assert "PartitionFilters: [isnotnull(queue" in plans
    assert "ReadSchema: struct<id:string,importance:int,_tmp_metadata_row_index:bigint>" in plans
    # Where nothing is dead nobody asks which row is which.
    without = Path(archive.parent, "without")
    put(without, [copy(n) for n in range(10)])
    plans = plans_of(load(spark, without).select("pack"))
    assert "ReadSchema: struct<>" in plans


def test_columns_are_in_the_order_they_are_asked_for(spark: SparkSession, archive: Path) -> None:
    frame = load(spark, archive, columns="body, pack, importance, store")
    assert is_native(frame)
    assert frame.columns == ["body", "pack", "importance", "store"]
    theirs = load(spark, archive, IN_PYTHON, columns="body, pack, importance, store")
    assert told(frame) == told(theirs)
    named = spark.read.schema("queue string, id string, pack bigint").format("ebbmq")
    given = named.option("table", "archive").load(str(archive))
    assert is_native(given)
    assert sorted(given.collect())[-1] == ("ü %41=*?#", "1-171", 4)
    with pytest.raises(Exception, match=r"invalid_spec.*option columns names 'seq'"):
        load(spark, archive, columns="seq")
    for source in ("ebbmq", IN_PYTHON):
        with pytest.raises(Exception, match=r"invalid_spec.*option columns names 'pack' twice"):
            load(spark, archive, source, columns="pack,pack")


def test_messages_as_of_a_call_stay_the_same(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    directory = tmp_path / "m[1] %41*"
    assert device(directory).probe().ok
    assert read_archive(spark, directory).collect() == []
    put(directory, [copy(n) for n in range(30)], dead=[3])
    put(directory, [copy(n) for n in range(30, 40)])
    kept = keep(directory)
    frame = read_archive(spark, kept.place.address, ["pack", "id"], kept.place.store)
    assert frame.columns == ["pack", "id"]
    assert is_native(frame)
    found = told(frame)
    assert found == told(load(spark, kept, columns="pack,id"))
    assert len(found) == 39
    put(directory, [copy(n) for n in range(40, 50)], dead=[40])
    archive = device(directory)
    archive.delete_many([Key(ONE, 1, 4)])
    archive.close()
    assert told(read_archive(spark, directory, ["pack", "id"])) == told(
        load(spark, directory, IN_PYTHON, columns="pack,id")
    )
    if not kept.is_remote:
        assert told(frame.select("*")) == found


def test_an_archive_that_cannot_be_read_is_told_when_it_is_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(UnknownFeed, match="there is no directory"):
        read_archive(spark, tmp_path / "nowhere")
    put(tmp_path, [copy(n) for n in range(10)])
    with pytest.raises(InvalidSpec, match="columns name 'seq'"):
        read_archive(spark, tmp_path, ["seq"])
    shortened(10)(pack_of(tmp_path, 1))
    with pytest.raises(DamagedRecord, match=r"pack-0000000001\.parquet"):
        read_archive(spark, tmp_path)


def test_a_row_that_nobody_knows_to_be_dead_or_not_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, [copy(n) for n in range(100)])
    read = spark.read.parquet(str(pack_of(tmp_path, 1)))
    frame = read.withColumns({"store": F.lit("a"), "pack": F.lit(1)})
    known = bits.Bits([np.array([1, 0])], {"a": -1})
    assert known.alive(spark, frame).count() == 99
    short = bits.Bits([np.array([1])], {"a": -1})
    for ansi in ("true", "false"):
        with (
            under(spark, {"spark.sql.ansi.enabled": ansi}),
            pytest.raises(Exception, match=r"rows were added to .*pack-0000000001\.parquet"),
        ):
            short.alive(spark, frame).collect()


def test_packs_with_dead_rows_too_far_apart_are_not_told() -> None:
    def dead(store: str, number: int) -> NamedFile:
        return NamedFile("", 0, {"store": store, "pack": number}, bytes(8))

    found = [dead("a", 7), dead("b", 2), dead("a", 9)]
    told = bits.bits_of(found, places_max=4)
    assert told is not None
    assert told.shifts == {"a": -7, "b": 1}
    assert [each is None for each in told.places] == [False, True, False, False]
    assert bits.bits_of(found, places_max=3) is None


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_instants_do_not_depend_on_the_zone(zone: str, spark: SparkSession, archive: Path) -> None:
    with under(spark, {"spark.sql.session.timeZone": zone}):
        made = []
        for source in ("ebbmq", IN_PYTHON):
            frame = load(spark, archive, source).where("enqueued_at >= '2023-11-14 22:15:00 UTC'")
            asked = frame.selectExpr(
                "unix_micros(enqueued_at)", "unix_millis(dead_at)", "string(enqueued_at)", "dead_at"
            )
            made.append(told(asked))
    assert made[0] == made[1]
    assert len(made[0]) == 74 + 6 + 38


def test_a_frame_that_is_used_again_sees_what_came_and_what_died(
    spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    assert device(tmp_path).probe().ok
    kept = keep(tmp_path)
    frame = load(spark, kept)
    assert frame.collect() == []
    assert is_native(frame.where("pack = 1 and importance = 1").select("queue"))

    def count(condition: str = "true") -> int:
        kept.keep()
        return frame.where(condition).count()

    put(tmp_path, [copy(n) for n in range(30)])
    assert count() == 30
    put(tmp_path, [copy(n) for n in range(30, 50)], dead=[30, 31])
    assert count() == 48
    archive = device(tmp_path)
    archive.delete_many([Key(ONE, 1, seq) for seq in (0, 1, 2, 49)])
    assert count("pack = 1") == 27
    assert count() == 44
    archive.delete_many([Key(ONE, 1, seq) for seq in range(30)])
    archive.close()
    # With its last message a pack goes.
    assert count("pack = 1") == 0
    assert sorted(row.pack for row in frame.select("pack").distinct().collect()) == [2]
    assert count() == 17


def test_of_a_dead_row_nothing_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, [copy(n, headers={"n": str(n)}) for n in range(10)], dead=[0])
    found = []
    for source in ("ebbmq", IN_PYTHON):
        # Of the one that is dead it would fail.
        asked = load(spark, tmp_path, source).where("10 / int(headers['n']) >= 2")
        with under(spark, {"spark.sql.ansi.enabled": "true"}):
            found.append(told(asked.select("id")))
    assert found[0] == found[1]
    assert len(found[0]) == 5


def pack_of(directory: Path, number: int) -> Path:
    (found,) = directory.rglob(f"pack-{number:010d}.parquet")
    return found


def shortened(by: int) -> Callable[[Path], None]:
    def shorten(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:-by])

    return shorten


def outside(file: Path) -> None:
    elsewhere = file.parents[5] / "elsewhere.parquet"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def newer(file: Path) -> None:
    stored = file.read_bytes()
    footer = pack.footer_bytes(stored[-pack.TAIL_BYTES :])
    at = stored.index(b"ebbmq.format", len(stored) - footer)
    spoilt = bytearray(stored)
    spoilt[at + 14 : at + 15] = b"9"
    file.write_bytes(spoilt)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (shortened(10), r"damaged_record.*{name}"),
        (shortened(1), r"damaged_record.*{name}"),
        (lambda file: file.write_bytes(b"PAR1"), r"damaged_record.*{name}"),
        (lambda file: file.write_bytes(b""), r"damaged_record.*{name}"),
        (outside, r"unknown_feed.*{name} is outside of"),
    ],
)
def test_what_cannot_be_read_is_told_as_python_tells_it(
    spoil: Callable[[Path], None], said: str, number: int, spark: SparkSession, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    put(directory, [copy(n) for n in range(20)], dead=[3])
    put(directory, [copy(n) for n in range(20, 40)])
    frame = load(spark, directory)
    assert frame.count() == 39
    spoil(pack_of(directory, number))
    name = rf"pack-{number:010d}\.parquet"
    for source in ("ebbmq", IN_PYTHON):
        with pytest.raises(Exception, match=said.format(name=name)):
            patiently(load(spark, directory, source).collect)


@pytest.mark.parametrize(("spoil", "said"), [(newer, "has format b'9'"), (shortened(10), "")])
def test_a_pack_that_cannot_be_used_is_told_as_python_tells_it_wherever_it_is(
    spoil: Callable[[Path], None], said: str, spark: SparkSession, tmp_path: Path, keep: Keeping
) -> None:
    put(tmp_path, [copy(n) for n in range(20)], dead=[3])
    spoil(pack_of(tmp_path, 1))
    with pytest.raises(Exception, match=rf"damaged_record.*pack-0000000001.*{said}"):
        patiently(load(spark, keep(tmp_path)).collect)


def test_damaged_marks_and_a_missing_archive_are_told_as_python_tells_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    put(directory, [copy(n) for n in range(20)], dead=[3])
    (marks,) = directory.rglob("dead-*")
    marks.write_bytes(marks.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match=rf"damaged_record.*{marks.name}"):
        patiently(load(spark, directory).collect)
    shutil.rmtree(directory)
    with pytest.raises(Exception, match=r"unknown_feed.*there is no directory"):
        patiently(load(spark, directory).collect)


def test_what_is_damaged_inside_is_named_by_sparks_own_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, [copy(n) for n in range(500)])
    file = pack_of(tmp_path, 1)
    stored = file.read_bytes()
    file.write_bytes(stored[:4] + b"\xff" * 200 + stored[204:])
    with pytest.raises(Exception, match=r"FAILED_READ_FILE(.|\n)*pack-0000000001\.parquet"):
        load(spark, tmp_path).collect()


def test_a_missing_value_of_a_column_that_must_have_one_is_missed(
    spark: SparkSession, archive: Path
) -> None:
    asked = spark.read.schema("id string not null, dead_at timestamp not null").format("ebbmq")
    frame = asked.option("table", "archive").load(str(archive))
    if not frame.schema["dead_at"].nullable:
        with pytest.raises(Exception, match=r"NOT_NULL_ASSERT_VIOLATION(.|\n)*column dead_at"):
            frame.collect()
    assert frame.select("id").count() == 180


class Between:
    """Files of a directory, with something that happens between two looks at them."""

    def __init__(
        self,
        directory: Path,
        at: str,
        happens: Callable[[Path], None],
        place: places.Place | None = None,
    ) -> None:
        self._files: Any = places.open_place(place or places.Place(str(directory)))
        self._directory, self._at, self._happens = directory, at, happens
        #: Several are read at once; none of them before it has happened.
        self._guard = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def list(self, prefix: str) -> list[places.Listed]:
        found = list(self._files.list(prefix))
        self._now("listed")
        return found

    def read(self, path: str) -> bytes:
        self._now("read")
        return bytes(self._files.read(path))

    def _now(self, at: str) -> None:
        with self._guard:
            if at == self._at:
                self._at = ""
                self._happens(self._directory)


def put_together(directory: Path) -> None:
    (marks,) = directory.rglob("_dead/dead-*")
    marks.rename(marks.with_name("dead-0000000099"))


def marked(directory: Path) -> None:
    (hidden,) = directory.rglob("_dead.later")
    hidden.rename(hidden.with_name("_dead"))


def test_marks_that_the_broker_puts_together_meanwhile_are_read_all_the_same(
    tmp_path: Path,
) -> None:
    put(tmp_path, [copy(seq) for seq in range(5)], dead=[1, 3])
    ((*_, before),) = packs_of(places.open_place(places.Place(str(tmp_path))))
    ((*_, dead),) = packs_of(cast("Any", Between(tmp_path, "read", put_together)))
    assert dead == before != b""


def test_what_is_marked_before_a_pack_is_there_is_known_of_each_pack_that_is_there(
    tmp_path: Path,
) -> None:
    put(tmp_path, [copy(seq) for seq in range(5)], dead=[1, 3])
    (marks,) = tmp_path.rglob("_dead")
    marks.rename(marks.with_name("_dead.later"))
    ((*_, dead),) = packs_of(cast("Any", Between(tmp_path, "listed", marked)))
    assert len(dead) == 2 * 4


def test_more_dead_rows_than_can_be_told_are_left_to_python_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, [copy(n) for n in range(100)], dead=[3, 70])
    put(tmp_path, [copy(n) for n in range(100, 120)])
    put(tmp_path, [copy(n) for n in range(200, 230)], dead=[200])
    found = packs.files_of(places.Place(str(tmp_path)), ["pack", "id"])
    assert found is not None
    bits = [None if each.dead is None else int.from_bytes(each.dead, "little") for each in found]
    assert bits == [1 << 3 | 1 << 70, None, 1]
    assert [each.told for each in found] == [{"pack": 1}, {"pack": 3}, {"pack": 4}]
    assert packs.files_of(places.Place(str(tmp_path)), [], bytes_max=24) is not None
    assert caplog.messages == []
    for _ in range(2):
        assert packs.files_of(places.Place(str(tmp_path)), [], bytes_max=16) is None
    (said,) = caplog.messages
    assert f"{tmp_path} is read by Python: its packs with dead rows have more than 128 rows" in said


def test_bits_of_dead_rows_are_known_by_what_they_are_made_of(tmp_path: Path) -> None:
    footers = []
    for queue in ("one", "two"):
        put(tmp_path / queue, [copy(n) for n in range(100, 300)])
        stored = pack_of(tmp_path / queue, 1).read_bytes()
        footers.append(stored[-pack.footer_bytes(stored[-pack.TAIL_BYTES :]) :])
    at = pack.read_rows(footers[0])["body_at"].astype("<u4")
    known = packs.DeadRows(bytes_max=64)
    for _ in range(2):
        for rows in ([0], [199], [7, 8]):
            bits = int.from_bytes(known.of(footers[0], at[rows].tobytes()), "little")
            assert bits == sum(1 << row for row in rows)
    with pytest.raises(DamagedRecord):
        known.of(footers[0][:-20], at[:1].tobytes())
