"""Files of events made of runs say what files made by Arrow say, to whoever reads them."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.feed.events import EVENTS
from ebbmq.feed.table import Column, Table, optional
from ebbmq.node.feeding import arrays, event_files, parquet
from ebbmq.node.feeding.event_files import EventFile, by_hour
from ebbmq.node.feeding.expanding import ABSENT, Expanded, Texts

needs_encoder = pytest.mark.skipif(parquet.encode_columns is None, reason="nothing is compiled")

HOUR_MS = 3_600_000
#: Sizes at which blocks, groups of bits and dictionaries end.
ROWS = st.integers(1, 40) | st.sampled_from([127, 128, 129, 130, 257, 1_000])
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def columns(draw: st.DrawFn, values: st.SearchStrategy, kind: type, rows: int) -> np.ndarray:
    """Values that repeat, or follow each other, or are any."""
    some = draw(st.lists(values, min_size=1, max_size=9))
    how = draw(st.sampled_from(["runs", "mixed", "steps", "any"]))
    if how == "runs":
        lengths = [draw(st.integers(1, 60)) for _ in some]
        out = np.resize(np.repeat(np.array(some, dtype=kind), lengths), rows)
    elif how == "mixed":
        out = np.array(some, dtype=kind)[np.random.default_rng(rows).integers(0, len(some), rows)]
    elif how == "steps" and values in (INT32, INT64):
        with np.errstate(over="ignore"):
            out = (np.array(some[0], dtype=kind) + np.arange(rows, dtype=kind)).astype(kind)
    else:
        out = np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=kind)
    return out


@st.composite
def expanded(draw: st.DrawFn) -> tuple[Expanded, Texts]:
    """Events of which some have what others lack."""
    rows = draw(ROWS)
    texts = Texts()
    codes = st.sampled_from([texts.code(each) for each in ("a", "b", "ünï", "", "x" * 300)])
    found = {
        "number": draw(columns(INT64, np.int64, rows)),
        "at_ms": draw(columns(st.integers(0, HOUR_MS - 1), np.int64, rows)),
        "pid": draw(columns(st.integers(0, 2) | st.integers(0, 2**32 - 1), np.int64, rows)),
        "seq": draw(columns(INT64, np.int64, rows)),
        "queue": draw(columns(codes, np.int32, rows)),
        "partition": draw(columns(INT32, np.int32, rows)),
        "event": draw(columns(codes, np.int32, rows)),
        "generation": draw(columns(INT32, np.int32, rows)),
    }
    kinds = {column.name: column.kind for column in EVENTS.columns}
    whole, present = [], {}
    for name, absent in ABSENT.items():
        how = draw(st.sampled_from(["nowhere", "everywhere", "bits", "by value"]))
        if how == "nowhere":
            continue
        kind = kinds[arrays.CALLED.get(name, name)]
        values = {"text": codes, "int32": INT32, "int64": INT64, "float64": st.floats()}[kind]
        stored = {"text": np.int32, "int32": np.int32, "int64": np.int64, "float64": np.float64}
        found[name] = draw(columns(values, stored[kind], rows))
        if how == "everywhere":
            whole.append(name)
        elif how == "bits":
            bits = draw(columns(st.integers(0, 1), np.int32, rows)).astype(bool)
            present[name] = np.packbits(bits, bitorder="little")
        else:
            found[name][draw(columns(st.integers(0, 1), np.int32, rows)) > 0] = absent
    return Expanded(found, whole, present), texts


def by_arrow(told: list[Expanded], texts: Texts) -> pa.Table:
    table = arrays.events_table(told, texts, "n", 3)
    return pq.read_table(pa.BufferReader(arrays.encode(table)))


def by_runs(told: list[Expanded], texts: Texts) -> bytes:
    file = EventFile(texts, "n", 3)
    for each in told:
        file.add(each)
    made = file.encoded()
    assert isinstance(made, bytes)
    assert file.rows == sum(len(each.columns["number"]) for each in told)
    return made


def same(first: pa.Table, second: pa.Table) -> None:
    """Equal to the bit, but that every number that is none is one."""
    assert first.schema.equals(second.schema, check_metadata=True)
    for name in first.column_names:
        ours, theirs = first[name].combine_chunks(), second[name].combine_chunks()
        if pa.types.is_floating(ours.type):
            ours, theirs = (each.fill_null(-1.25e300).to_numpy() for each in (ours, theirs))
            np.testing.assert_array_equal(ours, theirs, name)
        else:
            assert ours.equals(theirs), name


@needs_encoder
@settings(max_examples=300, deadline=None)
@given(expanded())
def test_a_file_made_of_runs_reads_like_one_by_arrow(events: tuple[Expanded, Texts]) -> None:
    told, texts = events
    same(pq.read_table(pa.BufferReader(by_runs([told], texts))), by_arrow([told], texts))


@needs_encoder
@settings(max_examples=25, deadline=None)
@given(expanded())
def test_others_read_it_as_well(tmp_path_factory, events: tuple[Expanded, Texts]) -> None:
    told, texts = events
    path = tmp_path_factory.mktemp("runs") / "events.parquet"
    path.write_bytes(by_runs([told, told], texts))
    expected = by_arrow([told, told], texts)
    same(
        duckdb.sql(f"from '{path}'").to_arrow_table().cast(expected.schema)
        .replace_schema_metadata(expected.schema.metadata),
        expected,
    )  # fmt: skip
    found = pl.read_parquet(path).to_arrow().cast(expected.schema)
    same(found.replace_schema_metadata(expected.schema.metadata), expected)


@needs_encoder
def test_a_file_says_which_rows_of_it_a_reader_may_pass_over() -> None:
    texts = Texts()
    groups = []
    for first, queue in ((1, "a"), (1_001, "b")):
        code = np.full(1_000, texts.code(queue), dtype=np.int32)
        numbers = np.arange(first, first + 1_000)
        groups.append(
            Expanded(
                {
                    "number": numbers, "at_ms": numbers * 10, "pid": numbers, "seq": numbers,
                    "queue": code, "partition": code, "event": code, "generation": code,
                    "bytes": numbers,
                },
                ["bytes"],
            )
        )  # fmt: skip
    made = pq.ParquetFile(pa.BufferReader(by_runs(groups, texts)))
    assert made.metadata.num_row_groups == 2
    known = [
        {
            each.path_in_schema: each
            for each in map(made.metadata.row_group(group).column, range(len(EVENTS.columns)))
        }
        for group in range(2)
    ]
    assert [(each["seq"].statistics.min, each["seq"].statistics.max) for each in known] == [
        (1, 1_000), (1_001, 2_000),
    ]  # fmt: skip
    assert known[1]["at_ms"].statistics.min == 10_010
    assert known[0]["reason"].statistics.null_count == 1_000
    assert known[0]["bytes"].statistics.null_count == 0
    assert set(known[0]["queue"].encodings) == {"RLE", "RLE_DICTIONARY", "PLAIN"}
    assert known[0]["message_id"].encodings[-1] == "DELTA_BYTE_ARRAY"
    assert made.metadata.metadata == {
        key.encode(): value.encode() for key, value in EVENTS.metadata().items()
    }
    # What is the same in all rows takes no room.
    assert known[0]["queue"].total_compressed_size < 60
    found = made.read(columns=["queue", "bytes"])
    assert found["queue"].to_pylist() == ["a"] * 1_000 + ["b"] * 1_000
    assert found["bytes"].to_pylist() == list(range(1, 2_001))


@needs_encoder
def test_numbers_of_which_nearly_all_differ_are_written_without_a_dictionary() -> None:
    rows = 100_000
    wild = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, rows)
    table = Table(
        "t", 1, (Column("w", "int64", ""), optional("s", "int32", ""), Column("r", "float64", ""))
    )
    given = [
        (parquet.WIDE, wild, None),
        (parquet.SMALL, wild.astype(np.int32), np.full((rows + 7) // 8, 0x55, dtype=np.uint8)),
        (parquet.REAL, wild / 3, None),
    ]
    made = parquet.encode_columns(given)
    assert [each[0] for each in made] == [5, 0, 0]
    pages = [
        parquet.Pages(column, encoding, data, absent=rows - count)
        for column, (encoding, count, _, data) in zip(table.columns, made, strict=True)
    ]
    file = parquet.file_of(table, [parquet.Group(rows, pages)])
    found = pq.read_table(pa.BufferReader(file))
    assert found["w"].to_numpy().tolist() == wild.tolist()
    assert found["r"].to_numpy().tolist() == (wild / 3).tolist()
    assert found["s"].to_pylist()[:4] == [
        int(wild.astype(np.int32)[0]), None, int(wild.astype(np.int32)[2]), None,
    ]  # fmt: skip


@needs_encoder
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((), TypeError),
        ([1], TypeError),
        ([(0, np.zeros(1, np.int32))], TypeError),
        ([(6, np.zeros(1, np.int32), None)], ValueError),
        ([(-1, np.zeros(1, np.int32), None)], ValueError),
        ([(0, np.zeros(1, np.int64), None)], ValueError),
        ([(1, np.zeros(1, np.int32), None)], ValueError),
        ([(1, np.zeros(0, np.int64), None)], ValueError),
        ([(1, np.zeros(9, np.int64), np.zeros(1, np.uint8))], ValueError),
        ([(5, np.zeros(2, np.int64), None)], ValueError),
        ([(5, np.zeros(2, np.int64), np.zeros(1, np.int64))], ValueError),
        ([(1, np.zeros(8, np.int64)[::2], None)], (ValueError, BufferError)),
        ([(1, "text", None)], TypeError),
    ],
)
def test_what_is_no_column_is_refused(given: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        parquet.encode_columns(given)


def test_events_of_several_hours_go_to_the_files_of_theirs() -> None:
    numbers = np.arange(1, 21)
    told = Expanded(
        {"number": numbers, "at_ms": numbers % 3 * HOUR_MS, "bytes": numbers},
        ["bytes"],
        {"ttl_ms": np.packbits(numbers % 2 == 0, bitorder="little")},
    )
    found = dict(by_hour(told))
    assert sorted(found) == [0, HOUR_MS, 2 * HOUR_MS]
    for hour_ms, chosen in found.items():
        mine = numbers[numbers % 3 == hour_ms // HOUR_MS]
        assert chosen.columns["number"].tolist() == mine.tolist()
        bits = np.unpackbits(chosen.present["ttl_ms"], bitorder="little")[: len(mine)]
        assert bits.tolist() == (mine % 2 == 0).tolist()
    one = told._replace(columns=told.columns | {"at_ms": numbers + HOUR_MS})
    assert list(by_hour(one)) == [(HOUR_MS, one)]


def test_without_a_compiler_arrow_writes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "encode_columns", None)
    assert event_files.room_for_events() is None
    texts = Texts()
    code = np.full(5, texts.code("q"), dtype=np.int32)
    numbers = np.arange(1, 6)
    told = Expanded(
        {
            **dict.fromkeys(("number", "at_ms", "pid", "seq"), numbers),
            **dict.fromkeys(("queue", "partition", "event", "generation"), code),
        }
    )
    file = EventFile(texts, "n", 3)
    file.add(told)
    same(pq.read_table(pa.BufferReader(file.encoded())), by_arrow([told], texts))
