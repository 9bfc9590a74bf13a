"""Histories of many messages are those of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.core.histories import Histories
from ebbmq.model import Timing


@given(st.lists(st.sampled_from([1, 2, 7, 4_095, 4_096, 9_000]), max_size=60))
def test_histories_of_many_messages_are_those_of_each(failed: list[int]) -> None:
    histories = Histories()
    for attempt, seq in enumerate(failed, 1):
        timing = Timing(f"node-{attempt % 3}", attempt, attempt, "retried")
        histories.add(seq, timing, failed[:attempt].count(seq))
    asked = [1, 2, 4_095, 4_096, 20_000]
    alone = {seq: histories.get(seq) for seq in asked if seq in histories}
    assert histories.of(asked) == alone
