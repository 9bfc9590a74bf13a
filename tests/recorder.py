"""Calls a broker as its clients do and keeps what they saw, before and after each call.

A call is kept twice under one number: first with its outcome unknown, then as it ended. Whoever
reads the record of a process that was killed in between finds the call with its outcome unknown.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from ebbmq.errors import ClientError, EbbError, LeaseLost
from ebbmq.model import Message
from tests.history import Event, Grant, LeaseCall, Publish, Removed, Sent, Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ebbmq import Broker
    from ebbmq.model import Lease
    from tests.history.events import Level, Outcome, Verb

Call = TypeVar("Call", Publish, LeaseCall, Settle)


class Entry(msgspec.Struct, frozen=True):
    """One state of one call."""

    number: int
    event: Event


class Keeper(Protocol):
    """Where the record of the calls goes."""

    def keep(self, entries: Iterable[Entry]) -> None:
        """Keep all of these before returning."""


class Held(Protocol):
    """A lease, or the record of one."""

    @property
    def token(self) -> str: ...


class MemoryKeeper:
    """Keeps the record in this process."""

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}

    def keep(self, entries: Iterable[Entry]) -> None:
        self._events.update((entry.number, entry.event) for entry in entries)

    def events(self) -> list[Event]:
        return list(self._events.values())


class FileKeeper:
    """Keeps the record in a file that outlives this process; one writer, one line per entry."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._encoder = msgspec.json.Encoder()

    def keep(self, entries: Iterable[Entry]) -> None:
        os.write(self._fd, b"".join(self._encoder.encode(entry) + b"\n" for entry in entries))


def read_file(path: Path) -> list[Event]:
    """The calls kept in a file; a last line that was cut short was never complete."""
    decoder = msgspec.json.Decoder(Entry)
    lines = path.read_bytes().split(b"\n")[:-1]
    entries = (decoder.decode(line) for line in lines)
    return list({entry.number: entry.event for entry in entries}.values())


