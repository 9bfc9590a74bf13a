"""Rows published to a queue by the tasks; a batch that was committed is not published again.

With `idColumn` a message that is published twice, by a task or a batch that is tried again, is kept
once, for as long as the broker remembers ids (5 minutes, the last 1,000,000 of a queue). A stream
remembers its last committed batch for good, in the broker (`ledger`), once what Spark has noted of
that batch is as safe as the record (`flushing`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from typing_extensions import override

from ebbmq.errors import InvalidSpec, TooLarge
from ebbmq_spark.connector import flushing, messages, requests
from ebbmq_spark.connector.ledger import Committed, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyspark.sql.types import StructType

    from ebbmq.client.client import Client
    from ebbmq.model import Receipt
    from ebbmq_spark.connector.options import Publishing

_logger = logging.getLogger("ebbmq.spark")
# Under these names MicroBatchExecution tells tasks which batch of which query they are of.
_BATCH_KEY = "streaming.sql.batchId"
_QUERY_KEY = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """What a task did."""

    query: str | None
    published: int
    duplicates: int
    #: How often the task had been tried before.
    attempt: int


def check_mode(*, overwrite: bool) -> None:
    """Refuse to replace what is in a queue.

    Raises:
        InvalidSpec: that is asked for.
    """
    if overwrite:
        raise InvalidSpec("a queue cannot be overwritten", "use mode('append'), or purge it first")


def _publish(
    client: Client,
    options: Publishing,
    fields: Mapping[str, str],
    batches: Iterator[pa.RecordBatch],
) -> tuple[int, int]:
    """How many messages were published, and how many of them were there already."""
    prefix, numbers = uuid4().hex[:18], count()
    published = duplicates = 0
    for batch in batches:
        made = messages.forms_of(batch, fields, lambda: f"{prefix}{next(numbers):x}")
        for request in messages.requests_of(made, options.confirm):
            receipts = _ask(client, options, request)
            published += len(receipts)
            duplicates += sum(receipt.duplicate for receipt in receipts)
    return published, duplicates


def _ask(client: Client, options: Publishing, request: messages.Request) -> list[Receipt]:
    """Publish a request; in parts, where a server takes less at a time.

    Raises:
        TooLarge: it does not take a single message of them.
    """
    call = requests.publish(options.queue, request.body)
    try:
        return requests.patiently(options.server, lambda: client.ask(call))
    except TooLarge as error:
        if len(request.forms) == 1:
            row = "" if options.id_column is None else f" with id {request.forms[0].id!r:.80}"
            raise TooLarge(
                f"a row{row} takes {len(request.body):,} bytes alone: {error.detail}",
                "leave it out, or raise http.request_bytes_max of the server",
            ) from error
    parts = request.halves(options.confirm)
    return [receipt for part in parts for receipt in _ask(client, options, part)]


def _attempt() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.attemptNumber()


def _warn_of_duplicates(options: Publishing, done: list[Published]) -> None:
    """Say so if ids were known to the queue that were published for the first time, it seems."""
    first = [each for each in done if each.attempt == 0]
    duplicates = sum(each.duplicates for each in first)
    if duplicates and options.id_column is not None:
        _logger.warning(
            "%d of %d messages had ids that queue %r knew already, and were kept once: unless they "
            "were published before, as by a batch that is played again, column %r does not tell "
            "messages apart",
            duplicates,
            sum(each.published for each in first),
            options.queue,
            options.id_column,
        )


class QueueWriter(DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    def __init__(self, options: Publishing, schema: StructType) -> None:
        self._options = options
        self._fields = messages.fields_of(options, schema)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        with requests.connected(self._options.server) as client:
            done = _publish(client, self._options, self._fields, iterator)
        return Published(None, *done, _attempt())

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have published what they had."""
        done = [each for each in messages if isinstance(each, Published)]
        _warn_of_duplicates(self._options, done)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a stream, batch by batch."""

    def __init__(
        self,
        options: Publishing,
        schema: StructType,
        flush: Callable[[str | None, int], None] = flushing.flush,
    ) -> None:
        self._options = options
        self._fields = messages.fields_of(options, schema)
        self._flush = flush

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task, unless its batch was committed."""
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(_QUERY_KEY), task.getLocalProperty(_BATCH_KEY)
        assert query is not None
        assert batch is not None
        server = self._options.server
        with requests.connected(server) as client:
            ledger = Ledger(client, self._options.sink_id or query)
            is_done = requests.patiently(server, lambda: ledger.is_committed(query, int(batch)))
            if is_done:
                return Published(query, 0, 0, _attempt())
            requests.patiently(server, ledger.prepare)
            done = _publish(client, self._options, self._fields, iterator)
            return Published(query, *done, _attempt())

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Put the batch on the record: after Spark has noted its offset, before it is done."""
        done = [each for each in messages if isinstance(each, Published)]
        query = next((each.query for each in done if each.query), None)
        if query is None:
            return
        _warn_of_duplicates(self._options, done)
        server = self._options.server
        made = Committed(
            query,
            batchId,
            sum(each.published for each in done),
            sum(each.duplicates for each in done),
        )
        with requests.connected(server) as client:
            ledger = Ledger(client, self._options.sink_id or query)
            if requests.patiently(server, lambda: ledger.is_committed(query, batchId)):
                return
            self._flush(self._options.checkpoint, batchId)
            requests.patiently(server, lambda: ledger.commit(made))

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is taken back: the same ids, published again, are kept once."""
