"""The holdings against sets, and what a restart makes of their facts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ebbmq.core.copies import LOG, NOTHING, BodyLost, DropCopy, ForgetCopy, Held, PutCopy
from ebbmq.core.holdings import Holdings
from ebbmq.core.located import Located
from ebbmq.core.stretches import Stretches

DURABLE = {LOG, "ssd", "hdd"}
DEVICES = sorted(DURABLE | {"ram", "tmp"})

names = st.integers(0, 5).map(lambda n: (1 + n % 2) << 32 | n * 8)
devices = st.sampled_from(DEVICES)
others = st.sampled_from([device for device in DEVICES if device != LOG])


class Naive:
    """One body as plain sets."""

    def __init__(self):
        self.target, self.min_copies, self.durable = 1, 1, True
        self.copies, self.pending, self.dropping, self.leaving = {LOG}, set(), set(), set()

    def told(self):
        sets = (self.copies, self.pending, self.dropping, self.leaving)
        return (*sets, self.target, self.min_copies, self.durable)

    def may_spare(self, devices):
        rest = self.copies - devices
        return bool(rest & DURABLE if self.durable else rest) and len(rest) >= self.target

    def settle(self):
        """Let go of what is leaving; returns what was."""
        if not self.leaving or self.pending or not self.may_spare(self.leaving):
            return set()
        gone, self.leaving = self.leaving, set()
        self.copies -= gone
        self.dropping |= gone - {LOG}
        return gone

    def keep_what_is_left(self):
        if self.leaving and not self.pending and not self.may_spare(self.leaving):
            self.leaving = set()


class AgainstSets(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.holdings = Holdings()
        for device in DEVICES:
            self.holdings.declare_device(device, durable=device in DURABLE)
        self.model, self.tombstones, self.facts = {}, {}, []
        self.removed = {}

    def live(self, name):
        """No name is given twice."""
        return self.removed.get(name, 0) << 40 | name

    def body(self, name):
        return self.model.setdefault(name, Naive())

    def step(self, step):
        self.facts += step.facts
        return step.effects

    @rule(base=names)
    def remove(self, base):
        name = self.live(base)
        self.removed[base] = self.removed.get(base, 0) + 1
        naive = self.body(name)
        waiting = (naive.copies | naive.pending | naive.dropping) - {LOG}
        effects = self.step(self.holdings.remove(name))
        assert list(effects) == [ForgetCopy(name, device) for device in sorted(waiting)]
        del self.model[name]
        if waiting:
            self.tombstones[name] = (waiting, set())

    @rule(name=names, wanted=st.sets(devices, min_size=1), minimum=st.integers(1, 3))
    def place(self, name, wanted, minimum):
        name = self.live(name)
        naive = self.body(name)
        if naive.told() != Naive().told():
            return
        self.step(self.holdings.place(name, wanted, target=len(wanted), min_copies=minimum))
        naive.pending, naive.leaving = wanted - {LOG}, {LOG} - wanted
        naive.target, naive.min_copies = len(wanted), minimum
        asked = self.holdings.asked(name).effects
        assert asked == tuple(PutCopy(name, device) for device in sorted(naive.pending))

    @rule(name=names, device=devices)
    def add_copy(self, name, device):
        name = self.live(name)
        naive = self.body(name)
        fresh = device not in naive.copies | naive.pending | naive.dropping
        effects = self.step(self.holdings.add_copy(name, device))
        assert effects == ((PutCopy(name, device),) if fresh else ())
        naive.leaving.discard(device)
        if fresh:
            naive.pending.add(device)

    @rule(name=names, device=devices, arrived=st.booleans())
    def answer_copy(self, name, device, arrived):
        name = self.live(name)
        naive = self.body(name)
        asked = device in naive.pending
        verb = self.holdings.copy_acked if arrived else self.holdings.copy_failed
        effects = self.step(verb(name, device))
        gone = {device} if asked and not arrived else set()
        if asked:
            naive.pending.remove(device)
            (naive.copies if arrived else naive.dropping).add(device)
            # The log is not asked to delete: its bytes go when their segment goes.
            naive.dropping.discard(LOG)
            if arrived:
                gone = naive.settle()
        assert effects == tuple(DropCopy(name, each) for each in sorted(gone))

    @rule(name=names, device=devices)
    def drop_copy(self, name, device):
        name = self.live(name)
        naive = self.body(name)
        allowed = device in naive.copies and naive.may_spare(naive.leaving | {device})
        assert self.holdings.may_drop(name, device) == allowed
        effects = self.step(self.holdings.drop_copy(name, device))
        gone = set()
        if allowed or (device in naive.copies and naive.pending):
            naive.leaving.add(device)
            gone = naive.settle()
        assert effects == tuple(DropCopy(name, each) for each in sorted(gone))

    @rule(name=names, wanted=st.sets(devices, min_size=1), most=st.integers(1, 4), spare=devices)
    def rearrange_many(self, name, wanted, most, spare):
        name = self.live(name)
        naive = self.body(name)
        known = naive.copies | naive.pending | naive.dropping
        spared = {spare} - wanted
        changed = self.holdings.rearrange_many([name], sorted(wanted), most, spared)
        self.facts += [Held(name, holding) for holding in changed.held]
        naive.target = most
        naive.leaving -= wanted
        naive.pending |= wanted - known
        outdated = spared & naive.pending
        gone = outdated - {LOG}
        naive.pending -= outdated
        naive.dropping |= gone
        if spared & naive.copies and (naive.pending or naive.may_spare(naive.leaving | spared)):
            naive.leaving |= spared
            gone |= naive.settle()
        if outdated:
            gone |= naive.settle()
            naive.keep_what_is_left()
        assert set(changed.asked) == wanted - known
        assert set(changed.dropped) == gone

    @rule(name=names, device=devices, many=st.booleans())
    def drop_acked(self, name, device, many):
        name = self.live(name)
        if many:
            changed = self.holdings.drops_acked_by(device, [name])
            self.facts += [Held(name, holding) for holding in changed.held]
        else:
            self.step(self.holdings.drop_acked(name, device))
        self.body(name).dropping.discard(device)

    @rule(name=names, device=devices)
    def copy_lost(self, name, device):
        name = self.live(name)
        naive = self.body(name)
        had = device in naive.copies
        effects = self.step(self.holdings.copy_lost(name, device))
        naive.copies.discard(device)
        naive.leaving.discard(device)
        if had:
            naive.keep_what_is_left()
        assert effects == ((BodyLost(name),) if had and not naive.copies else ())

    @rule(name=names, wanted=st.integers(1, 4))
    def set_target(self, name, wanted):
        name = self.live(name)
        self.step(self.holdings.set_target(name, wanted))
        self.body(name).target = wanted

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
        lost = [name for name, naive in self.model.items() if naive.copies == {device}]
        assert sorted(effects) == sorted(BodyLost(name) for name in lost)
        for naive in self.model.values():
            sets = (naive.copies, naive.pending, naive.dropping, naive.leaving)
            if any(device in each for each in sets):
                for each in sets:
                    each.discard(device)
                naive.keep_what_is_left()
        for name, (waiting, _) in list(self.tombstones.items()):
            waiting.discard(device)
            if not waiting:
                del self.tombstones[name]
        assert self.holdings.evict_device(device) == NOTHING

    @rule(again_from=st.integers(0, 40))
    def restart(self, again_from):
        restarted = Holdings()
        for fact in self.facts + self.facts[len(self.facts) - min(again_from, len(self.facts)) :]:
            restarted.restore(fact)
        for device in DEVICES:
            restarted.declare_device(device, durable=device in DURABLE)
        for name, (waiting, _) in list(self.tombstones.items()):
            tombstone = restarted.tombstone(name)
            assert tombstone.waiting >= waiting
            self.tombstones[name] = (set(tombstone.waiting), set())
        assert len(list(restarted.facts())) == len(list(self.holdings.facts()))
        self.holdings = restarted

    @invariant()
    def agrees(self):
        for name, naive in self.model.items():
            holding = self.holdings.of(name)
            assert tuple(holding[:-1]) == naive.told()
            assert holding.leaving <= holding.copies
            assert not holding.copies & holding.pending
            assert self.holdings.copies_acked(name) == len(naive.copies)
            assert self.holdings.is_eligible(name) == (len(naive.copies) >= naive.min_copies)
            wanted = max(naive.target, naive.min_copies)
            staying = len(naive.copies - naive.leaving)
            assert self.holdings.shortage(name) == max(0, wanted - staying - len(naive.pending))
        unusual = [naive for naive in self.model.values() if naive.told() != Naive().told()]
        assert len(self.holdings) == len(unusual)
        for name, (waiting, acked) in self.tombstones.items():
            assert self.holdings.tombstone(name) == (waiting, acked)
        owed = {
            (name, device) for name, (waiting, _) in self.tombstones.items() for device in waiting
        }
        owed |= {
            (name, device)
            for name, naive in self.model.items()
            for device in naive.dropping | naive.pending
        }
        assert {tuple(effect) for effect in self.holdings.owed()} == owed


TestAgainstSets = AgainstSets.TestCase


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(1, 120),
            st.sampled_from([1, 1, 2, 3]),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 600), max_size=60),
)
def test_stretches_are_a_dict_without_zeros_however_they_are_set(changes, asked):
    many, single, expected = Stretches(), Stretches(), {}
    base = (1 << 48) + 4_096 - 200  # so that runs cross from one chunk to the next
    for first, count, step, number in changes:
        run = range(base + first, base + first + count * step, step)
        had = Counter(expected.get(location, 0) for location in run)
        assert dict(many.set_many(run if step == 1 else list(run), number)) == had
        assert Counter(single.set(location, number) for location in run) == had
        expected |= dict.fromkeys(run, number)
    expected = {location: number for location, number in expected.items() if number}
    assert dict(many.items()) == dict(single.items()) == expected
    assert [location for location, _ in many.items()] == sorted(expected)
    assert len(many) == len(single) == len(expected)
    for locations in ([base + each for each in asked], range(base, base + 700)):
        numbers = [expected.get(each, 0) for each in locations]
        assert many.get_many(locations) == numbers
        told = [(each, number) for number, some in many.stretches(locations) for each in some]
        assert sorted(told) == sorted(zip(locations, numbers, strict=True))
    for place, count in ((base, 1), (base + 100, 50), (base + 250, 10_000)):
        later = sorted(item for item in expected.items() if item[0] >= place)[:count]
        found = many.after(place, count)
        assert [(each, number) for number, some in found for each in some] == later
        assert all(
            (left[0], left[1].stop) != (right[0], right[1].start) for left, right in pairwise(found)
        )


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
