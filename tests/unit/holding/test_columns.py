"""Keys and copies of many messages as columns."""

from __future__ import annotations

import numpy as np

from ebbmq.holding.columns import Batch, Columns, Keys, joined, keys_together, together
from ebbmq.holding.contract import Key
from ebbmq.holding.file_format import by_owner

STORE, OTHER = b"s" * 16, b"o" * 16


def keys(store: bytes, **numbers: list[int]) -> Keys:
    return Keys(store, [(int(pid[1:]), np.array(some)) for pid, some in numbers.items()])


def columns(pids: list[int], seqs: list[int]) -> Columns:
    return Columns(
        np.array(pids), np.array(seqs), np.zeros(len(seqs), np.int64), [b"x"] * len(seqs), None
    )


def test_keys_in_columns_are_the_keys_they_stand_for() -> None:
    found = keys(STORE, p7=[1, 2], p9=[5])
    assert list(found) == [Key(STORE, 7, 1), Key(STORE, 7, 2), Key(STORE, 9, 5)]
    assert len(found) == 3
    assert found[2] == Key(STORE, 9, 5)
    assert found[:2] == [Key(STORE, 7, 1), Key(STORE, 7, 2)]


def test_keys_of_several_calls_are_one_call_s_in_their_order() -> None:
    first, second, third = keys(STORE, p7=[3, 1]), keys(STORE, p7=[2]), keys(OTHER, p7=[2])
    for several in ([first], [first, second], [first, third], [list(first), second]):
        assert list(keys_together(several)) == [key for some in several for key in some]


def test_keys_in_columns_and_one_by_one_belong_to_the_same_owners() -> None:
    mixed = keys(STORE, p7=[4, 2], p9=[1], p8=[6])
    told = {
        (owner, tuple(np.arange(len(mixed))[where].tolist()), tuple(seqs.tolist()))
        for owner, where, seqs in by_owner(mixed)
    }
    assert told == {
        (owner, tuple(np.arange(len(mixed))[where].tolist()), tuple(seqs.tolist()))
        for owner, where, seqs in by_owner(list(mixed))
    }


def test_a_batch_has_its_keys_in_the_order_of_its_copies() -> None:
    batch = Batch(STORE, [columns([7, 7, 9, 7], [1, 2, 3, 4]), columns([], []), columns([8], [1])])
    assert list(batch.keys()) == [copy.key for copy in batch]


def test_batches_put_together_are_read_back_if_one_of_them_is_to_be() -> None:
    parts = [columns([7], [1])]
    plain, checked = Batch(STORE, parts), Batch(STORE, parts, read_back=True)
    for batches, is_checked in (([plain, plain], False), ([plain, checked], True)):
        found = together(batches)
        assert isinstance(found, Batch)
        assert found.read_back is is_checked


def test_runs_put_together_are_a_run_only_where_one_follows_the_other() -> None:
    def run(pid: int, first: int, count: int) -> Columns:
        numbers = list(range(first, first + count))
        return columns([pid] * count, numbers)._replace(is_run=True)

    assert joined([run(7, 1, 3), run(7, 4, 2), run(7, 6, 1)]).is_run
    for parts in (
        [run(7, 1, 3), run(7, 5, 2)],
        [run(7, 1, 3), run(8, 4, 2)],
        [run(7, 4, 3), run(7, 1, 3)],
        [run(7, 1, 3), columns([7, 7], [4, 5])],
    ):
        assert not joined(parts).is_run
