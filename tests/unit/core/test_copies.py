"""Names of many messages, as ranges where they are consecutive."""

from __future__ import annotations

import pytest

from ebbmq.core.copies import followed_by, name_of, names_of, seqs_of
from ebbmq.core.index import Index
from ebbmq.core.row import READY, ROW
from ebbmq.core.values import as_run


@pytest.mark.parametrize(
    ("numbers", "is_run"),
    [
        (list(range(5, 25)), True),
        (list(range(5, 8)), False),
        ([*range(5, 24), 30], False),
        (list(range(25, 5, -1)), False),
        ([5, 7, 6, *range(8, 25)], False),
        ([5, *range(5, 24)], False),
        ([], False),
    ],
)
def test_many_consecutive_numbers_are_a_range_and_all_others_stay_what_they_are(numbers, is_run):
    found = as_run(numbers)
    assert isinstance(found, range) == is_run
    assert list(found) == numbers


@pytest.mark.parametrize("seqs", [range(3, 40), [3, 4, 9], range(3, 40, 2), range(0)])
def test_names_are_of_the_numbers_they_were_made_of(seqs):
    names = names_of(7, seqs)
    assert list(names) == [name_of(7, seq) for seq in seqs]
    assert {pid: list(some) for pid, some in seqs_of(names).items()} == (
        {7: list(seqs)} if seqs else {}
    )


def test_numbers_of_several_partitions_are_told_apart():
    last = (1 << 48) - 1
    names = range(name_of(7, last - 2), name_of(8, 2))
    assert {pid: list(seqs) for pid, seqs in seqs_of(names).items()} == {
        7: [last - 2, last - 1, last],
        8: [0, 1],
    }


def test_names_that_continue_a_range_make_it_longer_and_others_come_behind():
    assert followed_by((), range(3, 9)) == range(3, 9)
    assert followed_by(range(3, 9), range(9, 12)) == range(3, 12)
    assert followed_by(range(3, 9), range(10, 12)) == [*range(3, 9), 10, 11]
    assert followed_by([1], range(2, 4)) == [1, 2, 3]


def test_rows_of_a_range_are_those_of_its_numbers_whether_in_one_page_or_two():
    index = Index()
    for seq in range(4_000, 4_200):
        fields = [0] * len(ROW.unpack(bytes(ROW.size)))
        fields[0], fields[8] = READY, seq
        index.write(seq, ROW.pack(*fields))
    for run in (range(4_010, 4_020), range(4_090, 4_110), range(4_100, 4_140), range(0)):
        assert index.words_at(run).tolist() == index.words_at(list(run)).tolist()
    index.words_at(range(4_010, 4_020))[:] = 0
    assert index.words_at([4_010]).any()
