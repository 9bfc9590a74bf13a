"""The format of a pack: many messages of one queue as a Parquet file (ADR 0015).

Bodies are PLAIN and uncompressed in one page per row group, so each body stands in the file byte by
byte: a page is [page header][length u32, bytes]*rows, and where a body starts follows from where
its column chunk ends and the lengths behind it. One message is read by asking for its own bytes;
any Parquet reader reads the rest, properties as columns. The footer carries, beside what Parquet
wants:

    ebbmq.format   1
    ebbmq.index    base64(zlib(pid u32*rows, seq u64*rows, envelope_bytes u32*rows,
                   body_bytes u32*rows, crc u32*rows)), little endian

so that opening a store reads one footer per pack and no column. The crc is that of intake, over
headers block (`envelope`) and body.

Changing it: raise FORMAT, keep reading the old one, add a pack of the old kind to tests/upgrade.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq.holding.pack_table import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

FORMAT: Final = b"1"
#: A group is what a Parquet reader must fetch at least; a larger message has one of its own.
GROUP_BYTES: Final = limits.MIB
_GROUP_ROWS: Final = 16_384
#: What the properties of a message take in a group, about.
_ROW_BYTES: Final = 64
_LENGTH_BYTES: Final = 4
_TAIL: Final = Struct("<I4s")
TAIL_BYTES: Final = _TAIL.size
_MAGIC: Final = b"PAR1"

#: Where a message is in a pack, and its checksum.
ROW: Final = np.dtype(
    [
        ("pid", "<u4"),
        ("seq", "<u8"),
        ("envelope_at", "<u4"),
        ("envelope_bytes", "<u4"),
        ("body_at", "<u4"),
        ("body_bytes", "<u4"),
        ("crc", "<u4"),
    ]
)
_INDEXED: Final = ("pid", "seq", "envelope_bytes", "body_bytes", "crc")
Rows = np.ndarray[Any, np.dtype[np.void]]

_RAW: Final = ("envelope", "body")
_SMALL: Final = [name for name in SCHEMA.names if name not in (*_RAW, "headers")]
_COMPRESSION: Final = {
    **dict.fromkeys(_SMALL, "zstd"),
    "headers.key_value.key": "zstd",
    "headers.key_value.value": "zstd",
    **dict.fromkeys(_RAW, "none"),
}
_DICTIONARIES: Final = ["importance", "decay_rate", "type", "headers.key_value.key"]


def write(table: pa.Table) -> tuple[bytes, Rows]:
    """The bytes of a pack with these rows, and where each row is in it."""
    rows = np.zeros(table.num_rows, ROW)
    for name in ("pid", "seq", "crc"):
        rows[name] = _numbers(table.column(name))
    for name in _RAW:
        rows[f"{name}_bytes"] = _lengths(table.column(name))
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(
        sink,
        SCHEMA,
        compression=_COMPRESSION,
        use_dictionary=_DICTIONARIES,
        write_statistics=["seq", "importance", "enqueued_at"],
        data_page_size=1 << 30,  # one page a group
    )
    with writer:
        for first, count in _groups(rows):
            writer.write_table(table.slice(first, count), row_group_size=count)
        writer.add_key_value_metadata({"ebbmq.format": FORMAT, "ebbmq.index": _pack_index(rows)})
    data: bytes = sink.getvalue().to_pybytes()
    _locate(rows, pq.read_metadata(pa.BufferReader(data)))
    _check(rows, table, data)
    return data, rows


def footer_bytes(tail: bytes) -> int:
    """How many bytes at the end of a pack are its footer, by its last `TAIL_BYTES`.

    Raises:
        DamagedRecord: this is not the end of a Parquet file.
    """
    footer, magic = _TAIL.unpack(tail[-TAIL_BYTES:])
    if magic != _MAGIC:
        raise DamagedRecord("a pack does not end as a Parquet file does")
    return int(footer) + TAIL_BYTES


def read_rows(footer: bytes) -> Rows:
    """Where the messages of a pack are, by its footer.

    Raises:
        DamagedRecord: it is no pack, or one that a newer EbbMQ wrote.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        notes = metadata.metadata or {}
        if notes.get(b"ebbmq.format") != FORMAT:
            raise DamagedRecord(
                f"a pack has format {notes.get(b'ebbmq.format')!r}, not {FORMAT!r}",
                "use the version of EbbMQ that wrote it",
            )
        rows = _unpack_index(notes[b"ebbmq.index"], metadata.num_rows)
        _locate(rows, metadata)
    except (pa.ArrowException, KeyError, ValueError, OSError, zlib.error, binascii.Error) as error:
        raise DamagedRecord(
            f"the footer of a pack cannot be read: {error}",
            "its messages have other copies, or none",
        ) from error
    return rows


