"""What the facts of a segment tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.core import held
from ebbmq.core.copies import LOG, Changed, Holding, names_of
from ebbmq.node.obituaries import Seqs, Told

if TYPE_CHECKING:
    from collections.abc import Iterable

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6)


def test_numbers_of_any_pages_are_among_them_once_they_were_added() -> None:
    seqs = Seqs()
    added = [[5, 6, 7], range(4_000, 4_200), [4_100, 3, 90_000], range(0), [5]]
    for some in added:
        seqs.add(some)
    expected = {seq for some in added for seq in some}
    assert {seq for page in seqs.pages() for seq in seqs.of(page)} == expected
    assert [seq for seq in range(100_000) if seq in seqs] == sorted(expected)


def test_of_a_page_those_are_left_that_are_kept() -> None:
    seqs = Seqs()
    seqs.add(range(4_000, 4_200))
    seqs.keep(0, [4_001, 4_003])
    seqs.keep(1, [])
    assert (seqs.pages(), seqs.of(0), seqs.of(1)) == ([0], {4_001, 4_003}, set())


def test_messages_whose_copies_were_told_of_come_a_few_at_a_time_and_in_order() -> None:
    told = Told()
    holding = Holding(copies=frozenset({LOG, "second"}))
    for seqs in (range(4_090, 4_110), range(20, 30), range(4_095, 4_120)):
        for each in held.pack_changed(Changed({holding: names_of(7, seqs)})):
            told.note(each.kind, each.count, each.first, memoryview(b"".join(each.parts)))
    parts = list(told.copied(8))
    assert max(map(len, parts)) == 8
    assert [seq for some in parts for seq in some] == [*range(20, 30), *range(4_090, 4_120)]


def members(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [seq for first, count in runs for seq in range(first, first + count)]


@given(RUNS, SPANS)
def test_each_message_that_left_is_told_once_however_many_segments_span_it(
    runs: list[tuple[int, int]], lengths: list[tuple[int, int]]
) -> None:
    spans = [(low, low + length) for low, length in lengths]
    told = Told()
    told.gone = list(runs)
    told.join_gone()
    found = told.gone_within(spans)
    wanted = {seq for seq in members(runs) if any(low <= seq <= high for low, high in spans)}
    assert members(found) == sorted(wanted)
    # In as few runs as there can be: one is not told in parts.
    ends = {first + count for first, count in found}
    assert not ends & {first for first, _ in found}


def test_runs_that_follow_one_another_are_one() -> None:
    told = Told()
    told.gone = [(5, 1), (1, 2), (3, 2), (9, 1), (5, 1)]
    told.join_gone()
    assert told.gone == [(1, 5), (9, 1)]
    assert told.gone_within([(0, 20), (2, 4), (3, 30)]) == [(1, 5), (9, 1)]
    assert told.gone_within([(2, 4), (9, 9)]) == [(2, 3), (9, 1)]
