"""The data source `ebbmq`: which reader or writer options ask for.

Spark starts several processes for each query, and each of them loads this module: what only some of
them need is loaded where it is asked for.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from typing_extensions import override

from ebbmq.errors import InvalidSpec
from ebbmq.feed.manifests import TABLES
from ebbmq_spark.connector import columns, options
from ebbmq_spark.schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from ebbmq_spark.connector.files import NamedFile

NAME: Final = "ebbmq"
_QUEUE: Final = "queue"
_ARCHIVE: Final = "archive"
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
#: Spark looks whether a name is taken, and then takes it: of two at once one would be refused.
_registering: Final = threading.Lock()


class EbbMQ(DataSource):
    """Queues of a broker, tables of a lake, the archive."""

    #: Spark refuses readers that take filters where the session does not let them.
    _takes_filters = False

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into `format(..)`."""
        return NAME

    @property
    def _table(self) -> str:
        known = (_QUEUE, _ARCHIVE, *TABLES)
        return options.choice(self.options, "table", _QUEUE, known)

    @property
    def _whole(self) -> StructType:
        table = self._table
        if table == _QUEUE:
            return columns.MESSAGE
        return columns.ARCHIVED if table == _ARCHIVE else schema_of(TABLES[table])

    @override
    def schema(self) -> StructType:
        """The columns that are asked for."""
        options.check_names(self.options)
        return columns.chosen(self._whole, self.options.get("columns"))

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """A table, read as it is now."""
        options.check_names(self.options)
        if self._table == _QUEUE:
            from ebbmq_spark.connector.queue import QueueReader

            return QueueReader(options.queue_reading(self.options), schema)
        place = options.place_of(self.options)
        if self._table == _ARCHIVE:
            from ebbmq_spark.connector.archive import ArchiveReader

            return ArchiveReader(place, schema)
        from ebbmq_spark.connector.lake import LakeReader, PushedLakeReader

        kind = PushedLakeReader if self._takes_filters else LakeReader
        return kind(place, self._table, schema)

    def files(self, schema: StructType, beside: Path) -> list[NamedFile] | None:
        """The files that Spark can read in place of `reader`; None where it cannot.

        Args:
            schema: the columns that are asked for.
            beside: where a path begins that is not absolute.
        """
        options.check_names(self.options)
        if self._table == _QUEUE:
            return None
        from ebbmq_spark.connector import native, packs
        from ebbmq_spark.places import Place, directory_of

        place = options.place_of(self.options)
        root = directory_of(place)
        columns.checked(schema, self._whole)
        if self._table == _ARCHIVE:
            there = place if root is None else Place(str(beside / root))
            return packs.files_of(there, schema.names)
        if root is None:
            return native.objects_of(place, TABLES[self._table])
        return native.files_of(beside / root, TABLES[self._table])

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A queue, leased from.

        Raises:
            InvalidSpec: another table is asked for.
        """
        options.check_names(self.options)
        if self._table != _QUEUE:
            raise InvalidSpec(
                f"table {self._table} cannot be read as a stream",
                "stream a queue; `ebbmq pipeline stream` follows a lake",
            )
        from ebbmq_spark.connector.lease_stream import LeaseStream

        return LeaseStream(options.leasing(self.options), schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publish the rows of a DataFrame."""
        from ebbmq_spark.connector.sink import QueueWriter, check_mode

        check_mode(overwrite=overwrite)
        return QueueWriter(options.publishing(self.options), schema)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Publish the rows of a stream."""
        from ebbmq_spark.connector.sink import QueueStreamWriter, check_mode

        check_mode(overwrite=overwrite)
        return QueueStreamWriter(options.publishing(self.options), schema)


class _Pushed(EbbMQ):
    """The same, in a session that lets filters be pushed down."""

    _takes_filters = True


def _files(
    given: MutableMapping[str, str], schema: StructType, beside: Path
) -> list[NamedFile] | None:
    return EbbMQ(given).files(schema, beside)


def register(spark: SparkSession) -> None:
    """Make `format("ebbmq")` known to a session.

    Lakes and archives are then read by Spark's own reader, and of stores that cannot sign URLs by
    Python, to which filters are pushed down. Over Spark Connect, or where Spark does not take our
    rule for it, neither is done, and the log says so.
    """
    from ebbmq_spark.connector import handover
    from ebbmq_spark.session import active

    kind = EbbMQ
    # A reader that takes filters would keep those of one query for the next without the rule.
    if handover.install(spark, NAME, _files):
        spark.conf.set(_PUSHDOWN, "true")
        kind = _Pushed
    with _registering, active(spark):
        spark.dataSource.register(kind)
