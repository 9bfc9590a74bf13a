"""The archive of an object device as a table: bodies with their properties, without what is dead.

A message may be in two packs while one of them is rewritten: its row in the pack of the higher
number is the copy that counts, so `pack` is a column.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq.errors import DamagedRecord
from ebbmq.feed import layout
from ebbmq.feed.claims import no_archive
from ebbmq.holding import dead_marks, pack
from ebbmq_spark import pieces, places
from ebbmq_spark.connector import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from pyspark.sql.types import StructType

    from ebbmq_spark.places import Files, Place

_PACK: Final = re.compile(
    rf"{layout.ARCHIVE}/store=([0-9a-f]+)/queue=([^/]+)/pack-([0-9]+)\.parquet"
)
_RESTORE: Final = "restore that object"
_DEAD: Final = re.compile(rf"{layout.ARCHIVE}/store=[0-9a-f]+/_dead/dead-[0-9]+")


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
        found = packs_of(places.open_place(self._place))
        dead = {each.path: each.dead for each in found}
        out: list[InputPartition] = []
        # A pack is read as a whole: its dead rows are known by where they are in it.
        for task in pieces.spread((each.path, each.size) for each in found):
            whole = [piece.path for piece in task if not piece.part]
            if whole:
                out.append(Packs([(path, dead[path]) for path in whole]))
        return out

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of some packs."""
        if not isinstance(partition, Packs):  # Spark's own, for an archive without packs
            return
        files, schema = places.open_place(self._place), columns.arrow_of(self._schema)
        for path, dead in partition.packs:
            yield from _messages(files, path, np.frombuffer(dead, "<u4"), schema)


class Pack(NamedTuple):
    """A pack as it was listed, and `body_at` of its dead rows, as u32."""

    path: str
    size: int
    tag: str | None
    dead: bytes


def packs_of(files: Files) -> list[Pack]:
    """The packs of all stores.

    Raises:
        UnknownFeed: no broker has an archive there; one that has no pack yet is fine.
        DamagedRecord: dead marks cannot be read.
    """
    listed = list(files.list(layout.ARCHIVE))
    if not listed:
        raise no_archive(files.where)
    found = [each for each in listed if _PACK.fullmatch(each.path)]
    stores = sorted({str(told_by(path)["store"]) for path, *_ in found})
    # After the packs: what is dead of a pack is marked before the pack is there.
    dead = {store: dead_marks.by_pack(_marks(files, store)) for store in stores}
    return [Pack(*each, dead=_dead_in(each.path, dead)) for each in found]


def _marks(files: Files, store: str, tries: int = 3) -> list[npt.NDArray[np.uint32]]:
    """All dead marks of a store."""
    out = []
    for path, *_ in files.list(f"{layout.ARCHIVE}/store={store}/_dead"):
        if not _DEAD.fullmatch(path):
            continue
        try:
            stored = files.read(path)
        except places.Gone:
            # The broker has put marks together meanwhile; what came of it was there before.
            if tries > 1:
                return _marks(files, store, tries - 1)
            raise
        with _named(files, path):
            out.append(dead_marks.unpack(stored))
    return out


def _dead_in(path: str, dead: dict[str, dict[int, npt.NDArray[np.uint32]]]) -> bytes:
    named = _PACK.fullmatch(path)
    assert named is not None
    found = dead.get(named[1], {}).get(int(named[3]))
    return b"" if found is None else found.astype("<u4").tobytes()


def told_by(path: str) -> dict[str, str | int]:
    """The columns that the path of a pack says."""
    named = _PACK.fullmatch(path)
    assert named is not None
    return {"store": named[1], "queue": unquote(named[2]), "pack": int(named[3])}


def _messages(
    files: Files, path: str, dead: npt.NDArray[np.uint32], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    told = told_by(path)
    is_alive = None if not len(dead) else ~np.isin(_places(files, path), dead)
    inner = pa.schema([field for field in schema if field.name not in told])
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
    with _named(files, path):
        found: npt.NDArray[np.uint32] = pack.read_rows(footer_of(files, path))["body_at"]
    return found


def footer_of(files: Files, path: str, *, whole: bool = True) -> bytes:
    """The footer of a pack, or only its last bytes.

    Raises:
        Gone: the pack is there no more.
        DamagedRecord: it is cut off, or cannot be read.
    """
    with _named(files, path), files.open(path) as opened:
        size = opened.size()
        opened.seek(max(0, size - pack.TAIL_BYTES))
        tail: bytes = opened.read(pack.TAIL_BYTES)
        if len(tail) < pack.TAIL_BYTES or (footer := pack.footer_bytes(tail)) > size:
            raise DamagedRecord("it is cut off", _RESTORE)
        if not whole:
            return tail
        opened.seek(size - footer)
        found: bytes = opened.read(footer)
    return found


@contextmanager
def _named(files: Files, path: str) -> Iterator[None]:
    """Say which file it is that cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise places.gone(path, files.where) from error
    except (pa.ArrowException, OSError) as error:
        raise DamagedRecord(f"{path} in {files.where}: {error}", _RESTORE) from error
    except DamagedRecord as error:
        if path in error.detail:
            raise
        told = DamagedRecord(f"{path} in {files.where}: {error.detail}", error.action or _RESTORE)
        raise told from error


def _with(batch: pa.RecordBatch, told: dict[str, str | int], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name in told:
            arrays.append(pa.repeat(pa.scalar(told[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(batch.schema.get_field_index(field.name)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