def read_table(data: bytes) -> pa.Table:
    """All rows of a pack.

    Raises:
        DamagedRecord: it cannot be read.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            return file.read(use_threads=False).cast(SCHEMA)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DamagedRecord(f"a pack cannot be read: {error}") from error


def chosen(table: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Table:
    """Some rows of a pack."""
    # Of an array pyarrow would make a column by way of pandas, where that is installed.
    bits = pa.py_buffer(np.packbits(wanted, bitorder="little"))
    return table.filter(pa.Array.from_buffers(pa.bool_(), len(wanted), [None, bits]))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of several packs as those of one, in the order of their keys."""
    together = pa.concat_tables(tables).sort_by([("pid", "ascending"), ("seq", "ascending")])
    return together.combine_chunks()


def _groups(rows: Rows) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each row group."""
    sizes = rows["envelope_bytes"].astype(np.int64) + rows["body_bytes"] + _ROW_BYTES
    ends = np.cumsum(sizes)
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + GROUP_BYTES, "right")) - first
        count = min(max(1, fitting), _GROUP_ROWS)
        yield first, count
        first += count


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The values of a column without nulls; `to_numpy` would load pandas where there is one."""
    found = [
        np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset :][: len(chunk)]
        for chunk in column.chunks
    ]
    return np.concatenate(found or [np.zeros(0, np.int64)])


def _lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    found = [
        np.diff(np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset :][: len(chunk) + 1])
        for chunk in column.chunks
    ]
    return np.concatenate(found or [np.zeros(0, np.int32)])


def _locate(rows: Rows, metadata: pq.FileMetaData) -> None:
    """Fill in where each envelope and body starts."""
    first = 0
    columns = metadata.num_columns
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        part = rows[first : first + group.num_rows]
        for at, name in enumerate(_RAW, start=columns - len(_RAW)):
            chunk = group.column(at)
            if chunk.path_in_schema != name or chunk.compression != "UNCOMPRESSED":
                raise ValueError(f"column {name} is not where it should be")
            end = chunk.data_page_offset + chunk.total_compressed_size
            lengths = part[f"{name}_bytes"].astype(np.int64)
            behind = np.cumsum((lengths + _LENGTH_BYTES)[::-1])[::-1]
            part[f"{name}_at"] = end - behind + _LENGTH_BYTES
        first += group.num_rows
    if first != len(rows):
        raise ValueError(f"{first} rows, {len(rows)} in the index")


def _check(rows: Rows, table: pa.Table, data: bytes) -> None:
    """Compare the places of both ends of each group with what was to be written."""
    view = memoryview(data)
    bodies = table.column("body")
    for first, count in _groups(rows):
        for number in (first, first + count - 1):
            at, nbytes = int(rows["body_at"][number]), int(rows["body_bytes"][number])
            assert view[at : at + nbytes] == bodies[number].as_py()


def _pack_index(rows: Rows) -> bytes:
    plain = b"".join(rows[name].tobytes() for name in _INDEXED)
    return base64.b64encode(zlib.compress(plain, 1))


def _unpack_index(packed: bytes, count: int) -> Rows:
    plain = zlib.decompress(base64.b64decode(packed, validate=True))
    rows = np.zeros(count, ROW)
    start = 0
    for name in _INDEXED:
        kind = ROW[name]
        rows[name] = np.frombuffer(plain, kind, count, start)
        start += count * kind.itemsize
    if start != len(plain):
        raise ValueError(f"the index has {len(plain)} bytes, {start} are used")
    return rows
