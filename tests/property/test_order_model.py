"""Both orders against a plain list of messages that is sorted anew for every question."""

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ebbmq.core.classes import NEVER, Classes, OrderClass, class_key
from ebbmq.core.grants import Choice
from ebbmq.core.index import Index
from ebbmq.core.order import BandedOrder, ExactOrder
from ebbmq.core.partition import Partition
from ebbmq.core.row import DISPLACED, HIGH, LEASED, PRIVILEGED, RATE_UNIT, READY, ROW
from ebbmq.model import QueueSpec

SPAN_MS = 1_000
#: (importance, rate); at a rate of 1 a message is worth nothing after about SPAN_MS.
RATES = (0, 0.1, 0.2, 0.5, 0.7, 1)

importances = st.sampled_from([1, 2, 5, 9, 10])
kinds = st.tuples(importances, st.sampled_from(RATES))
counts = st.one_of(st.integers(1, 6), st.integers(1, 6), st.integers(90, 130), st.just(3_000))
steps = st.sampled_from([0, 1, 1, 7, 50, 300, 1_500])


@dataclass(slots=True)
class Message:
    seq: int
    known: OrderClass
    place: int
    at_ms: int
    failures: int = 0
    displaced: bool = False


class OrderAgainstSortedList(RuleBasedStateMachine):
    """What both orders have in common: messages come, are taken, die, and come back displaced."""

    def __init__(self):
        super().__init__()
        self.index = Index()
        self.now_ms = 1_000
        self.next_place = 1
        self.waiting: dict[int, Message] = {}
        self.taken: list[Message] = []

    def begin(self, band_width):
        self.classes = Classes(band_width)
        self.order = self.new_order()

    def write(self, message, state=READY):
        flags = DISPLACED if message.displaced else 0
        flags |= PRIVILEGED if self.is_privileged(message) else 0
        enqueued = message.at_ms | message.failures << HIGH
        dead = message.known.number << HIGH
        fields = (message.known.importance, 0, 0, enqueued, dead, 0, message.place)
        self.index.write(message.seq, ROW.pack(state, flags, *fields, 1, 0, 10, 0, 0, 0))

    def is_privileged(self, message):
        return False

    def delivery(self):
        return [m.seq for m in sorted(self.waiting.values(), key=self.sort_key)]

    @rule(kind=kinds, count=st.integers(1, 130))
    def publish(self, kind, count):
        known = self.classes.of_key(class_key(kind[0], round(kind[1] * RATE_UNIT), SPAN_MS))
        first, place = self.index.next_seq, self.next_place
        self.next_place += count
        for i in range(count):
            message = Message(first + i, known, place + i, self.now_ms)
            self.waiting[message.seq] = message
            self.write(message)
        self.order.extend(known, first, count, place, self.now_ms)

    @rule(chosen=st.lists(importances, min_size=1, max_size=2), turns=st.integers(5, 20))
    def publish_in_turn(self, chosen, turns):
        """Several classes of a band take turns, so that it merges them in a run."""
        for turn in range(turns):
            for importance in chosen:
                for rate in RATES:
                    self.publish((importance, rate), 1 + turn % 3)

    @precondition(lambda self: len(self.waiting) < 10_000)
    @rule(kind=kinds, count=st.integers(4_000, 9_000))
    def publish_thousands(self, kind, count):
        self.publish(kind, count)

    @rule(step=steps)
    def wait(self, step):
        self.now_ms += step

    @rule(count=counts, leased=st.sampled_from([True, True, False]))
    def pop(self, count, leased):
        expected = self.delivery()
        popped = self.order.pop(count, self.now_ms)
        assert len(popped) <= count
        alive = [seq for seq in popped if seq in self.waiting]
        assert alive == expected[: len(alive)]
        if len(popped) < count:
            assert len(alive) == len(expected)
        for seq in alive:
            self.take(seq, leased)

    @rule(times=st.sampled_from([1, 2, 5, 70, 200]), leased=st.sampled_from([True, True, False]))
    def pop_one(self, times, leased):
        expected = iter(self.delivery())
        for _ in range(times):
            seq = self.order.pop_one(self.now_ms)
            if seq < 0:
                assert not self.waiting
                return
            if seq in self.waiting:
                assert seq == next(expected)
                self.take(seq, leased)

    def take(self, seq, leased):
        message = self.waiting.pop(seq)
        if leased:
            self.write(message, LEASED)
            self.taken.append(message)
        else:
            self.index.free(*self.index.locate(seq))

    @rule(n=st.integers(1, 40), failed=st.booleans(), to_tail=st.booleans(), data=st.data())
    def give_back(self, n, failed, to_tail, data):
        for _ in range(min(n, len(self.taken))):
            at = data.draw(st.integers(0, len(self.taken) - 1)) if n < 4 else 0
            message = self.taken.pop(at)
            message.failures += failed
            message.displaced = True
            if to_tail:
                message.place = self.next_place
                self.next_place += 1
            self.write(message)
            self.waiting[message.seq] = message
            self.order.enter(message.seq, message.place, self.now_ms)

    @rule(stride=st.integers(1, 5), start=st.integers(0, 30), count=st.integers(1, 9_000))
    def die(self, stride, start, count):
        """Rows that leave while they wait stay behind as ghosts."""
        for seq in list(self.waiting)[start : start + count : stride]:
            del self.waiting[seq]
            self.index.free(*self.index.locate(seq))

    @rule(count=st.one_of(st.integers(0, 5), st.integers(0, 600)))
    def peek(self, count):
        assert self.order.peek(count, self.now_ms) == self.delivery()[:count]

    @rule(budget=st.sampled_from([1, 10, 1_000, NEVER]))
    def cross(self, budget):
        self.order.cross(self.now_ms, budget)
        if budget == NEVER:
            assert self.order.next_crossing_ms() > self.now_ms

    @rule()
    def rebuild(self):
        plain = sorted((m for m in self.waiting.values() if not m.displaced), key=lambda m: m.seq)
        self.order = self.new_order()
        self.order.load(
            np.array([m.known.number for m in plain], dtype=np.int64),
            np.array([m.seq for m in plain], dtype=np.uint64),
            np.array([m.at_ms for m in plain], dtype=np.uint64),
            self.now_ms,
        )
        for message in self.waiting.values():
            if message.displaced:
                self.order.enter(message.seq, message.place, self.now_ms)

    def teardown(self):
        if hasattr(self, "order"):
            self.pop(100_000, leased=False)
            assert self.order.pop(1, self.now_ms) == []
            assert self.order.pop_oldest(self.now_ms) == -1
            assert self.order.pop_least(self.now_ms) == -1


