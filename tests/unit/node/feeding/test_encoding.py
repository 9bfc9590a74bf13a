"""Files of the feed are cut so that readers pass over what they do not want."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.node.feeding import arrays


def catalog(rows: int) -> pa.Table:
    return pa.table({"review_at_ms": pa.array(range(rows, 0, -1), pa.int64())}, metadata={"k": "v"})


@pytest.mark.parametrize("rows", [0, 1, 4_096, 4_097, 300_000])
def test_of_messages_by_review_one_in_a_hundred_is_at_most_two_in_a_hundred_to_read(
    rows: int,
) -> None:
    encoded = arrays.encode(arrays.by_review(catalog(rows)), is_by_review=True)
    file = pq.ParquetFile(pa.BufferReader(encoded))
    sizes = [
        file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)
    ]
    assert sum(sizes) == rows
    assert file.read(columns=["review_at_ms"])["review_at_ms"].to_pylist() == list(
        range(1, rows + 1)
    )
    if rows == 300_000:
        assert sizes[0] <= rows * 2 // 100
        assert len(sizes) < 10
