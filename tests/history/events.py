"""The events of a history, as the clients of one broker saw them."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "unknown"]
Level = Literal["memory", "written", "synced"]
Verb = Literal["ack", "retry", "release", "extend"]
RestartKind = Literal["clean", "kill", "power"]


class Sent(msgspec.Struct, frozen=True):
    """One message as its publisher made it."""

    body: bytes
    importance: int = 5
    delay_ms: int = 0
    ttl_ms: int | None = None
    decays: bool = False
    producer_id: str | None = None
    replicas: int | None = None


class Publish(msgspec.Struct, frozen=True, tag=True):
    """A publish call; `ids` are those of its receipts, one per message, if it is ok."""

    started: int
    ended: int | None
    queue: str
    level: Level
    messages: tuple[Sent, ...]
    outcome: Outcome
    ids: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """One message of a lease call as the consumer got it."""

    id: str
    body: bytes
    token: str
    attempt: int
    failures: int
    band: int
    enqueued_at_ms: int
    granted_at_ms: int
    deadline_ms: int


class LeaseCall(msgspec.Struct, frozen=True, tag=True):
    """A lease call with everything it granted, in the order of delivery; `asked` is None where it
    may have come back with fewer although there were more.
    """

    started: int
    ended: int | None
    queue: str
    outcome: Outcome
    grants: tuple[Grant, ...] = ()
    asked: int | None = None


class Settle(msgspec.Struct, frozen=True, tag=True):
    """An ack, retry, release or extend of one token; a call on many tokens is many of these.

    `at_ms` is the queue time of the call where the caller rules the clock, else None;
    `deadline_ms` is what an extend that is ok, or may be, set; `delay_ms` what a retry asked for.
    """

    started: int
    ended: int | None
    queue: str
    verb: Verb
    token: str
    outcome: Outcome
    level: Level = "written"
    at_ms: int | None = None
    deadline_ms: int | None = None
    delay_ms: int | None = None


class Removed(msgspec.Struct, frozen=True, tag=True):
    """A record of the removals log, or of a damage report, as it was read at stamp `seen`.

    `moved_to` is the id of the message in the dead queue, if it went there.
    """

    seen: int
    queue: str
    id: str
    reason: str
    moved_to: str | None = None


class Restart(msgspec.Struct, frozen=True, tag=True):
    """The broker ended in this way and was opened again."""

    at: int
    kind: RestartKind


class Drained(msgspec.Struct, frozen=True, tag=True):
    """Everything that was left in a queue when nothing was leased or delayed any more."""

    at: int
    queue: str
    found: tuple[tuple[str, bytes], ...]


Event = Publish | LeaseCall | Settle | Removed | Restart | Drained
