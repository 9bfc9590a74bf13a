"""Objects of a store, read by Spark's own reader by URLs that the driver signs."""

from __future__ import annotations

import contextlib
import io
import json
import random
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore import store as stores
from py4j.protocol import Py4JJavaError
from pyspark.sql.datasource import DataSource
from typing_extensions import override

from ebbmq_spark.connector import handover, register, signed
from ebbmq_spark.connector.at_hand import IN_PYTHON, InPython
from ebbmq_spark.connector.files import NamedFile
from ebbmq_spark.places import Place, Store, Unsigned
from tests import azurite
from tests.pipeline import ranged
from tests.pipeline.kept import SIGNATURES, KeptInStore, options_of
from tests.pipeline.patience import patiently
from tests.pipeline.ranged import Choosy, Ranged
from tests.pipeline.test_connector_handover import FILES, is_native, load, plans_of, told
from tests.pipeline.test_connector_read import make_lake
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.azurite import Azurite
    from tests.servers import Weed

NAME = "/s3/bucket/an object.parquet"
DATA = random.Random(7).randbytes(1_000_000)


@pytest.fixture(scope="module", autouse=True)
def both(spark: SparkSession) -> None:
    register(spark)
    spark.dataSource.register(InPython)
    signed.ship(spark.sparkContext)


@pytest.fixture
def lake(weed: Weed, tmp_path: Path) -> KeptInStore:
    """A lake of 1,000 rows in three files."""
    make_lake(tmp_path / "lake", 1_000, 3)
    return KeptInStore(tmp_path / "lake", f"s3://{weed.bucket}/objects", options_of(weed))


@pytest.fixture
def server() -> Iterator[Ranged]:
    with Ranged(DATA) as serving:
        yield serving


class Opened:
    """An object as Hadoop opens it."""

    def __init__(self, spark: SparkSession, url: str, size: int, tag: str | None, **more: Any):
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001  # it has no public name
        known = context._jsc.hadoopConfiguration()  # noqa: SLF001  # as above
        conf = self._jvm.org.apache.hadoop.conf.Configuration(known)
        conf.set("ebbmq.object.urls", json.dumps([[NAME, size, tag, url]]))
        for name, value in more.items():
            conf.set(f"ebbmq.object.{name}", str(value))
        path = self._jvm.org.apache.hadoop.fs.Path("ebbmq-object", None, NAME)
        self.files = path.getFileSystem(conf)
        self.path = path
        self.stream = self.files.open(path)

    def read(self, begin: int, end: int) -> bytes:
        self.stream.seek(begin)
        return bytes(self._jvm.org.apache.commons.io.IOUtils.readFully(self.stream, end - begin))


def opened(spark: SparkSession, server: Ranged, **more: Any) -> Opened:
    return Opened(spark, server.url, len(DATA), ranged.TAG, **more)


def test_small_reads_are_answered_from_what_was_fetched_ahead(
    spark: SparkSession, server: Ranged
) -> None:
    file = opened(spark, server)
    assert file.files.getFileStatus(file.path).getLen() == len(DATA)
    assert server.asked == []
    # As the end of a Parquet file is read.
    assert bytes(file.read(999_992 + at, 999_993 + at)[0] for at in range(8)) == DATA[-8:]
    assert file.read(950_000, 999_992) == DATA[950_000:999_992]
    assert server.asked == [(len(DATA) - 65_536, len(DATA))]
    assert file.read(100_000, 700_000) == DATA[100_000:700_000]
    assert file.read(5, 25) == DATA[5:25]
    assert file.read(30, 40) == DATA[30:40]
    assert server.asked[1:] == [(100_000, 700_000), (5, 65_541)]
    assert file.read(900_000, len(DATA)) == DATA[900_000:]
    with pytest.raises(Py4JJavaError, match="EOFException"):
        file.read(0, len(DATA) + 1)
    assert server.connections == 1


