"""Names that wait in line, against a deque."""

from __future__ import annotations

import tracemalloc
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.core.copies import name_of
from ebbmq.node.keeping.line import Line

names = st.one_of(
    st.builds(
        lambda first, count: range(name_of(1, first), name_of(1, first + count)),
        st.integers(0, 40),
        st.integers(0, 30),
    ),
    st.lists(st.integers(0, 50), max_size=20),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), names),
        st.tuples(st.just("put_back"), names),
        st.tuples(st.just("take"), st.integers(0, 40)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_a_line_is_a_deque(changes):
    line, expected = Line(), deque()
    for verb, given_ in changes:
        if verb == "take":
            taken = [expected.popleft() for _ in range(min(given_, len(expected)))]
            assert list(line.take(given_)) == taken
        elif verb == "extend":
            line.extend(given_)
            expected.extend(given_)
        elif verb == "put_back":
            line.put_back(given_)
            expected.extendleft(reversed(given_))
        else:
            line.clear()
            expected.clear()
        assert len(line) == len(expected)
    assert list(line.take(len(expected))) == list(expected)


def test_a_million_in_line_take_next_to_nothing_where_they_are_runs_and_eight_bytes_else():
    for step, most in ((1, 0.1), (2, 10)):
        line = Line()
        tracemalloc.start()
        for first in range(0, 1_000_000 * step, 1_000 * step):
            line.extend([name_of(3, each) for each in range(first, first + 1_000 * step, step)])
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(line) == 1_000_000
        assert grown / len(line) <= most
