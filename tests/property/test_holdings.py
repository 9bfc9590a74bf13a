"""The holdings against a dict of sets, and what a restart makes of their facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ebbmq.core.copies import LOG, NOTHING, BodyLost, DropCopy, ForgetCopy, PutCopy
from ebbmq.core.holdings import Holdings
from ebbmq.core.located import Located

DURABLE = {LOG, "ssd", "hdd"}
DEVICES = sorted(DURABLE | {"ram", "tmp"})

bodies = st.integers(0, 5).map(lambda n: (1 + n % 2) << 32 | n * 8)
devices = st.sampled_from(DEVICES)
others = st.sampled_from([device for device in DEVICES if device != LOG])


class Naive:
    """One body as plain sets."""

    def __init__(self):
        self.needs, self.target, self.min_copies, self.durable = 1, 1, 1, True
        self.copies, self.pending, self.dropping = {LOG}, set(), set()

    def lasting(self):
        return (self.copies, self.dropping, self.target, self.min_copies, self.durable)


class AgainstSets(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.holdings = Holdings()
        for device in DEVICES:
            self.holdings.declare_device(device, durable=device in DURABLE)
        self.model, self.tombstones, self.facts = {}, {}, []
        self.next_seq = 0

    def body(self, body):
        return self.model.setdefault(body, Naive())

    def step(self, step):
        self.facts += step.facts
        return step.effects

    @rule(body=bodies, count=st.integers(1, 4))
    def share(self, body, count):
        self.holdings.share(body, count)
        self.body(body).needs = count

    @rule(body=bodies)
    def let_go(self, body):
        naive = self.body(body)
        assert self.holdings.let_go(body) == (naive.needs == 1)
        if naive.needs > 1:
            naive.needs -= 1
            return
        self.next_seq += 1
        name = (1, self.next_seq)
        effects = self.step(self.holdings.remove(body, name))
        waiting = (naive.copies | naive.pending | naive.dropping) - {LOG}
        assert sorted(effects) == [ForgetCopy(name, device) for device in sorted(waiting)]
        del self.model[body]
        if waiting:
            self.tombstones[name] = (waiting, set())

    @rule(body=bodies, copies=st.sets(devices, min_size=1), minimum=st.integers(1, 3))
    def place(self, body, copies, minimum):
        naive = self.body(body)
        if naive.pending or naive.dropping:
            return
        durable = bool(copies & DURABLE)
        self.step(self.holdings.place(body, copies, target=2, min_copies=minimum, durable=durable))
        naive.copies, naive.target, naive.min_copies = set(copies), 2, minimum
        naive.durable = durable

    @rule(body=bodies, device=devices)
    def add_copy(self, body, device):
        naive = self.body(body)
        fresh = device not in naive.copies | naive.pending | naive.dropping
        effects = self.step(self.holdings.add_copy(body, device))
        assert effects == ((PutCopy(body, device),) if fresh else ())
        if fresh:
            naive.pending.add(device)

    @rule(body=bodies, device=devices, arrived=st.booleans())
    def answer_copy(self, body, device, arrived):
        naive = self.body(body)
        asked = device in naive.pending
        verb = self.holdings.copy_acked if arrived else self.holdings.copy_failed
        effects = self.step(verb(body, device))
        assert effects == ((DropCopy(body, device),) if asked and not arrived else ())
        if asked:
            naive.pending.remove(device)
            (naive.copies if arrived else naive.dropping).add(device)

    @rule(body=bodies, device=devices)
    def drop_copy(self, body, device):
        naive = self.body(body)
        rest = naive.copies - {device}
        allowed = device in naive.copies and bool(rest & DURABLE if naive.durable else rest)
        effects = self.step(self.holdings.drop_copy(body, device))
        assert effects == ((DropCopy(body, device),) if allowed else ())
        if allowed:
            naive.copies.remove(device)
            naive.dropping.add(device)

    @rule(body=bodies, device=devices)
    def drop_acked(self, body, device):
        self.step(self.holdings.drop_acked(body, device))
        self.body(body).dropping.discard(device)

    @rule(body=bodies, wanted=st.integers(1, 4))
    def set_target(self, body, wanted):
        self.step(self.holdings.set_target(body, wanted))
        self.body(body).target = wanted

    @rule(device=others, data=st.data())
    def removal_acked(self, device, data):
        if not self.tombstones:
            return
        name = data.draw(st.sampled_from(sorted(self.tombstones)))
        self.step(self.holdings.removal_acked(name, device))
        waiting, acked = self.tombstones[name]
        if device in waiting:
            waiting.remove(device)
            acked.add(device)
            if not waiting:
                del self.tombstones[name]

    @rule(device=others)
    def evict_device(self, device):
        effects = self.step(self.holdings.evict_device(device))
        lost = [body for body, naive in self.model.items() if naive.copies == {device}]
        assert sorted(effects) == sorted(BodyLost(body) for body in lost)
        for naive in self.model.values():
            for devices in (naive.copies, naive.pending, naive.dropping):
                devices.discard(device)
        for name, (waiting, _) in list(self.tombstones.items()):
            waiting.discard(device)
            if not waiting:
                del self.tombstones[name]
        assert self.holdings.evict_device(device) == NOTHING

    @rule(body=bodies, to=st.integers(9, 12))
    def relocate(self, body, to):
        naive = self.model.pop(body, None)
        if naive is None:
            return
        to = 3 << 32 | to
        if to in self.model:
            self.model[body] = naive
            return
        self.step(self.holdings.relocate(body, to))
        self.model[to] = naive

    @rule(again_from=st.integers(0, 40))
    def restart(self, again_from):
        restarted = Holdings()
        for fact in self.facts + self.facts[-again_from:]:
            restarted.restore(fact)
        for body, naive in self.model.items():
            restarted.share(body, naive.needs)
            naive.pending.clear()
        for device in DEVICES:
            restarted.declare_device(device, durable=device in DURABLE)
        for _, acked in self.tombstones.values():
            acked.clear()
        for name in self.tombstones:
            tombstone = restarted.tombstone(name)
            self.tombstones[name] = (set(tombstone.waiting), set())
        assert len(list(restarted.facts())) == len(list(self.holdings.facts()))
        self.holdings = restarted

    @invariant()
    def agrees(self):
        for body, naive in self.model.items():
            holding = self.holdings.of(body)
            assert holding.needs == naive.needs
            assert holding.pending == naive.pending
            assert (
                holding.copies,
                holding.dropping,
                holding.target,
                holding.min_copies,
                holding.durable,
            ) == naive.lasting()
            assert self.holdings.copies_acked(body) == len(naive.copies)
            assert self.holdings.is_eligible(body) == (len(naive.copies) >= naive.min_copies)
            wanted = max(naive.target, naive.min_copies)
            assert self.holdings.shortage(body) == max(
                0, wanted - len(naive.copies) - len(naive.pending)
            )
        normal = Naive()
        unusual = [
            naive
            for naive in self.model.values()
            if naive.needs > 1 or naive.pending or naive.lasting() != normal.lasting()
        ]
        assert len(self.holdings) == len(unusual)
        for name, (waiting, acked) in self.tombstones.items():
            assert self.holdings.tombstone(name) == (waiting, acked)
        owed = {
            (name, device) for name, (waiting, _) in self.tombstones.items() for device in waiting
        }
        owed |= {(body, device) for body, naive in self.model.items() for device in naive.dropping}
        assert {tuple(effect) for effect in self.holdings.owed()} == owed


TestAgainstSets = AgainstSets.TestCase


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=400))
def test_located_is_a_dict_without_zeros(changes):
    located, expected = Located(), {}
    for place, number in changes:
        location = (place % 3) << 32 | place
        located.set(location, number)
        expected[location] = number
        assert located.get(location) == number
    expected = {location: number for location, number in expected.items() if number}
    assert list(located.items()) == sorted(expected.items())
    assert len(located) == len(expected)