class BandedAgainstSortedList(OrderAgainstSortedList):
    """Highest band first, inside a band by place."""

    @initialize(band_width=st.sampled_from([1.0, 0.5, 3.0]), penalty=st.sampled_from([0, 0, 1, 2]))
    def begin_banded(self, band_width, penalty):
        self.penalty = penalty
        self.begin(band_width)

    def new_order(self):
        return BandedOrder(self.index, self.classes, self.penalty)

    def band(self, message):
        band = message.known.band_at(self.now_ms - message.at_ms)
        return max(min(1, band), band - message.failures * self.penalty)

    def sort_key(self, message):
        return -self.band(message), message.place

    @rule()
    def pop_oldest(self):
        seq = self.order.pop_oldest(self.now_ms)
        oldest = min(self.waiting.values(), key=lambda m: m.place, default=None)
        assert seq == (oldest.seq if oldest else -1)
        if oldest:
            self.take(seq, leased=True)

    @rule()
    def pop_least(self):
        seq = self.order.pop_least(self.now_ms)
        assert (seq < 0) == (not self.waiting)
        if seq < 0:
            return
        popped = self.waiting[seq]
        plain = [m for m in self.waiting.values() if not m.displaced]
        lowest = min((self.band(m) for m in plain), default=NEVER)
        # A displaced row counts where it stands, which may be higher than where it belongs.
        assert self.band(popped) <= lowest
        assert all(m.place >= popped.place for m in plain if self.band(m) == self.band(popped))
        self.take(seq, leased=True)


