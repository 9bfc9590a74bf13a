"""Sources that only benches and tests read: what it costs Spark that rows go through Python.

`InPython` decodes files there, as is done where Spark cannot read them itself. `AtHand` is what any
source in Python costs at least: a task decodes one batch and hands it to Spark again and again,
until it has as many rows as its file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq.feed.events import EVENTS
from ebbmq_spark.connector import columns
from ebbmq_spark.connector.source import EbbMQ
from ebbmq_spark.lake import visible
from ebbmq_spark.pieces import Piece, batches
from ebbmq_spark.places import Place, open_place
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

NAME = "at_hand"
IN_PYTHON = "ebbmq_in_python"


class InPython(EbbMQ):
    """The same source under a name of which nothing is handed over to Spark's own reader."""

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into `format(..)`."""
        return IN_PYTHON


class _File(NamedTuple):
    """A file of a lake, and how many rows it has."""

    path: str
    rows: int


class _Reader(DataSourceReader):
    """A task a file."""

    def __init__(self, lake: str, schema: StructType) -> None:
        self._lake = lake
        self._schema = schema

    @override
    def partitions(self) -> list[InputPartition]:
        """The files that manifests name."""
        from pathlib import Path  # noqa: PLC0415  # only the driver needs it

        found = visible(Path(self._lake), EVENTS).manifests
        return [
            InputPartition(_File(part.path, part.rows)) for each in found for part in each.parts
        ]

    @override
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The first batch of a file, in place of each of its batches."""
        path, left = partition.value
        schema = columns.arrow_of(self._schema)
        batch = next(batches(open_place(Place(self._lake, {})), Piece(path), schema))
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class AtHand(DataSource):
    """Events of a lake in a directory, as far as their number and their columns go."""

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into `format(..)`."""
        return NAME

    @override
    def schema(self) -> StructType:
        """The columns that are asked for."""
        return columns.chosen(schema_of(EVENTS), self.options.get("columns"))

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """The rows."""
        return _Reader(self.options["path"], schema)
