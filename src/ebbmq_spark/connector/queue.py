"""A queue as a table: every message in a state, looked at without leasing any.

Each task looks at a range of ids of one partition of the queue, so what is read is read once,
whatever is published meanwhile. A message that leaves or changes its state while it is looked for
is not there: a look is no snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from ebbmq.errors import StorageFailed
from ebbmq_spark.connector import columns, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyspark.sql.types import StructType

    from ebbmq_spark.connector.options import QueueReading

#: Messages of one request.
_PAGE: Final = 10_000


@dataclass
class Range(InputPartition):
    """Messages of a store after one id and up to another."""

    after: str
    up_to: str
    store_id: str | None = None


class QueueReader(DataSourceReader):
    """Reads a queue by ranges of ids."""

    def __init__(self, options: QueueReading, schema: StructType) -> None:
        self._options = options
        self._schema = columns.checked(schema, columns.MESSAGE)

    @override
    def partitions(self) -> list[InputPartition]:
        """The ranges, by what the queue holds now."""
        options = self._options
        with requests.connected(options.server) as client:
            stats = client.stats(options.queue)
        out: list[InputPartition] = []
        for each in stats["partitions"]:
            if each["state"] != "ok":
                raise StorageFailed(
                    f"partition {each['id']} of {options.queue} is faulty: {each['why']}",
                    "its messages cannot be looked at before the broker has read it: ebbmq doctor",
                )
            if each["oldest_id"] is not None:
                tasks = -(-each["depth"] // options.rows_per_partition)
                out += ranges(each["oldest_id"], each["newest_id"], tasks, stats["store_id"])
        return out

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range."""
        if not isinstance(partition, Range):  # Spark's own, for a queue without messages
            return
        options, schema = self._options, columns.arrow_of(self._schema)
        after = partition.after
        with requests.connected(options.server) as client:
            while True:
                call = requests.look(options.queue, options.state, after, partition.up_to, _PAGE)
                rows = requests.patiently(options.server, lambda call=call: client.ask(call))  # type: ignore[misc]
                if not rows:
                    return
                yield columns.batch_of(rows, schema, partition.store_id)
                after = rows[-1].id


def ranges(oldest: str, newest: str, tasks: int, store_id: str | None = None) -> Iterator[Range]:
    """Ranges of as many ids for each task; where messages left, fewer of them are there."""
    pid, _, first = oldest.partition("-")
    start, last = int(first, 16) - 1, int(newest.partition("-")[2], 16)
    size = -(-(last - start) // tasks)
    for after in range(start, last, size):
        yield Range(f"{pid}-{after:x}", f"{pid}-{min(after + size, last):x}", store_id)