def test_more_is_fetched_ahead_of_reads_that_go_on_where_the_last_one_ended(
    spark: SparkSession, server: Ranged
) -> None:
    file = opened(spark, server)
    found = b"".join(file.read(at, at + 100_000) for at in range(0, 1_000_000, 100_000))
    assert found == DATA
    assert server.asked == [(0, 100_000), (100_000, 300_000), (300_000, 700_000),
                            (700_000, 1_000_000)]  # fmt: skip
    # Back at the begin it is not known that it will go on.
    assert file.read(0, 100_000) == DATA[:100_000]
    assert server.asked[4:] == [(0, 100_000)]


def test_an_object_that_is_smaller_than_what_is_fetched_ahead_is_fetched_once(
    spark: SparkSession, server: Ranged
) -> None:
    server.data = DATA[:1_000]
    file = Opened(spark, server.url, 1_000, ranged.TAG)
    assert file.read(992, 1_000) + file.read(4, 900) == DATA[992:1_000] + DATA[4:900]
    assert server.asked == [(0, 1_000)]


def test_a_connection_that_breaks_and_a_store_that_is_busy_are_asked_again(
    spark: SparkSession, server: Ranged
) -> None:
    server.faults = [503, "broken", 429, 500]
    assert opened(spark, server).read(0, 900_000) == DATA[:900_000]
    asked = [(0, 900_000)] * 2 + [(450_000, 900_000)] * 3
    assert server.asked == asked


@pytest.mark.parametrize(
    ("faults", "said", "asked"),
    [
        ([500] * 9, r"storage_failed; /s3/bucket/an object.parquet .* in 2 tries: .*HTTP 500 N", 2),
        ([404], r"FileNotFoundException: gone; /s3/bucket/an object.parquet is there no more", 1),
        ([412], r"FileNotFoundException: gone; .*read again: what took its place", 1),
        ([416], r"FileNotFoundException: gone; ", 1),
        (["longer"], r"FileNotFoundException: gone; .*or another one by that name", 1),
        ([403], r"AccessControlException: refused; .*an object.parquet \(HTTP 403 NotToday\)", 1),
        ([400], r"AccessControlException: refused; .*\(HTTP 400 NotToday\)", 1),
        ([307], r"AccessControlException: refused; .*\(HTTP 307\)", 1),
        (["whole"], r"AccessControlException: refused; .*\(HTTP 200\)", 1),
    ],
)
def test_what_a_store_refuses_is_named_without_the_url(
    faults: list[int | str], said: str, asked: int, spark: SparkSession, server: Ranged
) -> None:
    server.faults = faults
    with pytest.raises(Py4JJavaError, match=said) as failed:
        opened(spark, server, tries=2).read(0, 100_000)
    assert len(server.asked) == asked
    assert ranged.SECRET not in str(failed.value)


def test_an_object_of_another_tag_is_gone(spark: SparkSession, server: Ranged) -> None:
    with pytest.raises(Py4JJavaError, match="gone; "):
        Opened(spark, server.url, len(DATA), '"another tag"').read(0, 10)


def test_a_store_that_is_not_there_is_told_of_without_the_url(spark: SparkSession) -> None:
    with Ranged(DATA) as server:
        file = opened(spark, server, tries=2)
    with pytest.raises(Py4JJavaError, match=r"in 2 tries: ConnectException: ") as failed:
        file.read(0, 10)
    assert ranged.SECRET not in str(failed.value)


def test_nothing_but_the_objects_of_a_query_can_be_opened_and_nothing_written(
    spark: SparkSession, server: Ranged
) -> None:
    file = opened(spark, server)
    jvm: Any = spark._jvm  # noqa: SLF001  # it has no public name
    other = jvm.org.apache.hadoop.fs.Path("ebbmq-object:/s3/bucket/other")
    with pytest.raises(Py4JJavaError, match="is none of the objects of this query"):
        file.files.open(other)
    for write in (lambda: file.files.create(other), lambda: file.files.delete(file.path, False)):
        with pytest.raises(Py4JJavaError, match="can only be read"):
            write()


