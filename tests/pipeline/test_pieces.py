"""Files read as Arrow batches: what their footers say is believed, and the rows are as written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq_spark.pieces import Piece, batches
from ebbmq_spark.places import Directory

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS: dict[str, pa.Array] = {
    "one": pa.array(["n1"] * 8),
    "blank": pa.array([""] * 8),
    "one in each group": pa.array(["a"] * 4 + ["b"] * 4),
    "one or none": pa.array(["a", None] * 4),
    "none in one group": pa.array([None] * 4 + ["a"] * 4),
    "none": pa.nulls(8, pa.string()),
    "no number": pa.nulls(8, pa.int64()),
    "no list": pa.nulls(8, pa.list_(pa.string())),
    "lists": pa.array([["a"]] * 8),
    "bytes": pa.array([b"a"] * 8),
    "numbers": pa.array([7] * 8),
    "number or not a number": pa.array([0.5, float("nan")] * 4),
}


def written(path: Path, table: pa.Table, **more: object) -> Directory:
    pq.write_table(table, path / "file.parquet", **more)
    return Directory(path)


def read(files: Directory, schema: pa.Schema, piece: Piece) -> pa.Table:
    return pa.Table.from_batches(batches(files, piece, schema), schema).combine_chunks()


@pytest.mark.parametrize("statistics", [True, False])
def test_columns_that_are_the_same_throughout_are_read_as_they_were_written(
    tmp_path: Path, statistics: bool
) -> None:
    table = pa.table(COLUMNS)
    files = written(tmp_path, table, row_group_size=4, write_statistics=statistics)
    found = read(files, table.schema, Piece("file.parquet"))
    assert repr(found.to_pylist()) == repr(table.to_pylist())
    for part in range(2):
        half = read(files, table.schema, Piece("file.parquet", part, 2))
        assert repr(half.to_pylist()) == repr(table.slice(4 * part, 4).to_pylist())


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_is_asked_for_alone_has_all_its_rows(tmp_path: Path, name: str) -> None:
    table = pa.table(COLUMNS)
    files = written(tmp_path, table, row_group_size=4)
    schema = pa.schema([table.schema.field(name), pa.field("not there", pa.int32())])
    rows = read(files, schema, Piece("file.parquet"))
    assert repr(rows.column(name).to_pylist()) == repr(table.column(name).to_pylist())
    assert rows.column("not there").to_pylist() == [None] * 8


def test_a_text_becomes_what_is_asked_for_whether_or_not_it_is_the_same_throughout(
    tmp_path: Path,
) -> None:
    files = written(tmp_path, pa.table({"same": ["1"] * 3, "other": ["1", "2", "3"]}))
    schema = pa.schema([("same", pa.int64()), ("other", pa.int64())])
    assert read(files, schema, Piece("file.parquet")).to_pylist() == [
        {"same": 1, "other": number} for number in (1, 2, 3)
    ]


def test_a_batch_of_large_rows_has_few_of_them(tmp_path: Path) -> None:
    table = pa.table({"body": [b"%d" % n + bytes(limits.MIB) for n in range(20)]})
    files = written(tmp_path, table, use_dictionary=False, compression="none")
    found = list(batches(files, Piece("file.parquet"), table.schema))
    assert max(batch.nbytes for batch in found) <= 9 * limits.MIB
    assert pa.Table.from_batches(found).equals(table)


@pytest.mark.parametrize("values", [["a", None], [None, None]])
def test_a_row_without_a_value_that_it_must_have_names_file_and_column(
    tmp_path: Path, values: list[str | None]
) -> None:
    files = written(tmp_path, pa.table({"node": pa.array(values, pa.string())}))
    schema = pa.schema([pa.field("node", pa.string(), nullable=False)])
    with pytest.raises(DamagedRecord, match=r"file\.parquet .* column node has rows without"):
        read(files, schema, Piece("file.parquet"))
    schema = pa.schema([pa.field("boot", pa.int64(), nullable=False)])
    with pytest.raises(DamagedRecord, match="column boot"):
        read(files, schema, Piece("file.parquet"))
