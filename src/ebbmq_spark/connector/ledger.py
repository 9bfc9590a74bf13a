"""Which batch a sink committed last: kept in the broker itself, in a small queue of the sink's own.

A batch is on the record before Spark notes that it is done; so one that Spark plays again is found
here. The record is a message that nobody consumes: the newest counts, older ones are acked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.errors import ClientError, LeaseLost, UnknownQueue
from ebbmq.model import Message, QueueSpec

if TYPE_CHECKING:
    from ebbmq.client.client import Client
    from ebbmq.model import Lease, Peeked

PREFIX: Final = "spark.sink."
#: A record that is leased or was given back by a driver that died counts all the same.
_STATES: Final = ("ready", "leased", "scheduled")
_LEASE_MS: Final = 10_000


class SinkInUse(ClientError):
    """Batches of this sink were committed by a query with another checkpoint."""

    code = "sink_in_use"


class Committed(msgspec.Struct, frozen=True):
    """The last batch that a query committed to a sink."""

    query: str
    batch: int
    published: int
    duplicates: int


class Ledger:
    """The record of one sink."""

    def __init__(self, client: Client, sink: str) -> None:
        self._client = client
        self._sink = sink
        self.queue = f"{PREFIX}{sink}"

    def is_committed(self, query: str, batch: int) -> bool:
        """Whether a batch of a query was committed.

        Raises:
            SinkInUse: another query committed batches, whose numbers mean something else.
        """
        last = self.last()
        if last is None:
            return False
        if last.query != query:
            raise SinkInUse(
                f"sink {self._sink!r:.80} was last written by query {last.query}, batch "
                f"{last.batch}; this is query {query}, whose batches are numbered anew",
                f"use that query's checkpoint, or another sinkId; if it is gone for good, delete "
                f"queue {self.queue!r:.80}",
            )
        return batch <= last.batch

    def last(self) -> Committed | None:
        """The batch that was committed last."""
        try:
            found = [
                each
                for state in _STATES
                for each in self._client.peek(self.queue, 100, state=state)
            ]
        except UnknownQueue:
            return None
        return max(map(_read, found), key=lambda each: each.batch, default=None)

    def prepare(self) -> None:
        """See to it that a batch can be put on the record, before anything of it is published.

        Raises:
            EbbError: it cannot, as where a scope is missing.
        """
        self._publish([])

    def commit(self, done: Committed) -> None:
        """Put a batch on the record."""
        self._publish([Message(msgspec.json.encode(done), id=f"{done.query}-{done.batch}")])
        self._forget_before(done.batch)

    def _publish(self, messages: list[Message]) -> None:
        try:
            self._client.publish(self.queue, messages, confirm="synced")
        except UnknownQueue:
            self._client.declare(QueueSpec(self.queue, max_attempts=0))
            self._client.publish(self.queue, messages, confirm="synced")

    def _forget_before(self, batch: int) -> None:
        while len(self._client.peek(self.queue, 2)) > 1:
            leases = self._client.lease(self.queue, 1, lease_timeout_ms=_LEASE_MS)
            if not leases or not self._settle(leases[0], batch):
                return

    def _settle(self, lease: Lease, batch: int) -> bool:
        """Let go of an older record; False: it was not one."""
        is_older = _read(lease).batch < batch
        try:
            if is_older:
                self._client.ack(self.queue, [lease.token])
            else:
                self._client.release(self.queue, [lease.token])
        except LeaseLost:
            return False
        return is_older


def _read(message: Lease | Peeked) -> Committed:
    return msgspec.json.decode(message.body, type=Committed)