class Wide(DataSource):
    """A table whose columns are about as large as its rows are many."""

    @classmethod
    @override
    def name(cls) -> str:
        return "ebbmq_wide"

    @override
    def schema(self) -> str:
        return "a bigint, small boolean, b bigint, c bigint, d bigint, e bigint"


def test_columns_that_are_close_to_each_other_are_one_request(spark: SparkSession) -> None:
    rows, numbers = 60_000, random.Random(7)
    wide = {name: [numbers.randrange(1 << 62) for _ in range(rows)] for name in "abcde"}
    columns = {"a": wide["a"], "small": [True] * rows, **wide}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="none", use_dictionary=False)
    data = sink.getvalue()
    with Ranged(data) as server:
        named = NamedFile("/s3/b/wide", len(data), url=server.url, tag=ranged.TAG)
        assert handover.install(spark, Wide.name(), lambda *_: [named])
        spark.dataSource.register(Wide)
        frame = patiently(spark.read.format(Wide.name()).load).select("a", "b", "d")
        assert frame.selectExpr("sum(a % 7 + b % 7 + d % 7)").first() == (
            sum(a % 7 + b % 7 + d % 7 for a, b, d in zip(*map(wide.get, "abd"), strict=True)),
        )
    # The end is asked for by the driver, and by each task.
    close, alone, end = sorted(set(server.asked))
    assert end == (len(data) - 65_536, len(data))
    assert server.asked.count(close) == server.asked.count(alone) == 1
    assert 2 * 8 * rows < close[1] - close[0] < 2.1 * 8 * rows
    assert 8 * rows < alone[1] - alone[0] < 1.1 * 8 * rows


def test_a_url_is_of_no_use_after_its_time(spark: SparkSession, lake: KeptInStore) -> None:
    path = f"{FILES}/00000000.parquet"
    (found,) = (each for each in lake.store.list(FILES) if each.path == path)
    store = stores.from_url(lake.place.address, **lake.place.store)
    (url,) = obstore.sign(store, "GET", [path], timedelta(seconds=1))

    def is_refused() -> bool:
        try:
            urllib.request.urlopen(url).close()
        except urllib.error.HTTPError as error:
            return error.code == 403
        return False

    wait_until(is_refused, "expiring")
    with pytest.raises(Py4JJavaError, match=r"refused; .*\(HTTP 403 \w+\): it may have expired"):
        Opened(spark, url, found.size, found.tag).read(0, 10)


