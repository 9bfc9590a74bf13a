"""What the facts of a segment tell."""

from __future__ import annotations

from ebbmq.core import held
from ebbmq.core.copies import LOG, Changed, Holding, names_of
from ebbmq.node.obituaries import Seqs, Told


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
