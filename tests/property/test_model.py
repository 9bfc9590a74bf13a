"""The broker against a sequential model of one queue, step by step on a clock that we move."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import LeaseLost
from ebbmq.journal.disk import MemoryDisk
from ebbmq.testing import ManualClock
from tests.property.model import Model, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.model import Level

LEASE_TIMEOUT_MS = 1_000
DEAD = QueueSpec("q.dead", max_attempts=0)

messages: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    importance=st.none() | st.integers(1, 10),
    ttl_ms=st.none() | st.sampled_from([300, 2_000, 60_000]),
    decay_rate=st.none() | st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    delay_ms=st.sampled_from([0, 0, 0, 50, 1_500]),
    id=st.none() | st.sampled_from(["p1", "p2", "p3"]),
)
specs = st.builds(
    QueueSpec,
    st.just("q"),
    lease_timeout_ms=st.just(LEASE_TIMEOUT_MS),
    band_width=st.sampled_from([1.0, 2.0, 10.0]),
    decay_rate=st.sampled_from([0.0, 0.5]),
    decay_unit_ms=st.sampled_from([5_000, 3_600_000]),
    default_ttl_ms=st.sampled_from([None, 10_000]),
    on_stale=st.sampled_from(["drop", "dead_letter"]),
    max_attempts=st.sampled_from([None, 0, 1, 3]),
    retry_delay_ms=st.sampled_from([0, 200]),
    failure_penalty=st.sampled_from([0, 1, 3]),
    requeue=st.sampled_from(["tail", "original"]),
    dead_queue=st.sampled_from([None, "q.dead"]),
    retention_ms=st.sampled_from([None, 20_000]),
)


class BrokerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.broker = self.open()
        self.bodies = 0
        self.tokens: list[str] = []

    def open(self) -> Broker:
        config = {"segment_bytes": 65_536}
        return Broker.open(self.directory, config, self.clock, disk=self.disk)

    @initialize(spec=specs)
    def declare(self, spec: QueueSpec) -> None:
        self.broker.declare(DEAD)
        self.broker.declare(spec)
        self.model = Model(spec, self.clock.wall_ms())

    @override
    def teardown(self) -> None:
        self.broker.close()
        shutil.rmtree(self.directory)

    @rule(batch=st.lists(messages, min_size=1, max_size=4))
    def publish(self, batch: list[dict[str, Any]]) -> None:
        sent = [Message(self.body(), **fields) for fields in batch]
        receipts = self.broker.publish("q", sent, confirm="written")
        for message, receipt in zip(sent, receipts, strict=True):
            original = self.model.duplicate_of(message)
            assert receipt.duplicate == (original is not None)
            if original is None:
                assert receipt.id not in self.model.rows
                self.model.publish(receipt.id, message)
            else:
                assert receipt.id == original

    def body(self) -> bytes:
        self.bodies += 1
        return f"body {self.bodies}".encode()

    @rule(count=st.integers(1, 5), timeout_ms=st.sampled_from([None, 100, 4_000]))
    def lease(self, count: int, timeout_ms: int | None) -> None:
        expected = [] if self.model.is_paused else self.model.ready()[:count]
        leases = self.broker.lease("q", count=count, lease_timeout_ms=timeout_ms)
        taken = [self.model.rows[lease.id] for lease in leases]
        assert [self.model.rank(row) for row in taken] == [self.model.rank(r) for r in expected]
        assert len({row.id for row in taken}) == len(taken)
        for row, lease in zip(taken, leases, strict=True):
            assert row.state == "ready"
            assert lease.band == self.model.band(row)
            self.model.lease(row, lease.token, timeout_ms or LEASE_TIMEOUT_MS)
            assert lease.body == row.message.body
            assert (lease.attempt, lease.failures) == (row.attempt, row.failures)
            assert lease.deadline_ms == row.due_ms
            assert lease.enqueued_at_ms == row.enqueued_at_ms
            self.tokens.append(lease.token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), level=st.sampled_from(["memory", "written", "synced"]))
    def ack(self, data: st.DataObject, level: Level) -> None:
        chosen = self.choose(data)
        self.settle(chosen, lambda tokens: self.broker.ack("q", tokens, confirm=level))
        for row in self.holders(chosen):
            del self.model.rows[row.id]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), delay_ms=st.sampled_from([None, 0, 70]))
    def retry(self, data: st.DataObject, delay_ms: int | None) -> None:
        chosen = self.choose(data)
        self.settle(chosen, lambda tokens: self.broker.retry("q", tokens, delay_ms=delay_ms))
        for row in self.holders(chosen):
            self.model.retry(row, delay_ms)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        self.settle(chosen, lambda tokens: self.broker.release("q", tokens))
        for row in self.holders(chosen):
            self.model.release(row)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), timeout_ms=st.sampled_from([10, 5_000]))
    def extend(self, data: st.DataObject, timeout_ms: int) -> None:
        chosen = self.choose(data)
        self.settle(chosen, lambda tokens: self.broker.extend("q", tokens, timeout_ms))
        for row in self.holders(chosen):
            row.due_ms = self.model.now_ms + timeout_ms

    def choose(self, data: st.DataObject) -> list[str]:
        """Tokens of live and of ended leases alike; the latter must be refused."""
        recent = st.sampled_from(self.tokens[-8:])
        return data.draw(st.lists(recent, min_size=1, max_size=4, unique=True))

    def holders(self, tokens: Sequence[str]) -> list[Row]:
        return [row for row in map(self.model.holder, tokens) if row is not None]

    def settle(self, tokens: list[str], call: Callable[[list[str]], object]) -> None:
        lost = [token for token in tokens if self.model.holder(token) is None]
        if not lost:
            call(tokens)
            return
        with pytest.raises(LeaseLost) as caught:
            call(tokens)
        assert sorted(caught.value.tokens) == sorted(lost)

    @rule(ms=st.sampled_from([1, 49, 200, 999, 1_000, 4_000, 30_000]))
    def advance(self, ms: int) -> None:
        """Stop at every instant at which something is due, so that both sides see it then."""
        target = self.model.now_ms + ms
        while self.model.now_ms < target:
            due_ms = self.model.next_due_ms()
            stop = target if due_ms is None else min(target, max(due_ms, self.model.now_ms + 1))
            self.clock.advance(stop - self.model.now_ms)
            self.model.now_ms = stop
            self.model.tick()

    @rule()
    def pause(self) -> None:
        self.broker.pause("q")
        self.model.is_paused = True

    @precondition(lambda self: self.model.is_paused)
    @rule()
    def resume(self) -> None:
        self.broker.resume("q")
        self.model.is_paused = False

    @rule()
    def reopen(self) -> None:
        self.broker.close()
        self.broker = self.open()

    @invariant()
    def depth_agrees(self) -> None:
        depth = self.broker.stats("q")["depth"]
        states = Counter(row.state for row in self.model.rows.values())
        for state in ("ready", "leased", "scheduled"):
            assert depth[state] == states[state], state
        assert depth["replicating"] == depth["dying"] == 0

    @invariant()
    def peek_shows_the_order(self) -> None:
        peeked = [self.model.rows[p.id] for p in self.broker.peek("q", 100)]
        ready = self.model.ready()
        assert [self.model.rank(row) for row in peeked] == [self.model.rank(row) for row in ready]

    @invariant()
    def everything_that_left_is_on_record(self) -> None:
        removed = {removal.id: removal.reason for removal in self.broker.removals("q")}
        assert removed.keys() == self.model.removals.keys()
        for id_, reason in removed.items():
            assert reason in self.model.removals[id_]

    @invariant()
    def the_dead_queue_holds_what_was_sent_there(self) -> None:
        peeked = [p.body for p in self.broker.peek("q.dead", 1_000)]
        assert sorted(peeked) == sorted(self.model.dead)


TestBrokerAgainstModel = BrokerAgainstModel.TestCase
TestBrokerAgainstModel.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, derandomize=False
)
