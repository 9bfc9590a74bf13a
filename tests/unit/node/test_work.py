"""What waits for a device, and when it is enough for a call."""

from __future__ import annotations

from ebbmq.node.keeping.readers import Readers
from ebbmq.node.keeping.work import COUNT_MAX, OBJECT_COUNT_MAX, Until, Work

MANY = list(range(2 * COUNT_MAX + 1))


def test_deletes_are_taken_in_parts_and_in_order_and_those_given_back_come_first() -> None:
    work = Work()
    work.add_deletes(MANY, position=5, forget=True)
    assert work.to_delete == len(MANY)
    first = work.take_deletes(Until(5, 0), lambda names: names)
    assert [name for each in first for name in each.names] == MANY[:COUNT_MAX]
    assert work.to_delete == len(MANY) - COUNT_MAX
    work.give_back(first)
    again = [work.take_deletes(Until(5, 0), lambda names: names) for _ in range(4)]
    assert [name for some in again for each in some for name in each.names] == MANY
    assert work.to_delete == 0


def test_nothing_is_deleted_before_the_journal_is_on_the_device() -> None:
    work = Work()
    work.add_deletes([1, 2], position=5, forget=False)
    assert not work.may_delete(Until(4, 0), is_archive=False)
    assert work.take_deletes(Until(4, 0), lambda names: names) == []
    assert work.may_delete(Until(5, 0), is_archive=False)


def test_nothing_is_deleted_before_those_have_read_who_may_know_of_it() -> None:
    work, readers = Work(), Readers()
    before = readers.begin({"a", "b"})
    work.add_deletes([1, 2], position=0, forget=False, read=readers.next)
    after = readers.begin({"a"})
    assert not work.may_delete(Until(0, readers.oldest("a")), is_archive=False)
    assert work.take_deletes(Until(0, readers.oldest("a")), lambda names: names) == []
    assert work.may_delete(Until(0, readers.oldest("c")), is_archive=False)
    readers.end(before)
    assert readers.oldest("a") == after
    assert work.may_delete(Until(0, readers.oldest("a")), is_archive=False)


def test_what_is_asked_for_again_meanwhile_is_not_deleted() -> None:
    work = Work()
    work.add_deletes([1, 2, 3], position=0, forget=True)
    (delete,) = work.take_deletes(Until(0, 0), lambda names: [name for name in names if name != 2])
    assert delete.names == [1, 3]
    assert work.to_delete == 0


def test_an_archive_is_asked_for_many_at_once() -> None:
    work = Work()
    work.add_deletes(list(range(OBJECT_COUNT_MAX)), position=0, forget=True)
    work.add_puts(list(range(OBJECT_COUNT_MAX)), calm=True)
    assert work.may_delete(Until(0, 0), is_archive=True)
    assert work.has_company(is_archive=True)


def test_the_first_that_wait_are_taken() -> None:
    work = Work()
    work.add_puts([3, 1, 2], calm=False)
    assert work.urgent.take(2) == [3, 1]
    assert work.urgent.take(2) == [2]
    assert work.urgent.take(2) == []
