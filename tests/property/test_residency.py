"""Residency under any sequence of calls: bounds hold, a FIFO keeps its head in one piece."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ebbmq import limits
from ebbmq.holding.residency import Residency

COST = 1_000
OVERHEAD = limits.CACHE_ENTRY_OVERHEAD_BYTES
BODY = bytes(COST - OVERHEAD)

importances = st.integers(1, 10)
sizes = st.integers(0, 3_000)


class AnyCalls(RuleBasedStateMachine):
    """Three partitions on one node: a FIFO, one that decays, one that may not page out."""

    def __init__(self):
        super().__init__()
        self.node = Residency(20 * COST)
        self.residents = [
            self.node.open(0, 9 * COST, True, True),
            self.node.open(1, 15 * COST, True, True, decays=True),
            self.node.open(2, 6 * COST, True, False),
        ]
        self.bodies = [{}, {}, {}]
        self.last = [0, 0, 0]

    @rule(pid=st.integers(0, 2), batch=st.lists(st.tuples(importances, sizes), max_size=8))
    def publish(self, pid, batch):
        resident = self.residents[pid]
        payloads = [bytes([seq % 251]) * size for seq, (_, size) in enumerate(batch)]
        if not resident.has_room(sum(map(len, payloads)), len(batch)):
            assert pid == 2
            return
        first = self.last[pid] + 1
        resident.admit_many(first, [importance for importance, _ in batch], payloads)
        for seq, (importance, _) in enumerate(batch, first):
            self.bodies[pid][seq] = (importance, payloads[seq - first])
        self.last[pid] += len(batch)

    @rule(pid=st.integers(0, 2), data=st.data())
    def lease(self, pid, data):
        if not self.bodies[pid]:
            return
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.bodies[pid])), unique=True))
        before = self.residents[pid].hits + self.residents[pid].misses
        known = [self.bodies[pid].pop(seq) for seq in seqs]
        taken = self.residents[pid].take_many(seqs, [importance for importance, _ in known])
        for body, (_, payload) in zip(taken, known, strict=True):
            assert body is None or body == payload
        assert self.residents[pid].hits + self.residents[pid].misses == before + len(seqs)

    @rule(pid=st.integers(0, 2), data=st.data())
    def leave(self, pid, data):
        if self.bodies[pid]:
            seq = data.draw(st.sampled_from(sorted(self.bodies[pid])))
            self.residents[pid].drop(seq, self.bodies[pid].pop(seq)[0])

    @rule(pid=st.integers(0, 2), backwards=st.booleans())
    def read_ahead(self, pid, backwards):
        resident, bodies = self.residents[pid], self.bodies[pid]
        order = sorted(bodies, reverse=backwards)[: resident.wanted(len(bodies))]
        for seq, importance in resident.missing((seq, bodies[seq][0]) for seq in order):
            if not resident.admit(seq, importance, bodies[seq][1]):
                break
            assert resident.get(seq, importance) == bodies[seq][1]

    @rule(pid=st.integers(0, 2), backwards=st.booleans())
    def read_ahead_together(self, pid, backwards):
        resident, bodies = self.residents[pid], self.bodies[pid]
        order = sorted(bodies, reverse=backwards)[: resident.wanted(len(bodies))]
        keys = resident.missing((seq, bodies[seq][0]) for seq in order)
        if resident.admit_ahead(keys, [bodies[seq][1] for seq, _ in keys]) and keys:
            seq, importance = keys[-1]
            assert resident.get(seq, importance) == bodies[seq][1]

    @precondition(lambda self: self.bodies[1])
    @rule()
    def reopen(self):
        self.node.close(1)
        self.residents[1] = self.node.open(1, 15 * COST, True, True, stored_through=self.last[1])

    @invariant()
    def accounts_are_exact_and_bounds_hold(self):
        for resident, bodies in zip(self.residents, self.bodies, strict=True):
            here = [
                payload
                for seq, (importance, payload) in bodies.items()
                if resident.get(seq, importance) is not None
            ]
            assert resident.entries == len(here)
            assert resident.bytes == sum(map(len, here)) + OVERHEAD * len(here)
            assert resident.bytes <= resident.bytes_max
            assert (resident.state(len(bodies)) == "normal") == (len(here) == len(bodies))
        assert self.node.bytes == sum(resident.bytes for resident in self.residents)
        assert self.node.bytes <= self.node.high
        assert self.residents[2].evicted == 0


TestAnyCalls = AnyCalls.TestCase


@given(
    st.lists(st.sampled_from(["publish", "lease", "read", "read together"]), max_size=60),
    st.integers(1, 12),
)
def test_the_resident_part_of_a_fifo_is_one_piece_from_its_head(calls, entries):
    resident = Residency().open(1, entries * COST, True, True)
    head, tail = 1, 0
    for call in calls:
        if call == "publish":
            resident.admit_many(tail + 1, [5] * 3, [BODY] * 3)
            tail += 3
        elif call == "lease" and head <= tail:
            resident.take(head, 5)
            head += 1
        elif call == "read together":
            depth = resident.wanted(tail + 1 - head)
            keys = resident.missing((head + n, 5) for n in range(depth))
            resident.admit_ahead(keys, [BODY] * len(keys))
        else:
            depth = resident.wanted(tail + 1 - head)
            for seq, importance in resident.missing((head + n, 5) for n in range(depth)):
                if not resident.admit(seq, importance, BODY):
                    break
        kept = [seq for seq in range(head, tail + 1) if resident.get(seq, 5) is not None]
        assert kept == list(range(head, head + len(kept)))
