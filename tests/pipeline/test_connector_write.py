"""Rows become messages: in requests that a server takes, and with errors that name the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from ebbmq import Client, QueueSpec, limits
from ebbmq.errors import TooLarge
from ebbmq.wire.http import codec, forms
from ebbmq_spark.connector import EbbMQ, messages
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HEADERS = pa.map_(pa.string(), pa.string())
KINDS = {
    "id": (T.StringType(), pa.string()),
    "text": (T.StringType(), pa.string()),
    "bytes": (T.BinaryType(), pa.binary()),
    "headers": (T.MapType(T.StringType(), T.StringType()), HEADERS),
}
#: What a server takes in one request unless it is told otherwise.
REQUEST_BYTES = 16 * limits.MIB


class Sink:
    """A queue of a server, and the writer of a task without the rest of Spark."""

    def __init__(self, server: Running, queue: str, **options: str) -> None:
        self.url, self.queue = server.url, queue
        with Client(self.url) as client:
            client.declare(QueueSpec(queue))
        self._options = {"url": server.url, "queue": queue, "idColumn": "id", **options}

    def write(self, **rows: Sequence[Any]) -> Any:
        """Write columns `text` or `bytes` as the body, and others under their names; commit."""
        names = {name: "body" if name in ("text", "bytes") else name for name in rows}
        schema = T.StructType([T.StructField(names[each], KINDS[each][0]) for each in rows])
        arrays = [pa.array(rows[each], KINDS[each][1]) for each in rows]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(names.values()))
        source = EbbMQ(CaseInsensitiveDict(self._options))
        writer = source.writer(schema, False)
        done = writer.write(iter([batch]))  # type: ignore[arg-type]
        writer.commit([done])
        return done

    def ready(self) -> int:
        with Client(self.url) as client:
            found: int = client.stats(self.queue)["depth"]["ready"]
        return found


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("wide", {"id": numbers(5_000), "text": ["漢字" * 1_000] * 5_000}),
        (
            "headers",
            {
                "id": numbers(5_000),
                "text": ["x"] * 5_000,
                "headers": [[("h", "y" * 5_000)]] * 5_000,
            },
        ),
        ("escaped", {"id": numbers(100), "text": ["\x01" * 100_000] * 100}),
        ("bytes", {"id": numbers(300), "bytes": [b"z" * 100_000] * 300}),
    ],
)
def test_rows_of_any_kind_are_published_in_requests_that_the_server_takes(
    server: Running, name: str, rows: dict[str, list[Any]]
) -> None:
    sink = Sink(server, name)
    done = sink.write(**rows)
    assert (done.published, done.duplicates) == (len(rows["id"]), 0)
    assert sink.ready() == len(rows["id"])


def test_a_server_that_takes_less_is_sent_less_and_a_row_too_large_for_it_is_named(
    tmp_path: Path,
) -> None:
    config = tmp_path / "ebbmq.toml"
    config.write_text("[http]\nrequest_bytes_max = 100_000\n")
    with Running(tmp_path / "data", "--config", str(config)) as server:
        sink = Sink(server, "small")
        assert sink.write(id=numbers(1_000), bytes=[b"x" * 1_000] * 1_000).published == 1_000
        assert sink.ready() == 1_000
        bodies = [b"x", b"x" * 90_000, b"x"]
        with pytest.raises(TooLarge, match=r"row.*id 'b'.*120,0\d\d bytes.*100000 bytes") as caught:
            sink.write(id=["a", "b", "c"], bytes=bodies)
        assert "http.request_bytes_max" in caught.value.action
        unnamed = Sink(server, "unnamed", idColumn="", atLeastOnce="true")
        with pytest.raises(TooLarge, match=r"a row takes 120,0\d\d bytes"):
            unnamed.write(bytes=bodies)


def test_a_header_that_is_null_is_not_there(server: Running) -> None:
    sink = Sink(server, "nulls")
    headers = [[("a", None), ("b", "1")], [("a", None)], [], None]
    sink.write(id=numbers(4), text=["x"] * 4, headers=headers)
    with Client(server.url) as client:
        found = [dict(message.headers) for message in client.peek("nulls")]
    assert found == [{"b": "1"}, {}, {}, {}]


def test_ids_that_the_queue_knew_already_are_counted_in_the_log(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(server, "known")
    sink.write(id=["a", "b", "c"], text=["x"] * 3)
    assert not caplog.records
    sink.write(id=["b", "c", "d"], text=["y"] * 3)
    (told,) = caplog.messages
    assert told.startswith("2 of 3 messages had ids that queue 'known' knew already")
    assert "column 'id' does not tell messages apart" in told
    assert sink.ready() == 4


def test_a_request_has_the_bytes_of_its_form() -> None:
    made = [
        forms.MessageForm(text='漢\x01"\\', id="a", headers={"k": "v"}),
        forms.MessageForm(body_b64=b"\x00\xff", id="b", key="k", importance=3),
        forms.MessageForm(body_b64=b"x" * messages.BATCH_BYTES, id="c"),
        forms.MessageForm(body_b64=b"x", id="d"),
    ]
    found = list(messages.requests_of(made, "synced"))
    assert [[form.id for form in each.forms] for each in found] == [["a", "b"], ["c"], ["d"]]
    for each in found:
        assert each.body == codec.encode(forms.PublishForm(messages=each.forms, confirm="synced"))
    many = [forms.MessageForm(body_b64=b"", id=str(n)) for n in range(12_000)]
    counts = [len(each.forms) for each in messages.requests_of(many, "memory")]
    assert counts == [5_000, 5_000, 2_000]
    assert messages.BATCH_BYTES < REQUEST_BYTES
