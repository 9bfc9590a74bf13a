"""Packed latency histories against a dict of tuples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbmq import limits
from ebbmq.core.histories import Histories
from ebbmq.model import Timing

seqs = st.sampled_from([0, 1, 2, 4_095, 4_096, 4_097, 1 << 40])
timings = st.builds(
    Timing,
    st.sampled_from(["a", "b"]),
    st.integers(1, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.sampled_from(["retried", "lease_expired"]),
)
steps = st.lists(
    st.tuples(st.just("add"), seqs, timings)
    | st.tuples(st.just("forget"), seqs, st.none())
    | st.tuples(st.just("replace"), seqs, st.lists(timings, max_size=8))
    | st.tuples(st.just("reopen"), seqs, st.none()),
    max_size=120,
)


@given(steps)
def test_the_last_timings_of_each_message_are_kept(taken) -> None:
    histories, model, failures = Histories(), {}, {}
    for verb, seq, value in taken:
        if verb == "add":
            failures[seq] = failures.get(seq, 0) + 1
            histories.add(seq, value, failures[seq])
            model[seq] = (*model.get(seq, ()), value)[-limits.HISTORY_ENTRIES_MAX :]
        elif verb == "forget":
            histories.forget(seq)
            model.pop(seq, None)
            failures.pop(seq, None)
        elif verb == "replace":
            histories.replace(seq, value)
            model[seq] = tuple(value)
            failures[seq] = len(value)
        else:
            packed = histories.pack()
            histories = Histories()
            histories.restore(packed)
            histories.keep(lambda kept, gone=seq: kept != gone)
            model.pop(seq, None)
            failures.pop(seq, None)
        for known in (0, 1, 2, 4_095, 4_096, 4_097, 1 << 40):
            assert histories.get(known) == model.get(known, ())
            assert (known in histories) == bool(model.get(known))


def test_a_failure_takes_twelve_bytes() -> None:
    histories = Histories()
    for seq in range(10_000):
        histories.add(seq, Timing("node", 1, 5, "retried"), 1)
    assert len(histories.pack()) < 12.1 * 10_000


def test_what_left_does_not_pile_up() -> None:
    histories = Histories()
    for seq in range(10_000):
        histories.add(seq, Timing("node", 1, 5, "retried"), 1)
        if seq % 100:
            histories.forget(seq)
    assert len(histories.pack()) < 12.1 * 200
