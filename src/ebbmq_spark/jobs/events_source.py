"""The events of a lake as a stream: what manifests name, each file once, in Arrow batches.

An offset says how far each node was read, by the boot and number of its last manifest, which
manifests before that could not be read (they are read once they can be), and how many rows that
were. What is between two offsets is always the same, so that a batch that is done again is the same
batch. Rows are numbered as they come: time as the stream knows it, whatever clocks of nodes say.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq_spark import schemas, soundness
from ebbmq_spark.lake import open_lake, visible
from ebbmq_spark.object_lake import ObjectLake
from ebbmq_spark.places import Place
from ebbmq_spark.soundness import name_of
from ebbmq_spark.transforms.streamed import NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq_spark.lake import Lake

Offset = dict[str, Any]
FORMAT: Final = "ebbmq_events"
#: Options that begin with this are of the object store.
_STORE: Final = "store."
#: Files of one batch unless the caller says otherwise.
FILES_PER_BATCH: Final = 500


@dataclass
class File(InputPartition):
    """One file of events, and how many rows came before it."""

    path: str
    rows_before: int


class EventsSource(DataSource):
    """`spark.readStream.format("ebbmq_events").option("lake", DIR)`, or a URL and `store.NAME`."""

    @staticmethod
    def options_of(lake: Lake, files_per_batch: int) -> dict[str, str]:
        """What to say in `.options(..)` to read a lake."""
        told = {"lake": lake.file(""), "filesPerBatch": str(files_per_batch)}
        if isinstance(lake, ObjectLake):
            told["lake"] = lake.place.address
            told |= {f"{_STORE}{name}": value for name, value in lake.place.store.items()}
        return told

    @classmethod
    @override
    def name(cls) -> str:
        """By which it is asked for."""
        return FORMAT

    @override
    def schema(self) -> T.StructType:
        """Of EVENTS, and the number of the row; what it must have is looked for later."""
        fields = schemas.schema_of(EVENTS).fields
        own = [T.StructField(each.name, each.dataType) for each in fields]
        return T.StructType([*own, T.StructField(NUMBER, T.LongType())])

    @override
    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        """A reader for one query."""
        files = int(self.options.get("filesPerBatch", str(FILES_PER_BATCH)))
        store = {
            name.lower().removeprefix(_STORE): value
            for name, value in self.options.items()
            if name.lower().startswith(_STORE)
        }
        return EventsReader(Place(self.options["lake"], store), files)


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Looks for new manifests on the driver and reads their files on executors."""

    def __init__(self, place: Place, files_per_batch: int) -> None:
        self._place = place
        self._files_per_batch = files_per_batch
        #: With availableNow: what there was when the query began.
        self._names: frozenset[str] | None = None

    @override
    def initialOffset(self) -> Offset:
        """Before everything that is there."""
        return {"read": {}, "refused": [], "rows": 0}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        """A bounded number of files, so that a long feed is many batches."""
        return ReadMaxFiles(self._files_per_batch)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """What is written from now on is left for later."""
        self._names = frozenset(name_of(each) for each in visible(self._lake(), EVENTS).manifests)

    @override
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch reads."""
        lake = self._lake()
        found = visible(lake, EVENTS)
        new = [each for each in found.manifests if _is_new(each, start)]
        wrong = soundness.refused(lake, new)
        most = self._files_per_batch
        if isinstance(limit, ReadAllAvailable):
            most = len(found.files)
        elif isinstance(limit, ReadMaxFiles):
            most = limit.max_files
        read = {node: list(at) for node, at in start["read"].items()}
        refused = set(start["refused"])
        files = 0
        for each in _in_order(new):
            name = name_of(each)
            if name in wrong or (self._names is not None and name not in self._names):
                continue
            if files and files + len(each.parts) > most:
                break
            files += len(each.parts)
            refused.discard(name)
            if _is_after(each, read.get(each.node)):
                read[each.node] = [each.boot, each.number]
        if files:
            refused.update(found.refused_names, wrong)
        end = {"read": read, "refused": sorted(refused), "rows": start["rows"]}
        rows = sum(part.rows for part in _between(found.manifests, start, end))
        return {**end, "rows": start["rows"] + rows}

    @override
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The files between two offsets."""
        lake = self._lake()
        parts = _between(visible(lake, EVENTS).manifests, start, end)
        before = itertools.accumulate((part.rows for part in parts), initial=start["rows"])
        return [File(lake.file(part.path), rows) for part, rows in zip(parts, before, strict=False)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a file; a column that it lacks is empty."""
        assert isinstance(partition, File)
        # From 1 on: what is not after the beginning of time is late to Spark.
        number = partition.rows_before + 1
        for batch in pq.ParquetFile(self._lake().open(partition.path)).iter_batches():
            yield conformed(batch, number)
            number += len(batch)

    def _lake(self) -> Lake:
        """Opened anew wherever this runs: connections do not travel."""
        return open_lake(self._place.address, self._place.store)


def conformed(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Rows with exactly the columns of EVENTS, numbered from a number on."""
    names = set(batch.schema.names)
    fields = [pa.field(each.name, each.type) for each in schema_of(EVENTS)]
    columns = [
        batch.column(each.name).cast(each.type)
        if each.name in names
        else pa.nulls(len(batch), each.type)
        for each in fields
    ]
    columns.append(pa.array(range(number, number + len(batch)), pa.int64()))
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([*fields, pa.field(NUMBER, pa.int64())])
    )


def _in_order(manifests: list[Manifest]) -> list[Manifest]:
    """As they were written; those of a node by their numbers, also if its clock was set back."""
    at_ms: dict[str, int] = {}
    keys: list[tuple[int, str, int, int]] = []
    manifests = sorted(manifests, key=lambda each: (each.node, each.boot, each.number))
    for each in manifests:
        at_ms[each.node] = max(at_ms.get(each.node, 0), each.written_at_ms)
        keys.append((at_ms[each.node], each.node, each.boot, each.number))
    ordered = sorted(zip(keys, manifests, strict=True), key=lambda each: each[0])
    return [manifest for _, manifest in ordered]


def _between(manifests: list[Manifest], start: Offset, end: Offset) -> list[Part]:
    """The files between two offsets."""
    later = set(end["refused"])
    return [
        part
        for each in manifests
        if _is_new(each, start)
        and not _is_after(each, end["read"].get(each.node))
        and name_of(each) not in later
        for part in each.parts
    ]


def _is_new(manifest: Manifest, start: Offset) -> bool:
    return _is_after(manifest, start["read"].get(manifest.node)) or (
        name_of(manifest) in start["refused"]
    )


def _is_after(manifest: Manifest, at: Sequence[int] | None) -> bool:
    return at is None or (manifest.boot, manifest.number) > (at[0], at[1])
