"""A history sorted by message, with the questions that the rules ask of it."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tests.history.events import Drained, Event, Grant, LeaseCall, Publish, Removed, Restart, Settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind = Literal[
    "lost",
    "unexpected",
    "duplicated",
    "acked_back",
    "removed_back",
    "order",
    "band_order",
    "two_leases",
    "attempts",
    "failures",
    "stale_token",
    "live_token_refused",
    "early",
    "withheld",
    "expired",
]

STRENGTH: Final[Mapping[str, int]] = {"memory": 0, "written": 1, "synced": 2}
NEEDED: Final[Mapping[str, int]] = {"clean": 0, "kill": 1, "power": 2}
NEVER: Final = 1 << 80


@dataclass(frozen=True, slots=True)
class Options:
    """What the checker may assume about the queues; a queue that is not named has no such rule."""

    max_attempts: Mapping[str, int] = field(default_factory=dict)
    dead_queues: Mapping[str, str] = field(default_factory=dict)
    #: Queues without failure penalty, fair share or priority changes while the history ran.
    ordered: frozenset[str] = frozenset()
    #: Queues with bodies on devices: a message whose devices cannot be reached is leased, and rests
    #: without anybody being told.
    resting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken by one message."""

    kind: Kind
    queue: str
    subject: str
    detail: str


@dataclass(slots=True, eq=False)
class Delivery:
    call: LeaseCall
    place: int
    grant: Grant

    @property
    def started(self) -> int:
        return self.call.started

    @property
    def ended(self) -> int:
        return NEVER if self.call.ended is None else self.call.ended


