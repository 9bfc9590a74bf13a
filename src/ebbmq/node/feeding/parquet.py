"""Parquet files of columns that repeat themselves, made of runs in C (ADR 0041).

A general writer looks at every value of every column several times. In a feed most columns say the
same for thousands of events, so that it is cheaper to look for where they change: `encode_columns`
makes pages of columns, and this makes a file of pages, with what readers need to find them. A group
of rows has one page a column. Where nothing could be compiled, Arrow writes the same tables.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from ebbmq import __version__, speedups
from ebbmq.node.feeding.thrift import binary, i16, i32, i64, several, struct, text, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.feed.table import Column, Table
    from ebbmq.node.feeding.thrift import Value

    #: How, the values, and bits that say which of them count (of ids: their numbers).
    Given = tuple[int, Any, Any]
    #: The encoding, how many values count, what indices mean where there are any, and the page.
    Made = tuple[int, int, bytes | None, bytes]

#: How `encode_columns` treats values, as `_parquet.c` has it: numbers of 32 bits, of 64, and real
#: ones, by a dictionary where few differ; numbers of 64 bits by their differences; codes of texts;
#: ids of messages, by partition and number.
SMALL, WIDE, REAL, NEAR, CODES, IDS = range(6)

#: Pages of columns, without the interpreter; None where it could not be compiled.
encode_columns: Final[Callable[[list[Given]], list[Made]] | None] = speedups.offered(
    "encode_columns"
)

_MAGIC: Final = b"PAR1"
#: Numbers of the format.
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_UNCOMPRESSED, _ZSTD = 0, 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_REQUIRED, _OPTIONAL, _UTF8 = 0, 1, 0
_TYPES: Final = {"int32": 1, "int64": 2, "float64": 5, "text": 6}
_FORMAT: Final = 2
_WRITER: Final = f"ebbmq version {__version__}"
_LENGTH: Final = Struct("<I")
_INT64: Final = Struct("<q")
#: What is smaller than this is not made smaller.
_COMPRESSED_FROM: Final = 256


class Pages(NamedTuple):
    """A column of a group of rows, encoded."""

    column: Column
    encoding: int
    data: bytes
    #: What the indices in the data mean, and how many values that is.
    dictionary: bytes | None = None
    distinct: int = 0
    #: How many rows have no value.
    absent: int = 0
    #: The least and the greatest value, where readers look for ranges.
    bounds: tuple[int, int] | None = None


class Group(NamedTuple):
    """So many rows, by columns."""

    rows: int
    columns: Sequence[Pages]


def of_one_value(column: Column, value: str | int, rows: int) -> Pages:
    """A column that says the same in each row."""
    packed = of_texts((value,)) if isinstance(value, str) else _INT64.pack(value)
    return Pages(column, _RLE_DICTIONARY, b"\1" + _run(rows, 0), packed, 1)


def of_no_value(column: Column, rows: int) -> Pages:
    """A column that no row has a value of."""
    return Pages(column, _PLAIN, _levels(rows, 0), absent=rows)


def every(rows: int) -> bytes:
    """What a page begins with whose column may be absent, where it is in no row."""
    return _levels(rows, 1)


def of_texts(texts: Sequence[str]) -> bytes:
    """Texts as they stand in a dictionary."""
    encoded = [each.encode() for each in texts]
    return b"".join([part for each in encoded for part in (_LENGTH.pack(len(each)), each)])


def file_of(table: Table, groups: Sequence[Group]) -> bytes:
    """A file of some rows of a table."""
    out, at = [_MAGIC], len(_MAGIC)
    known: list[Value] = []
    for group in groups:
        chunks = []
        start = at
        for pages in group.columns:
            chunk = _Chunk(pages, group.rows, at)
            out += chunk.written
            at += chunk.bytes
            chunks.append(chunk)
        known.append(_about_group(group.rows, chunks, start, len(known)))
    about = _about_file(table, known, sum(group.rows for group in groups)).packed
    return b"".join([*out, about, _LENGTH.pack(len(about)), _MAGIC])


class _Chunk:
    """A column of a group as it stands at a place of the file."""

    def __init__(self, pages: Pages, rows: int, at: int) -> None:
        size = len(pages.data) + len(pages.dictionary or b"")
        self._codec = _ZSTD if size >= _COMPRESSED_FROM else _UNCOMPRESSED
        self.written: list[bytes] = []
        self.bytes = self.plain_bytes = 0
        dictionary_at = data_at = at
        if pages.dictionary is not None:
            about = struct({1: i32(pages.distinct), 2: i32(_PLAIN)})
            self._write(_DICTIONARY_PAGE, pages.dictionary, {7: about})
            data_at = at + self.bytes
        levels = {3: i32(_RLE), 4: i32(_RLE)}
        about = struct({1: i32(rows), 2: i32(pages.encoding), **levels})
        self._write(_DATA_PAGE, pages.data, {5: about})
        self.about = self._about(pages, rows, data_at, dictionary_at)

    def _write(self, kind: int, data: bytes, about: dict[int, Value]) -> None:
        is_plain = self._codec == _UNCOMPRESSED
        packed = data if is_plain else pa.Codec("zstd", 1).compress(data, asbytes=True)
        header = struct({1: i32(kind), 2: i32(len(data)), 3: i32(len(packed)), **about}).packed
        self.written += [header, packed]
        self.bytes += len(header) + len(packed)
        self.plain_bytes += len(header) + len(data)

    def _about(self, pages: Pages, rows: int, data_at: int, dictionary_at: int) -> Value:
        column, has_dictionary = pages.column, pages.dictionary is not None
        encodings = [_RLE, pages.encoding, *([_PLAIN] if has_dictionary else [])]
        # By these a reader knows that what the dictionary lacks is nowhere in the group.
        kinds = [(_DICTIONARY_PAGE, _PLAIN)] if has_dictionary else []
        kinds.append((_DATA_PAGE, pages.encoding))
        fields = {
            1: i32(_TYPES[column.kind]),
            2: several([i32(each) for each in encodings]),
            3: several([text(column.name)]),
            4: i32(self._codec),
            5: i64(rows),
            6: i64(self.plain_bytes),
            7: i64(self.bytes),
            9: i64(data_at),
            **({11: i64(dictionary_at)} if has_dictionary else {}),
            12: _statistics(pages),
            13: several([struct({1: i32(k), 2: i32(e), 3: i32(1)}) for k, e in kinds]),
        }
        return struct({2: i64(0), 3: struct(fields)})


def _statistics(pages: Pages) -> Value:
    known = {3: i64(pages.absent)}
    if pages.bounds is not None:
        least, most = map(_INT64.pack, pages.bounds)
        known |= {5: binary(most), 6: binary(least)}
    return struct(known)


def _about_group(rows: int, chunks: Sequence[_Chunk], start: int, number: int) -> Value:
    return struct(
        {
            1: several([chunk.about for chunk in chunks]),
            2: i64(sum(chunk.plain_bytes for chunk in chunks)),
            3: i64(rows),
            5: i64(start),
            6: i64(sum(chunk.bytes for chunk in chunks)),
            7: i16(number),
        }
    )


def _about_file(table: Table, groups: Sequence[Value], rows: int) -> Value:
    root = struct({3: i32(_REQUIRED), 4: text("schema"), 5: i32(len(table.columns))})
    told = [struct({1: text(key), 2: text(each)}) for key, each in table.metadata().items()]
    by_type = struct({1: struct({})})
    return struct(
        {
            1: i32(_FORMAT),
            2: several([root, *map(_about_column, table.columns)]),
            3: i64(rows),
            4: several(groups),
            5: several(told),
            6: text(_WRITER),
            7: several([by_type] * len(table.columns)),
        }
    )


def _about_column(column: Column) -> Value:
    known = {
        1: i32(_TYPES[column.kind]),
        3: i32(_REQUIRED if column.required else _OPTIONAL),
        4: text(column.name),
    }
    if column.kind == "text":
        # That it is UTF-8, as older readers look for it and as newer ones do.
        known |= {6: i32(_UTF8), 10: struct({1: struct({})})}
    return struct(known)


def _run(rows: int, value: int) -> bytes:
    """The same bit for so many rows."""
    return varint(rows << 1) + bytes((value,))


def _levels(rows: int, value: int) -> bytes:
    run = _run(rows, value)
    return _LENGTH.pack(len(run)) + run
