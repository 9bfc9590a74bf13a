"""A queue of one partition as a plain list and a few rules: what the broker must agree with.

Everything is looked up by scanning. Where the design leaves an order open (messages that re-enter
at the same instant) the places are equal, and any order of equals is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ebbmq.policy import importance as policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.model import Message, QueueSpec

DEDUP_MS = 300_000
RETRY_DELAY_MS_MAX = 300_000


@dataclass
class Row:
    """One message; `due_ms` is a lease deadline or the instant at which it becomes ready."""

    id: str
    message: Message
    enqueued_at_ms: int
    place: int
    state: str = "ready"
    due_ms: int = 0
    attempt: int = 0
    failures: int = 0
    token: str = ""


@dataclass
class Model:
    """The queue of a spec; the caller moves `now_ms` and never past `next_due_ms`."""

    spec: QueueSpec
    now_ms: int
    rows: dict[str, Row] = field(default_factory=dict)
    removals: dict[str, set[str]] = field(default_factory=dict)
    dead: list[bytes] = field(default_factory=list)
    known_ids: dict[str, tuple[str, int]] = field(default_factory=dict)
    places: int = 0
    is_paused: bool = False

    def publish(self, id_: str, message: Message) -> None:
        self.places += 1
        row = Row(id_, message, self.now_ms, self.places)
        if message.delay_ms:
            row.state, row.due_ms = "scheduled", self.now_ms + message.delay_ms
        self.rows[id_] = row
        if message.id is not None:
            self.known_ids[message.id] = (id_, self.now_ms)

    def duplicate_of(self, message: Message) -> str | None:
        id_, at_ms = self.known_ids.get(message.id or "", ("", -DEDUP_MS))
        return id_ if self.now_ms - at_ms < DEDUP_MS else None

    def ready(self) -> list[Row]:
        """In delivery order."""
        return sorted((r for r in self.rows.values() if r.state == "ready"), key=self.rank)

    def rank(self, row: Row) -> tuple[int, int]:
        return -self.band(row), row.place

    def importance(self, row: Row) -> int:
        return row.message.importance or self.spec.default_importance

    def decay(self, row: Row) -> tuple[float, int]:
        rate = row.message.decay_rate
        span_ms = row.message.ttl_ms or self.spec.default_ttl_ms or self.spec.decay_unit_ms
        return self.spec.decay_rate if rate is None else rate, span_ms

    def band(self, row: Row) -> int:
        rate, span_ms = self.decay(row)
        band = policy.band_of(self.importance(row), self.spec.band_width)
        if rate:
            rate = policy.class_rate(policy.rate_class(rate))
            span = policy.class_span(policy.span_class(span_ms))
            age_ms = self.now_ms - row.enqueued_at_ms
            value = policy.current_importance(self.importance(row), rate, age_ms, span)
            band = policy.band_of(value, self.spec.band_width)
        return max(1, band - row.failures * self.spec.failure_penalty)

    def lease(self, row: Row, token: str, timeout_ms: int) -> None:
        row.state, row.due_ms, row.token = "leased", self.now_ms + timeout_ms, token
        row.attempt += 1

    def holder(self, token: str) -> Row | None:
        live = (r for r in self.rows.values() if r.token == token and r.state == "leased")
        return next(live, None)

    def retry(self, row: Row, delay_ms: int | None) -> None:
        self.places += 1
        self.fail(row, delay_ms)

    def fail(self, row: Row, delay_ms: int | None) -> None:
        row.failures += 1
        reasons = self.end_reasons(row)
        usual = 16 if self.spec.dead_queue else 0
        attempts = usual if self.spec.max_attempts is None else self.spec.max_attempts
        if attempts and row.failures >= attempts:
            reasons.add("max_attempts")
        if reasons:
            self.end(row, reasons)
            return
        if delay_ms is None:
            delay_ms = min(RETRY_DELAY_MS_MAX, self.spec.retry_delay_ms << (row.failures - 1))
        if delay_ms:
            row.state, row.due_ms = "scheduled", self.now_ms + delay_ms
        else:
            self.enter(row)

    def enter(self, row: Row) -> None:
        """At the tail; with `requeue = original` where it was published."""
        row.state = "ready"
        if self.spec.requeue == "tail":
            row.place = self.places

    def release(self, row: Row) -> None:
        row.state = "ready"
        if reasons := self.end_reasons(row):
            self.end(row, reasons)

    def end(self, row: Row, reasons: set[str]) -> None:
        del self.rows[row.id]
        self.removals[row.id] = reasons
        is_kept = {"expired", "max_attempts"}
        if self.spec.on_stale == "dead_letter":
            is_kept.add("stale")
        if self.spec.dead_queue is not None and reasons & is_kept:
            self.dead.append(row.message.body)

    def end_reasons(self, row: Row) -> set[str]:
        """Every reason for which the row, were it not leased, would leave by now."""
        return {reason for reason, at_ms in self.ends(row) if at_ms <= self.now_ms}

    def ends(self, row: Row) -> Iterator[tuple[str, int]]:
        ttl_ms = row.message.ttl_ms or self.spec.default_ttl_ms
        rate, span_ms = self.decay(row)
        stale = policy.stale_age_ms(self.importance(row), rate, span_ms, self.spec.stale_threshold)
        ages = (("expired", ttl_ms), ("stale", stale), ("retention", self.spec.retention_ms))
        return ((name, row.enqueued_at_ms + age) for name, age in ages if age is not None)

    def next_due_ms(self) -> int | None:
        instants = [r.due_ms for r in self.rows.values() if r.state != "ready"]
        for row in self.rows.values():
            if row.state != "leased":
                instants += [at_ms for _, at_ms in self.ends(row)]
        return min(instants, default=None)

    def tick(self) -> None:
        """Do what is due now; what re-enters together shares a place."""
        self.places += 1
        for row in self.due():
            if row.state == "leased":
                self.fail(row, None)
            elif reasons := self.end_reasons(row):
                self.end(row, reasons)
            elif row.state == "scheduled" and row.due_ms <= self.now_ms:
                self.enter(row)

    def due(self) -> Sequence[Row]:
        return [
            row
            for row in self.rows.values()
            if (row.state != "ready" and row.due_ms <= self.now_ms)
            or (row.state != "leased" and self.end_reasons(row))
        ]