@dataclass(slots=True, eq=False)
class Message:
    """All that is known of one body in one queue."""

    queue: str
    body: bytes
    sent: list[tuple[Publish, int]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    settles: dict[str, list[Settle]] = field(default_factory=lambda: defaultdict(list))
    removals: list[Removed] = field(default_factory=list)
    found: list[tuple[int, str]] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        receipts = {p.ids[i] for p, i in self.sent if p.outcome == "ok"}
        return receipts | {d.grant.id for d in self.deliveries} | {id_ for _, id_ in self.found}

    @property
    def name(self) -> str:
        return f"{'/'.join(sorted(self.ids)) or 'unconfirmed'} {self.body[:24]!r}"

    def acks(self) -> Iterator[Settle]:
        return (s for settles in self.settles.values() for s in settles if s.verb == "ack")


class Index:
    """A history sorted by message, with the questions that the rules ask of it."""

    def __init__(self, events: Sequence[Event], options: Options) -> None:
        self.options = options
        self.messages: dict[tuple[str, bytes], Message] = {}
        self.drained = {e.queue for e in events if isinstance(e, Drained)}
        self.restarts = sorted((e for e in events if isinstance(e, Restart)), key=lambda r: r.at)
        self.unknown_leases = [
            e for e in events if isinstance(e, LeaseCall) and e.outcome == "unknown"
        ]
        self._short_leases = self._short_leases_by_queue(events)
        self.by_token: dict[str, tuple[Message, Delivery]] = {}
        self.forged: list[Settle] = []
        self._publishes = self._publishes_by_queue(events)
        for event in events:
            self._collect_message(event)
        by_id = {id_: m for m in self.messages.values() for id_ in m.ids}
        for event in events:
            self._collect_end(event, by_id)
        for message in self.messages.values():
            message.deliveries.sort(key=self._order_of_grant)

    def _collect_message(self, event: Event) -> None:
        match event:
            case Publish():
                for i, sent in enumerate(event.messages):
                    self.message(event.queue, sent.body).sent.append((event, i))
            case LeaseCall():
                self._deliver(event)
            case Drained():
                for id_, body in event.found:
                    self.message(event.queue, body).found.append((event.at, id_))
            case _:
                pass

    def _collect_end(self, event: Event, by_id: Mapping[str, Message]) -> None:
        if isinstance(event, Removed) and event.id in by_id:
            by_id[event.id].removals.append(event)
        if isinstance(event, Settle):
            if event.token in self.by_token:
                self.by_token[event.token][0].settles[event.token].append(event)
            else:
                self.forged.append(event)

    def _order_of_grant(self, delivery: Delivery) -> tuple[int, int, int, int]:
        """A call may wait long before it is served, so between restarts queue time decides."""
        grant = delivery.grant
        life = len(self.restarts_between(-1, delivery.started))
        return life, grant.granted_at_ms, grant.attempt, delivery.started

    def _deliver(self, call: LeaseCall) -> None:
        for place, grant in enumerate(call.grants):
            message = self.message(call.queue, grant.body)
            delivery = Delivery(call, place, grant)
            message.deliveries.append(delivery)
            self.by_token[grant.token] = (message, delivery)

    def message(self, queue: str, body: bytes) -> Message:
        return self.messages.setdefault((queue, body), Message(queue, body))

    def publishes(self, message: Message) -> list[tuple[Publish, int]]:
        """The calls that may have made it, in its queue or in one whose dead queue this is."""
        sources = [q for q, dead in self.options.dead_queues.items() if dead == message.queue]
        origins = [self.messages.get((q, message.body)) for q in sources]
        return message.sent + [s for origin in origins if origin for s in origin.sent]

    def restarts_between(self, after: int, before: int) -> list[Restart]:
        low = bisect.bisect_right(self.restarts, after, key=lambda r: r.at)
        high = bisect.bisect_left(self.restarts, before, key=lambda r: r.at)
        return self.restarts[low:high]

    def holds(self, level: str, since: int, until: int) -> bool:
        """Whether what was confirmed at `level` still binds the broker at stamp `until`."""
        return all(STRENGTH[level] >= NEEDED[r.kind] for r in self.restarts_between(since, until))

    def end_of_effect(self, call: Publish | LeaseCall | Settle) -> int:
        """The first stamp at which the call cannot change anything any more."""
        if call.outcome != "unknown" and call.ended is not None:
            return call.ended
        later = self.restarts_between(call.started, NEVER)
        return later[0].at if later else NEVER

    def surely_ready_at(self, publish: Publish) -> int:
        """When its messages could be leased: batches of a queue become ready in their order.

        So one that was confirmed at a weak level may wait for a stronger one that began earlier.
        """
        assert publish.ended is not None
        starts, latest_ends = self._publishes[publish.queue]
        return latest_ends[bisect.bisect_left(starts, publish.ended) - 1]

    def _publishes_by_queue(
        self, events: Sequence[Event]
    ) -> dict[str, tuple[list[int], list[int]]]:
        """Per queue the starts of its publishes, and up to each the latest end so far."""
        by_queue: dict[str, list[Publish]] = defaultdict(list)
        for event in events:
            if isinstance(event, Publish):
                by_queue[event.queue].append(event)
        out = {}
        for queue, calls in by_queue.items():
            calls.sort(key=lambda call: call.started)
            ends = itertools.accumulate(map(self.end_of_effect, calls), max)
            out[queue] = ([call.started for call in calls], list(ends))
        return out

    def short_leases(self, queue: str, after: int, before: int) -> Iterator[LeaseCall]:
        """Calls of this span that came back with less than they asked for: no more was ready."""
        calls = self._short_leases[queue]
        first = bisect.bisect_right(calls, after, key=lambda call: call.started)
        for call in itertools.islice(calls, first, None):
            if call.started > before:
                break
            if self.end_of_effect(call) < before:
                yield call

    def _short_leases_by_queue(self, events: Sequence[Event]) -> dict[str, list[LeaseCall]]:
        """The calls of each queue that found less than they asked for, in the order they began."""
        out: dict[str, list[LeaseCall]] = defaultdict(list)
        for event in events:
            if not isinstance(event, LeaseCall) or event.outcome != "ok":
                continue
            if len(event.grants) < (event.asked or 0):
                out[event.queue].append(event)
        for calls in out.values():
            calls.sort(key=lambda call: call.started)
        return out

    def power_cut_between(self, after: int, before: int) -> bool:
        return any(r.kind == "power" for r in self.restarts_between(after, before))

    def hidden_grants(self, queue: str, after: int, before: int) -> int:
        """How many lease calls may have granted something nobody saw in this span."""
        return sum(
            c.queue == queue and c.started < before and self.end_of_effect(c) > after
            for c in self.unknown_leases
        )
