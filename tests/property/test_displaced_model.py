from bisect import insort

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ebbmq.core.displaced import Displaced

counts = st.one_of(st.integers(0, 40), st.integers(1_000, 1_100))
places = st.one_of(st.integers(0, 5_000), st.integers(0, (1 << 48) - 1))


class DisplacedAgainstSortedList(RuleBasedStateMachine):
    """A set of displaced rows behaves as a sorted list of pairs."""

    def __init__(self):
        super().__init__()
        self.rows = Displaced()
        self.pairs = []
        self.seq = 0

    @initialize(first=st.sampled_from([0, (1 << 32) - 1_500, 1 << 32]))
    def begin(self, first):
        # Above 2^32 a number takes more bytes.
        self.seq = first

    @rule(place=places)
    def push(self, place):
        self.seq += 1
        self.rows.push(place, self.seq)
        insort(self.pairs, (place, self.seq))

    @rule(first=places, stride=st.sampled_from([-1, 0, 1, 3]), count=counts, as_array=st.booleans())
    def extend(self, first, stride, count, as_array):
        new_places = [max(0, first + stride * i) for i in range(count)]
        new_seqs = list(range(self.seq + 1, self.seq + 1 + count))
        self.seq += count
        self.pairs = sorted([*self.pairs, *zip(new_places, new_seqs, strict=True)])
        if as_array:
            new_places, new_seqs = np.array(new_places, np.uint64), np.array(new_seqs, np.uint64)
        self.rows.extend(new_places, new_seqs)

    @rule(n=counts)
    def pop_many(self, n):
        assert self.rows.pop_many(n) == self.pairs[:n]
        del self.pairs[:n]

    @rule(n=counts, limit=places)
    def pop_below(self, n, limit):
        wanted = [pair for pair in self.pairs[:n] if pair[0] < limit]
        assert self.rows.pop_below(limit, n) == wanted
        del self.pairs[: len(wanted)]

    @rule(stride=st.sampled_from([1, 2, 50]))
    def sift(self, stride):
        self.rows.sift(lambda seqs: seqs % np.uint64(stride) == 0)
        pairs = self.rows.peek(len(self.pairs))
        assert [pair for pair in self.pairs if pair[1] % stride == 0] == [
            pair for pair in pairs if pair[1] % stride == 0
        ]
        assert set(pairs) <= set(self.pairs)
        self.pairs = pairs

    @rule(n=st.integers(1, 5))
    def pop_from_both_ends(self, n):
        for _ in range(min(n, len(self.pairs) // 2)):
            assert self.rows.pop() == self.pairs.pop(0)
            assert self.rows.pop_last() == self.pairs.pop()

    @rule(n=counts)
    def peek(self, n):
        assert self.rows.peek(n) == self.pairs[:n]

    @invariant()
    def heads_agree(self):
        assert len(self.rows) == len(self.pairs)
        assert self.rows.head() == (self.pairs[0] if self.pairs else None)
        assert self.rows.last() == (self.pairs[-1] if self.pairs else None)


TestDisplaced = DisplacedAgainstSortedList.TestCase
TestDisplaced.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
