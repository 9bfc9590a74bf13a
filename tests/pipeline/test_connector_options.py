"""What the connector is asked for wrongly is told by name, before anything is done."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from ebbmq.errors import InvalidSpec
from ebbmq.feed import claims
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import DeviceSpec
from ebbmq.holding.objects import ObjectDevice
from ebbmq_spark.connector import EbbMQ, options, tokens
from ebbmq_spark.connector.queue import ranges

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = {"url": "http://127.0.0.1:1", "queue": "q"}
ROWS = T.StructType([T.StructField("id", T.StringType()), T.StructField("body", T.BinaryType())])


def with_column(name: str, kind: T.DataType) -> T.StructType:
    return T.StructType([*ROWS.fields, T.StructField(name, kind)])


def source(**given: str) -> EbbMQ:
    return EbbMQ(CaseInsensitiveDict(given))


def read(**given: str) -> Any:
    asked = source(**given)
    return asked.reader(asked.schema())


def stream(**given: str) -> Any:
    asked = source(**given)
    return asked.streamReader(asked.schema())


def write(schema: T.StructType = ROWS, **given: str) -> Any:
    return source(**{**QUEUE, **given}).streamWriter(schema, False)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda: read(queue="q"), "option url is missing"),
        (lambda: read(url="http://127.0.0.1:1"), "option queue is missing"),
        (lambda: read(**QUEUE, que="x"), "option 'que' is not known.*did you mean queue"),
        (lambda: read(**QUEUE, state="redy"), "option state is 'redy'.*use one of ready"),
        (lambda: read(table="evens"), "option table is 'evens'.*events"),
        (lambda: read(table="events"), "option path is missing"),
        (lambda: read(**QUEUE, columns="id, bdy"), "option columns names 'bdy'.*body"),
        (lambda: read(**QUEUE, columns="id, body,id"), "option columns names 'id' twice"),
        (lambda: source(**QUEUE).reader(with_column("id", T.StringType())), "names 'id' twice"),
        (lambda: stream(**QUEUE, leaseTimeoutMs="5s"), "option leaseTimeoutMs is '5s'"),
        (lambda: stream(**QUEUE, maxMessages="0"), "option maxMessages is '0'.*from 1 to"),
        (lambda: stream(table="events", path="/"), "table events cannot be read as a stream"),
        (lambda: stream(**QUEUE, token="a", tokenFile="b"), "token and tokenFile are both given"),
        (lambda: stream(**QUEUE, tokenFile="/not/there"), "option tokenFile is /not/there"),
        (write, "option idColumn is missing.*atLeastOnce=true"),
        (lambda: write(idColumn="key"), "there is no column 'key', which option idColumn names"),
        (lambda: write(idColumn="id", bodyColumn="b"), "there is no column 'b', which option body"),
        (lambda: write(idColumn="id", confirm="soon"), "option confirm is 'soon'.*synced"),
        (
            lambda: write(with_column("importance", T.StringType()), idColumn="id"),
            "column 'importance' is of type string",
        ),
        (
            lambda: write(with_column("price", T.IntegerType()), idColumn="id"),
            "column 'price' is no field",
        ),
        (
            lambda: write(
                with_column("headers", T.MapType(T.StringType(), T.IntegerType())), idColumn="id"
            ),
            "column 'headers' is of type map<string,int>, and headers is map<string,string>",
        ),
        (
            lambda: source(**QUEUE, idColumn="id").writer(ROWS, True),
            "a queue cannot be overwritten",
        ),
        (
            lambda: source(**QUEUE).reader(T.StructType([T.StructField("id", T.IntegerType())])),
            "the schema names 'id' of type int",
        ),
    ],
)
def test_a_wrong_option_is_named(asked: Any, told: str) -> None:
    with pytest.raises(InvalidSpec, match=told) as caught:
        asked()
    assert caught.value.action


def test_a_place_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownFeed, match="there is no directory"):
        read(table="events", path=str(tmp_path / "lake")).partitions()
    (tmp_path / "empty").mkdir()
    for table in ("events", "catalog"):
        with pytest.raises(UnknownFeed, match=r"there is no lake at .*no node has written to it"):
            read(table=table, path=str(tmp_path / "empty")).partitions()
    with pytest.raises(UnknownFeed, match=r"there is no archive at .*no broker has written to it"):
        read(table="archive", path=str(tmp_path / "empty")).partitions()
    with pytest.raises(InvalidSpec, match=r"ftp://x.*use a directory, or a URL of s3"):
        read(table="archive", path="ftp://x/y").partitions()


def test_a_lake_and_an_archive_of_which_nothing_is_written_yet_are_empty(tmp_path: Path) -> None:
    claims.claim(tmp_path, "a")
    assert read(table="events", path=str(tmp_path)).partitions() == []
    # What an object device writes when its broker opens it.
    spec = DeviceSpec(
        name="cold", tier="s3", durable=True, failure_domain="cold", capacity_bytes=1_000_000
    )
    device = ObjectDevice(spec, Bucket(tmp_path.as_uri()), time.perf_counter)
    assert device.probe().ok
    assert read(table="archive", path=str(tmp_path)).partitions() == []


def test_secrets_are_in_no_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("told-by-file\n")
    server = options.server_of({"url": "http://h", "tokenfile": str(tmp_path / "token")})
    assert server.token == "told-by-file"
    place = options.place_of({"path": "s3://b", "store.secret_access_key": "hidden"})
    assert place.store == {"secret_access_key": "hidden"}
    shown = repr((server, place, options.leasing({"url": "u", "queue": "q", "token": "hidden"})))
    assert "hidden" not in shown
    assert "told-by-file" not in shown
    with pytest.raises(InvalidSpec) as caught:
        read(**{"table": "events", "path": "s3://b", "store.hidden": "hidden-value"}).partitions()
    assert "hidden-value" not in str(caught.value)


def test_readers_and_writers_travel_to_executors() -> None:
    for made in (read(**QUEUE), stream(**QUEUE), write(idColumn="id")):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)


def test_an_old_message_does_not_make_a_task_of_every_id_since() -> None:
    found = [(each.after, each.up_to) for each in ranges("1-1", "1-989680", 3)]
    assert found == [("1-0", "1-32dcd6"), ("1-32dcd6", "1-65b9ac"), ("1-65b9ac", "1-989680")]
    assert [(each.after, each.up_to) for each in ranges("2-7", "2-7", 1)] == [("2-6", "2-7")]


def test_tokens_of_a_batch_are_few_bytes_and_come_back_as_they_were() -> None:
    run = [f"{1:08x}{seq:016x}{1:08x}{3:08x}{0xDEADBEEF:08x}" for seq in range(20_000)]
    assert tokens.unpack(tokens.pack(run)) == run
    assert len(tokens.pack(run)) < 20_000
    mixed = [f"{2**32 - 1:08x}{2**48 - 1:016x}{7:08x}{65_535:08x}{0:08x}", *reversed(run)]
    assert tokens.unpack(tokens.pack(mixed)) == mixed