class Recorder:
    """One client of a broker; every client keeps its own record."""

    def __init__(
        self,
        broker: Broker,
        keeper: Keeper,
        stamp: Callable[[], int],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._broker = broker
        self._keeper = keeper
        self._stamp = stamp
        self._now_ms = now_ms
        self._numbers = itertools.count()
        self._granted_at_ms: dict[str, int] = {}

    def publish(
        self, queue: str, sent: Sequence[Sent], level: Level, *, timeout_ms: int | None = None
    ) -> Outcome:
        """Publish, and say how it ended; a refusal for what was asked is not raised."""
        call = Publish(self._stamp(), None, queue, level, tuple(sent), "unknown")
        (number,) = self._begin([call])
        messages = [_message(s) for s in sent]
        try:
            receipts = self._broker.publish(queue, messages, confirm=level, timeout_ms=timeout_ms)
        except ClientError as error:
            if error.code == "confirm_timeout":  # stored or not is not known
                self._end(number, call, "unknown")
                raise
            self._end(number, call, "failed")
            return "failed"
        except EbbError:
            self._end(number, call, "unknown")
            raise
        self._end(number, call, "ok", ids=tuple(receipt.id for receipt in receipts))
        return "ok"

    def lease(
        self, queue: str, count: int, lease_timeout_ms: int, *, wait_ms: int = 0
    ) -> list[Lease]:
        """Lease; the deadline of each lease tells when it was granted."""
        call = LeaseCall(self._stamp(), None, queue, "unknown", asked=count)
        (number,) = self._begin([call])
        try:
            leases = self._broker.lease(
                queue, count=count, wait_ms=wait_ms, lease_timeout_ms=lease_timeout_ms
            )
        except EbbError:
            self._end(number, call, "unknown")
            raise
        grants = tuple(_grant(lease, lease_timeout_ms) for lease in leases)
        self._end(number, call, "ok", grants=grants)
        self._granted_at_ms.update((grant.token, grant.granted_at_ms) for grant in grants)
        return leases

    def ack(self, queue: str, leases: Sequence[Held], level: Level) -> None:
        """Ack, at a level."""
        self._settle(
            queue, "ack", leases, lambda t: self._broker.ack(queue, t, confirm=level), level
        )

    def retry(self, queue: str, leases: Sequence[Held], delay_ms: int | None = None) -> None:
        """Hand the messages back as failed."""
        self._settle(
            queue,
            "retry",
            leases,
            lambda t: self._broker.retry(queue, t, delay_ms=delay_ms),
            asked_ms=delay_ms,
        )

    def release(self, queue: str, leases: Sequence[Held]) -> None:
        """Hand the messages back untouched."""
        self._settle(queue, "release", leases, lambda t: self._broker.release(queue, t))

    def extend(self, queue: str, leases: Sequence[Held], timeout_ms: int) -> None:
        """Ask for more time; without a clock of ours the new deadline is known from below."""
        self._settle(
            queue,
            "extend",
            leases,
            lambda t: self._broker.extend(queue, t, timeout_ms),
            asked_ms=timeout_ms,
        )

    def removals(self, queue: str) -> list[Removed]:
        """Read the removals log and keep what it says."""
        told = self._broker.removals(queue)
        # Known from here on: others may have held the message while this call was under way.
        stamp = self._stamp()
        removed = [Removed(stamp, queue, r.id, r.reason, r.moved_to) for r in told]
        self._begin(removed)
        return removed

    def _settle(
        self,
        queue: str,
        verb: Verb,
        leases: Sequence[Held],
        act: Callable[[list[str]], object],
        level: Level = "written",
        asked_ms: int | None = None,
    ) -> None:
        now_ms = self._now_ms() if self._now_ms else None
        started = self._stamp()
        calls = [
            Settle(
                started,
                None,
                queue,
                verb,
                lease.token,
                "unknown",
                level,
                now_ms,
                self._extended(lease, now_ms, asked_ms) if verb == "extend" else None,
                asked_ms if verb == "retry" else None,
            )
            for lease in leases
        ]
        numbers = self._begin(calls)
        lost: set[str] = set()
        outcome: Outcome = "ok"
        try:
            act([lease.token for lease in leases])
        except LeaseLost as error:
            lost = set(error.tokens)
        except EbbError:
            outcome = "unknown"
            raise
        finally:
            ended = self._stamp()
            self._keeper.keep(
                Entry(
                    number,
                    msgspec.structs.replace(
                        call, ended=ended, outcome="failed" if call.token in lost else outcome
                    ),
                )
                for number, call in zip(numbers, calls, strict=True)
            )

    def _extended(self, lease: Held, now_ms: int | None, timeout_ms: int | None) -> int | None:
        if timeout_ms is None:
            return None
        return timeout_ms + (self._granted_at_ms.get(lease.token, 0) if now_ms is None else now_ms)

    def _begin(self, events: Sequence[Event]) -> list[int]:
        numbers = list(itertools.islice(self._numbers, len(events)))
        self._keeper.keep(map(Entry, numbers, events))
        return numbers

    def _end(self, number: int, call: Call, outcome: Outcome, **changes: object) -> None:
        ended = msgspec.structs.replace(call, ended=self._stamp(), outcome=outcome, **changes)
        self._keeper.keep([Entry(number, ended)])


def _message(sent: Sent) -> Message:
    return Message(
        sent.body,
        importance=sent.importance,
        delay_ms=sent.delay_ms,
        ttl_ms=sent.ttl_ms,
        decay_rate=0.5 if sent.decays else None,
        id=sent.producer_id,
        replicas=sent.replicas,
    )


def _grant(lease: Lease, lease_timeout_ms: int) -> Grant:
    return Grant(
        id=lease.id,
        body=lease.body,
        token=lease.token,
        attempt=lease.attempt,
        failures=lease.failures,
        band=lease.band,
        enqueued_at_ms=lease.enqueued_at_ms,
        granted_at_ms=lease.deadline_ms - lease_timeout_ms,
        deadline_ms=lease.deadline_ms,
    )
