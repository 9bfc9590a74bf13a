"""The archive of an object device as a table: bodies with their properties, without what is dead.

A message may be in two packs while one of them is rewritten: its row in the pack of the higher
number is the copy that counts, so `pack` is a column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq.errors import DamagedRecord
from ebbmq.feed import layout
from ebbmq.holding import dead_marks, pack
from ebbmq_spark import pieces, places
from ebbmq_spark.connector import columns, workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from pyspark.sql.types import StructType

    from ebbmq_spark.places import Files, Place

_PACK: Final = re.compile(
    rf"{layout.ARCHIVE}/store=([0-9a-f]+)/queue=([^/]+)/pack-([0-9]+)\.parquet"
)
_DEAD: Final = re.compile(rf"{layout.ARCHIVE}/store=([0-9a-f]+)/_dead/dead-[0-9]+")
#: What a path says, beside the columns of the pack itself.
_TOLD: Final = ("store", "queue", "pack")


@dataclass
class Packs(InputPartition):
    """What one task reads: packs, each with where its dead rows are."""

    packs: list[tuple[str, bytes]]


class ArchiveReader(DataSourceReader):
    """Reads every pack there is."""

    def __init__(self, place: Place, schema: StructType) -> None:
        self._place = place
        self._schema = columns.checked(schema, columns.ARCHIVED)

    @override
    def partitions(self) -> list[InputPartition]:
        """The packs of all stores, some to a task."""
        files = places.open_place(self._place)
        found: list[tuple[str, int]] = []
        marks: dict[str, list[npt.NDArray[np.uint32]]] = {}
        for path, size in files.list(layout.ARCHIVE):
            if _PACK.fullmatch(path):
                found.append((path, size))
            elif marked := _DEAD.fullmatch(path):
                marks.setdefault(marked[1], []).append(dead_marks.unpack(files.read(path)))
        dead = {store: dead_marks.by_pack(parts) for store, parts in marks.items()}
        out: list[InputPartition] = []
        # A pack is read as a whole: its dead rows are known by where they are in it.
        for task in pieces.spread(found):
            whole = [piece.path for piece in task if not piece.part]
            if whole:
                out.append(Packs([(path, _dead_in(path, dead)) for path in whole]))
        return out

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of some packs."""
        if not isinstance(partition, Packs):  # Spark's own, for an archive without packs
            return
        workers.settle()
        files, schema = places.open_place(self._place), columns.arrow_of(self._schema)
        for path, dead in partition.packs:
            yield from _messages(files, path, np.frombuffer(dead, "<u4"), schema)


def _dead_in(path: str, dead: dict[str, dict[int, npt.NDArray[np.uint32]]]) -> bytes:
    named = _PACK.fullmatch(path)
    assert named is not None
    found = dead.get(named[1], {}).get(int(named[3]))
    return b"" if found is None else found.astype("<u4").tobytes()


def _messages(
    files: Files, path: str, dead: npt.NDArray[np.uint32], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    named = _PACK.fullmatch(path)
    assert named is not None
    told = {"store": named[1], "queue": unquote(named[2]), "pack": int(named[3])}
    is_alive = None if not len(dead) else ~np.isin(_places(files, path), dead)
    inner = pa.schema([field for field in schema if field.name not in _TOLD])
    at = 0
    # Where only what the path says is asked for, something must count the rows.
    counted = inner if len(inner) else pa.schema([pa.field("id", pa.string())])
    for batch in pieces.batches(files, pieces.Piece(path), counted):
        begin, at = at, at + batch.num_rows
        kept = batch if is_alive is None else batch.filter(pa.array(is_alive[begin:at]))
        if kept.num_rows:
            yield _with(kept, told, schema)


def _places(files: Files, path: str) -> npt.NDArray[np.uint32]:
    """Where in a pack the body of each of its rows is."""
    with files.open(path) as opened:
        size = opened.size()
        opened.seek(max(0, size - pack.TAIL_BYTES))
        footer = pack.footer_bytes(opened.read(pack.TAIL_BYTES))
        if footer > size:
            raise DamagedRecord(f"{path} in {files.where} is cut off", "restore that object")
        opened.seek(size - footer)
        found: npt.NDArray[np.uint32] = pack.read_rows(opened.read(footer))["body_at"]
    return found


def _with(batch: pa.RecordBatch, told: dict[str, str | int], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name in told:
            arrays.append(pa.repeat(pa.scalar(told[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(batch.schema.get_field_index(field.name)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
