"""A queue as a stream: messages are leased, worked on, and acked once Spark has committed them.

The driver leases a batch and is told its tokens alone. They are the offset: Spark keeps them in its
checkpoint, hands each task a part, and the tasks read the messages themselves.

1. What is acked is what tasks were given: a message is acked only under the token it was read by. A
   lease that ended before it was read is not read, its token acks nothing, and the message comes
   back in a later batch.
2. Spark tells of the end of a batch when it makes the next one. `latestOffset` is asked from where
   the last committed batch ended, so it acks that one first, and once more when Spark says so.
3. A query that starts again reads the leases of an unfinished batch by their tokens, as far as they
   are held; the others come back when they end. So every message is read at least once.
4. Before an offset is in the checkpoint its leases have a name that follows from the one before:
   asked again, the same leases are found. Before the first offset of a checkpoint nothing is there
   that a name could follow from: leases of a driver that dies so early end by themselves.
5. With `availableNow` it is leased until nothing is ready of what was there when the query began,
   which is told by ids. More important messages that come meanwhile are leased before; so a batch
   is not bounded by what was there.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from ebbmq import limits
from ebbmq.client.client import Client
from ebbmq.errors import LeaseLost
from ebbmq_spark.connector import columns, requests, tokens
from ebbmq_spark.connector.extending import Extending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyspark.sql.types import StructType

    from ebbmq_spark.connector.options import Leasing

Offset = dict[str, Any]
#: Tokens of one request to read, ack or lease.
_READ: Final = 10_000
_ACK: Final = 25_000
#: Messages of a batch for which no bound was set.
_ALL: Final = 1_000_000


@dataclass
class Held(InputPartition):
    """A part of a batch: the tokens of leases, packed, and of which store they are."""

    packed: str
    store_id: str | None


class LeaseStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases batches on the driver; `read` runs on executors and uses nothing but options."""

    def __init__(self, options: Leasing, schema: StructType) -> None:
        self._options = options
        self._schema = columns.checked(schema, columns.MESSAGE)
        self._client: Client | None = None
        self._extending: Extending | None = None
        self._acked = 0
        #: With availableNow: the newest id of each partition when the query began.
        self._there: list[str] | None = None
        self._has_leased = False

    @override
    def initialOffset(self) -> Offset:
        """Before the first batch; the id names the leases of this stream."""
        return {"stream": uuid.uuid4().hex, "batch": 0, "count": 0, "leases": ""}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """As many messages as the options allow."""
        return ReadMaxRows(self._options.messages_max)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends once nothing is ready of what is there now."""
        partitions = self._connect().stats(self._options.queue)["partitions"]
        self._there = [each["newest_id"] for each in partitions if each["oldest_id"] is not None]

    @override
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Ack the batch that ended at `start`, then lease the next one."""
        self._ack(start)
        most = self._options.messages_max
        if isinstance(limit, ReadAllAvailable):
            most = _ALL
        elif isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        found = self._lease(start, most) if self._goes_on() else []
        if not found:
            return start
        number = start["batch"] + 1
        self._extends().hold(number, found)
        return {
            "stream": start["stream"],
            "batch": number,
            "count": len(found),
            "leases": tokens.pack(found),
        }

    def _goes_on(self) -> bool:
        """Whether to lease; at first always, because that finds what a former run has leased."""
        if self._there is None or not self._has_leased:
            return True
        client, queue = self._connect(), self._options.queue
        looks = (requests.look(queue, "ready", None, newest, 1) for newest in self._there)
        return any(map(client.ask, looks))

    def _lease(self, start: Offset, most: int) -> list[str]:
        options, client = self._options, self._connect()
        found: list[str] = []
        wait_ms = options.wait_ms if self._there is None else 0
        self._has_leased = True
        while len(found) < most:
            count = min(most - len(found), limits.LEASE_COUNT_MAX)
            name = f"spark-{start['stream']}-{start['batch'] + 1}-{len(found)}"
            part = client.ask(
                requests.hold(options.queue, count, wait_ms, options.lease_timeout_ms, name)
            )
            found += part
            wait_ms = 0
            if len(part) < count:
                break
        return found

    @override
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The leases of a batch, some to a task; also of one that a former run left unfinished."""
        if end["batch"] == start["batch"]:
            return []
        found = tokens.unpack(end["leases"])
        self._extends().hold(end["batch"], found)
        parts = -(-len(found) // self._options.rows_per_partition)
        size = -(-len(found) // parts)
        store_id = self._store_id()
        return [
            Held(tokens.pack(found[at : at + size]), store_id) for at in range(0, len(found), size)
        ]

    def _store_id(self) -> str | None:
        """Of which store the messages are, if a column needs it."""
        if columns.UNIQUE not in self._schema.names:
            return None
        options, client = self._options, self._connect()
        stats = requests.patiently(options.server, lambda: client.stats(options.queue))
        found: str | None = stats["store_id"]
        return found

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of some leases, as far as these are held."""
        assert isinstance(partition, Held)
        options, schema = self._options, columns.arrow_of(self._schema)
        held = tokens.unpack(partition.packed)
        at = 0
        with requests.connected(options.server) as client:
            while at < len(held):
                call = requests.read(options.queue, held[at : at + _READ])
                found = requests.patiently(options.server, lambda call=call: client.ask(call))  # type: ignore[misc]
                if found.leases:
                    yield columns.batch_of(found.leases, schema, partition.store_id)
                at += _READ if found.next is None else found.next

    @override
    def commit(self, end: Offset) -> None:
        """Spark has committed everything up to here."""
        self._ack(end)

    def _ack(self, end: Offset) -> None:
        if end["batch"] <= self._acked or not end["leases"]:
            return
        found = tokens.unpack(end["leases"])
        client, queue = self._connect(), self._options.queue
        for at in range(0, len(found), _ACK):
            part = found[at : at + _ACK]
            # A lease that ended before its ack: the message comes again.
            _ack_held(client, queue, part)
        self._acked = end["batch"]
        self._extends().let_go(end["batch"])

    @override
    def stop(self) -> None:
        """Leases stay: they are acked or read again by whoever goes on, or they end."""
        if self._extending is not None:
            self._extending.stop()
        if self._client is not None:
            self._client.close()

    def _connect(self) -> Client:
        if self._client is None:
            server = self._options.server
            self._client = Client(
                server.url, token=server.token, ca_file=server.ca_file, timeout_ms=server.timeout_ms
            )
        return self._client

    def _extends(self) -> Extending:
        if self._extending is None:
            options = self._options
            self._extending = Extending(self._connect(), options.queue, options.lease_timeout_ms)
        return self._extending


def _ack_held(client: Client, queue: str, held: Sequence[str]) -> None:
    try:
        client.ack(queue, held)
    except LeaseLost:
        return