class ExactAgainstSortedList(OrderAgainstSortedList):
    """Highest value first, then the freshest, then the one that failed least."""

    @initialize()
    def begin_exact(self):
        self.begin(0)

    def new_order(self):
        return ExactOrder(self.index, self.classes)

    def sort_key(self, message):
        value = message.known.value_at(self.now_ms - message.at_ms)
        return -value, -message.at_ms, message.failures, -message.seq

    @rule()
    def pop_oldest(self):
        seq = self.order.pop_oldest(self.now_ms)
        assert (seq < 0) == (not self.waiting)
        if seq >= 0:
            assert self.waiting[seq].at_ms == min(m.at_ms for m in self.waiting.values())
            self.take(seq, leased=True)

    @rule()
    def pop_least(self):
        expected = self.delivery()
        assert self.order.pop_least(self.now_ms) == (expected[-1] if expected else -1)
        if expected:
            self.take(expected[-1], leased=True)


class Whole:
    """The order of a partition of whose rows some stand aside, for who may have all of them."""

    def __init__(self, partition):
        self.partition = partition

    def recall(self, pop, *given):
        if self.partition.aside is not None:
            found = getattr(self.partition.aside, pop)(*given)
            found = found if isinstance(found, list) else [found]
            self.partition.put_back(found, given[-1])
        return self.partition.order

    def pop(self, count, now_ms):
        return self.recall("pop", count, now_ms).pop(count, now_ms)

    def pop_one(self, now_ms):
        return self.recall("pop", 1, now_ms).pop_one(now_ms)

    def peek(self, count, now_ms):
        return self.recall("pop", count, now_ms).peek(count, now_ms)

    def pop_oldest(self, now_ms):
        return self.recall("pop_oldest", now_ms).pop_oldest(now_ms)

    def pop_least(self, now_ms):
        return self.recall("pop_least", now_ms).pop_least(now_ms)

    def __getattr__(self, name):
        return getattr(self.partition.order, name)


class SomeStandAside:
    """Beside who may have everything there is a consumer who may not have every third message."""

    def new_order(self):
        order = super().new_order()
        spec = QueueSpec(
            "q", band_width=self.classes.band_width, failure_penalty=getattr(self, "penalty", 0)
        )
        self.partition = Partition(1, spec, 1)
        self.partition.index, self.partition.classes = self.index, self.classes
        self.partition.order = order
        return Whole(self.partition)

    def is_privileged(self, message):
        return message.seq % 3 == 0

    @rule(count=counts, leased=st.sampled_from([True, True, False]))
    def pop_others(self, count, leased):
        expected = [seq for seq in self.delivery() if seq % 3]
        choice = Choice(None, None, privileged=False)
        taken = []
        while len(taken) < count:
            chosen = choice.next(self.partition, count - len(taken), self.now_ms)
            if not chosen:
                assert len(taken) == len(expected)
                break
            taken += [seq for seq in chosen if seq in self.waiting]
        choice.leave(self.partition, self.now_ms)
        assert taken == expected[: len(taken)]
        for seq in taken:
            self.take(seq, leased)
        for message in self.waiting.values():
            # It may stand by itself now, outside of any ring.
            message.displaced = message.displaced or self.is_privileged(message)


class BandedWithSomeAside(SomeStandAside, BandedAgainstSortedList):
    """Highest band first, inside a band by place."""


class ExactWithSomeAside(SomeStandAside, ExactAgainstSortedList):
    """Highest value first, then the freshest, then the one that failed least."""


TestBandedWithSomeAside = BandedWithSomeAside.TestCase
TestBandedWithSomeAside.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestExactWithSomeAside = ExactWithSomeAside.TestCase
TestExactWithSomeAside.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestBandedOrder = BandedAgainstSortedList.TestCase
TestBandedOrder.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestExactOrder = ExactAgainstSortedList.TestCase
TestExactOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
