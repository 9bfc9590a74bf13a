"""Messages of a snapshot are in files so that who plans opens few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ebbmq.node.feeding.parting import FILE_ROWS, SOON_MS, Parting

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_MS = 1_000_000
TABLE_ROWS = 32 * 1024
LATER_MS = AT_MS + SOON_MS + 1


def table(first: int, reviews: Sequence[int | None]) -> pa.Table:
    return pa.table(
        {
            "message_id": pa.array(range(first, first + len(reviews)), pa.int64()),
            "review_at_ms": pa.array(reviews, pa.int64()),
        }
    )


def files(tables: Sequence[pa.Table]) -> list[pa.Table]:
    parting = Parting(AT_MS)
    found = [whole for each in tables for whole in parting.take(each)]
    return [*found, *parting.rest()]


def is_due(whole: pa.Table) -> bool:
    first = whole["review_at_ms"][0].as_py()
    return first is not None and first <= AT_MS


def test_of_many_messages_one_in_a_hundred_is_due_in_few_files() -> None:
    reviews = [AT_MS if number % 100 == 0 else LATER_MS for number in range(TABLE_ROWS)]
    found = files([table(at * TABLE_ROWS, reviews) for at in range(40)])
    assert sum(is_due(whole) for whole in found) == 1 < len(found)


def test_every_message_is_in_one_file_whenever_it_is_looked_at() -> None:
    reviews = [AT_MS, None, LATER_MS, AT_MS + SOON_MS] * (TABLE_ROWS // 4)
    found = files([table(at * TABLE_ROWS, reviews) for at in range(20)])
    ids = [number for whole in found for number in whole["message_id"].to_pylist()]
    assert sorted(ids) == list(range(20 * TABLE_ROWS))


def test_where_all_are_due_files_are_as_large_as_others() -> None:
    found = files([table(at * TABLE_ROWS, [AT_MS] * TABLE_ROWS) for at in range(40)])
    assert max(map(len, found)) == FILE_ROWS
    assert len(found) <= 40 * TABLE_ROWS // FILE_ROWS + 2


def test_few_messages_are_one_file_in_the_order_they_are_looked_at() -> None:
    (whole,) = files([table(0, [None, LATER_MS, AT_MS])])
    assert whole["review_at_ms"].to_pylist() == [AT_MS, LATER_MS, None]


def test_no_messages_are_no_file() -> None:
    assert files([]) == []
