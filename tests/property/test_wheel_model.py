import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebbmq.core.wheel import Wheel

aways_ms = st.one_of(
    st.integers(-10, 300), st.integers(0, 70_000), st.integers(0, 1 << 25), st.integers(0, 1 << 35)
)


class WheelAgainstDict(RuleBasedStateMachine):
    """A wheel gives out exactly the rows of a dict whose deadline has come."""

    def __init__(self):
        super().__init__()
        self.now_ms = 1_700_000_000_000
        self.wheel = Wheel(self.now_ms)
        self.deadlines = {}
        self.seq = 0

    def deadline_of(self, seqs):
        return np.array([self.deadlines.get(seq, 0) for seq in seqs.tolist()], dtype=np.uint64)

    def new_rows(self, deadlines):
        seqs = list(range(self.seq + 1, self.seq + 1 + len(deadlines)))
        self.seq += len(seqs)
        self.deadlines.update(zip(seqs, deadlines, strict=True))
        return seqs

    @rule(away_ms=aways_ms)
    def add(self, away_ms):
        deadline_ms = self.now_ms + away_ms
        self.wheel.add(deadline_ms, self.new_rows([deadline_ms])[0])

    @rule(away_ms=aways_ms, count=st.integers(0, 200))
    def add_many(self, away_ms, count):
        deadline_ms = self.now_ms + away_ms
        self.wheel.add_many(deadline_ms, self.new_rows([deadline_ms] * count))

    @rule(aways=st.lists(aways_ms, max_size=40))
    def add_each(self, aways):
        deadlines = [self.now_ms + away_ms for away_ms in aways]
        seqs = self.new_rows(deadlines)
        self.wheel.add_each(np.array(deadlines, np.uint64), np.array(seqs, np.uint64))

    @rule(later_ms=aways_ms, data=st.data())
    def postpone(self, later_ms, data):
        if self.deadlines:
            seq = data.draw(st.sampled_from(sorted(self.deadlines)))
            self.deadlines[seq] += max(0, later_ms)

    @rule(step_ms=aways_ms, budget=st.sampled_from([1, 7, 100, 10_000]))
    def due(self, step_ms, budget):
        self.now_ms += max(0, step_ms)
        out = []
        while (next_ms := self.wheel.next_deadline_ms()) is not None and next_ms <= self.now_ms:
            part = self.wheel.due(self.now_ms, budget, self.deadline_of)
            assert len(part) <= budget
            for seq in part.tolist():
                # What the caller does with a row that was postponed after it was added.
                if self.deadlines[seq] > self.now_ms:
                    self.wheel.add(self.deadlines[seq], seq)
                else:
                    out.append(seq)
        due = [seq for seq, deadline_ms in self.deadlines.items() if deadline_ms <= self.now_ms]
        assert sorted(out) == sorted(due)
        for seq in due:
            del self.deadlines[seq]

    @invariant()
    def counts_agree_and_nothing_is_promised_late(self):
        assert len(self.wheel) == len(self.deadlines)
        if self.deadlines:
            assert self.wheel.next_deadline_ms() <= min(self.deadlines.values())


TestWheel = WheelAgainstDict.TestCase
TestWheel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
