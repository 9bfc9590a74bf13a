from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebbmq.core.ring import Ring

counts = st.one_of(st.integers(0, 50), st.integers(4_000, 4_200))
seqs = st.one_of(
    st.integers(0, 10_000),
    st.integers((1 << 32) - 5_000, (1 << 32) + 5_000),
    st.integers(0, (1 << 64) - 10_000),
)


class RingAgainstList(RuleBasedStateMachine):
    """A ring behaves as a list whose first element is the head."""

    def __init__(self):
        super().__init__()
        self.ring = Ring()
        self.rows = []

    @rule(seq=seqs)
    def push(self, seq):
        self.ring.push(seq)
        self.rows.append(seq)

    @rule(batch=st.lists(seqs, max_size=60))
    def extend(self, batch):
        self.ring.extend(batch)
        self.rows.extend(batch)

    @rule(batch=st.lists(seqs, max_size=60))
    def extend_array(self, batch):
        self.ring.extend_array(np.array(batch, dtype=np.uint64))
        self.rows.extend(batch)

    @rule(first=seqs, count=counts, as_list=st.booleans())
    def extend_range(self, first, count, as_list):
        batch = range(first, first + count)
        self.ring.extend(list(batch) if as_list else batch)
        self.rows.extend(batch)

    @rule(first=seqs, count=counts, step=st.sampled_from([3, 65_535, 65_536]))
    def extend_in_steps(self, first, count, step):
        batch = list(range(first, min(first + count * step, 1 << 64), step))
        self.ring.extend(batch)
        self.rows.extend(batch)

    @rule(n=counts)
    def pop_many(self, n):
        assert self.ring.pop_many(n) == self.rows[:n]
        del self.rows[:n]

    @rule(n=counts, back=st.integers(0, 60))
    def take_some(self, n, back):
        taken = self.ring.take_some(n)
        assert taken == self.rows[: len(taken)]
        back = min(back, len(taken))
        self.ring.give_back(back)
        del self.rows[: len(taken) - back]

    @rule(n=counts)
    def pop_array(self, n):
        assert self.ring.pop_array(n).tolist() == self.rows[:n]
        del self.rows[:n]

    @rule(limit=seqs, n=counts)
    def take_while_below(self, limit, n):
        stop = next((i for i, seq in enumerate(self.rows[:n]) if seq >= limit), n)
        assert self.ring.take_while_below(limit, n) == self.rows[:stop]
        del self.rows[:stop]

    @rule()
    def pop_either_end(self):
        if self.rows:
            assert self.ring.pop() == self.rows.pop(0)
        if self.rows:
            assert self.ring.pop_newest() == self.rows.pop()

    @rule(n=counts, start=counts)
    def peek(self, n, start):
        assert self.ring.peek(n, start) == self.rows[start : start + n]

    @rule(n=counts)
    def drop(self, n):
        self.ring.drop(n)
        del self.rows[:n]

    @rule(n=counts)
    def peek_array(self, n):
        seen = self.ring.peek_array(n).tolist()
        assert seen == self.rows[: len(seen)]
        assert seen or not (n and self.rows)

    @rule(first=seqs, count=counts, n=counts, limit=counts)
    def copy_below(self, first, count, n, limit):
        ring = Ring()
        ring.extend_range(first, count)
        ring.drop(n)
        copied = {}
        wanted = list(range(first, first + count))[n:][:n]
        wanted = [seq for seq in wanted if seq < first + limit]
        assert ring.copy_below(first + limit, n, copied) == len(wanted)
        assert [base + offset for base, part in copied.items() for offset in part] == wanted

    @rule(count=st.integers(9_000, 13_000), stride=st.sampled_from([2, 7, 5_000]))
    def sift(self, count, stride):
        self.extend_range(1, count, as_list=False)
        for _ in range(3):
            self.ring.sift(lambda rows: rows % np.uint64(stride) == 0)
        rows = self.ring.to_numpy().tolist()
        kept = iter(self.rows)
        assert all(row in kept for row in rows)
        gone = Counter(self.rows) - Counter(rows)
        assert not any(row % stride == 0 for row in gone)
        self.rows = rows

    @rule(n=counts)
    def take_newest(self, n):
        wanted = self.rows[::-1][:n]
        assert self.ring.peek_newest(n) == wanted
        assert self.ring.take_newest(n) == wanted
        del self.rows[len(self.rows) - len(wanted) :]

    @rule(
        first=seqs,
        count=st.one_of(counts, st.integers(12_000, 25_000)),
        step=st.sampled_from([1, 3, 65_536]),
        taken=st.integers(0, 30),
        limit=st.integers(0, 25_000),
        rows=st.integers(1, 25_000),
    )
    def hand_over_chunks(self, first, count, step, taken, limit, rows):
        given = list(range(first, min(first + count * step, 1 << 64), step))
        giver = Ring()
        giver.extend(given)
        giver.drop(taken)
        del given[:taken]
        stop = given[min(limit, len(given) - 1)] if given else 0
        while giver:
            before, (head, last) = len(giver), giver.first_chunk()
            went = giver.give_chunks(self.ring, lambda _, end: end < stop, rows)
            assert (head, before - len(giver)) == (given[0], went)
            newest = self.ring.newest()
            assert newest == given[went - 1]
            assert newest == last or newest < stop
            assert giver.head() == (given[went] if went < len(given) else -1)
            self.rows += given[:went]
            del given[:went]
        giver.push(7)
        assert giver.pop() == 7

    @rule()
    def copy(self):
        rows = self.ring.to_numpy()
        assert rows.dtype == np.uint64
        assert rows.tolist() == self.rows
        self.ring = Ring.from_numpy(rows)

    @invariant()
    def ends_agree(self):
        assert len(self.ring) == len(self.rows)
        assert self.ring.head() == (self.rows[0] if self.rows else -1)
        assert self.ring.newest() == (self.rows[-1] if self.rows else -1)


TestRing = RingAgainstList.TestCase
TestRing.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