def test_no_text_that_spark_shows_has_a_url(
    spark: SparkSession, lake: KeptInStore, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = load(spark, lake).where("seq < 5").select("seq", "queue")
    assert len(frame.collect()) == 5
    query: Any = frame._jdf.queryExecution()  # noqa: SLF001  # it has no public name
    assert "ebbmq-object:/s3/" in plans_of(frame)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    texts = [
        shown.getvalue(),
        plans_of(frame),
        *(plan().toJSON() for plan in (query.analyzed, query.optimizedPlan, query.executedPlan)),
        *(plan().treeString() for plan in (query.optimizedPlan, query.executedPlan)),
        str(frame.inputFiles()),
        str(NamedFile("/s3/b/o", 7, url=f"http://h/o?{SIGNATURES[0]}=7")),
        str(lake.store.addresses(["o"])),
        *capfd.readouterr(),
    ]
    secrets = (*SIGNATURES, lake.place.store["secret_access_key"], "http://127.0.0.1")
    assert not [secret for secret in secrets for text in texts if secret in text]
    assert all(name.startswith("ebbmq-object:/s3/") for name in frame.inputFiles())


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_goes_after_a_query_was_planned_is_gone_and_not_mistaken_for_another(
    how: str, spark: SparkSession, lake: KeptInStore
) -> None:
    frame = load(spark, lake).select("seq", "queue")
    assert is_native(frame)
    path = f"{FILES}/00000001.parquet"
    if how == "deleted":
        lake.store.delete([path])
    else:
        # Of the same size, and a file that could be read as well.
        lake.store.write(path, lake.store.read(path).replace(b"parquet-cpp", b"parquet-CPP"))
    with pytest.raises(
        Exception, match=r"FILE_NOT_EXIST(.|\n)*gone; .*00000001\.parquet"
    ) as failed:
        frame.collect()
    assert not any(secret in str(failed.value) for secret in SIGNATURES)


def test_a_store_that_takes_no_signed_urls_is_left_to_python_and_the_log_says_so(
    spark: SparkSession, weed: Weed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_lake(tmp_path, 100, 2)
    with Choosy(weed.endpoint) as choosy:
        options = {**options_of(weed), "endpoint": choosy.endpoint}
        kept = KeptInStore(tmp_path, f"s3://{weed.bucket}/choosy", options)
        frame = load(spark, kept)
        assert not is_native(frame)
        (said,) = (each for each in caplog.records if each.name == "ebbmq.spark")
        assert "read by Python: their files could not be asked for" in said.getMessage()
        assert "refused; the store does not take the URL" in said.getMessage()
        assert patiently(frame.count) == 100


def test_a_store_that_cannot_sign_is_left_to_python_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place("s3://b/lake", {"region": "us-east-1", "aws_skip_signature": "true"})
    for _ in range(2):
        assert signed.addresses(place, Store(place), ["a"]) is None
    (said,) = caplog.messages
    assert said.startswith("rows of s3://b/lake are read by Python: no URLs can be signed")
    azure = Place("az://c/lake", {"account_name": "a", "sas_key": "sv=1&sig=hidden"})
    with pytest.raises(Unsigned, match="SAS") as refused:
        Store(azure).addresses(["a"])
    assert "hidden" not in str(refused.value)
    with pytest.raises(Unsigned):
        Store(Place("memory://")).addresses(["a"])


def account() -> str:
    """What Google gives to who signs; none of its own has this key."""
    key = (Path(__file__).parents[1] / "certificates" / "rsa.key").read_text()
    return json.dumps(
        {"client_email": "a@b", "private_key": key, "private_key_id": "1",
         "gcs_base_url": "http://127.0.0.1:1"}
    )  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        Place("s3://b/lake", {"region": "r", "access_key_id": "a", "secret_access_key": "b"}),
        Place("az://b/lake", {"account_name": "a", "account_key": azurite.KEY}),
        Place("gs://b/lake", {"service_account_key": account(), "base_url": "http://127.0.0.1:1"}),
    ],
)
def test_a_url_is_that_of_the_object_whatever_its_name_is(place: Place) -> None:
    names = ["queue=pay%2Fments/pack-1.parquet", "queue=a b%41/ü.parquet", "plain", "plain"]
    found = Store(place).addresses(names)
    where = place.address.replace("://", "/")
    assert [each.path for each in found] == [f"/{where}/{name}" for name in names]
    paths = [unquote(urlsplit(str(each.url)).path) for each in found]
    assert [path.partition("lake/")[2] for path in paths] == names
    assert Store(place).addresses([]) == []


def test_a_lake_in_azure_is_read_by_spark(
    spark: SparkSession, azurite_server: Azurite, tmp_path: Path
) -> None:
    make_lake(tmp_path, 200, 2)
    options = {
        "endpoint": azurite_server.endpoint, "account_name": azurite.ACCOUNT,
        "account_key": azurite.KEY,
    }  # fmt: skip
    kept = KeptInStore(tmp_path, f"az://{azurite_server.container}", options)
    frame = load(spark, kept)
    assert is_native(frame)
    assert told(frame) == told(load(spark, kept, IN_PYTHON))
    asked = frame.select("seq")
    assert is_native(asked)
    kept.store.write(f"{FILES}/00000001.parquet", b"another one")
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST(.|\n)*gone; "):
        asked.collect()
