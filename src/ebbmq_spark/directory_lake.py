"""A lake in a directory, which Spark reads and writes by itself."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from ebbmq.errors import StorageFailed
from ebbmq.feed import runs
from ebbmq.feed.claims import is_lake_at, no_lake
from ebbmq.feed.manifests import Part
from ebbmq_spark.lake import OUTSIDE, busy, for_spark, to_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Reach

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
#: Columns of which hardly two values are the same and no reader wants a range: to look for
#: repetitions and bounds among them takes a tenth of what it takes to write a plan.
_DIVERSE: Final = ("message_id", "value")
WRITTEN: Final = {
    "parquet.size.statistics.enabled": "false",
    "parquet.column.statistics.enabled#reason": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _DIVERSE},
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in _DIVERSE},
}


class DirectoryLake:
    """See `lake.Lake`."""

    is_remote = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def require(self) -> None:
        """See Lake."""
        if not is_lake_at(self.root):
            raise no_lake(self.where)

    def list(self, prefix: str) -> list[str]:
        """See Lake."""
        found = (self.root / prefix).rglob("*")
        return sorted(str(each.relative_to(self.root)) for each in found if each.is_file())

    def directories(self, prefix: str) -> Sequence[str]:
        """See Lake."""
        found = (self.root / prefix).glob("*/")
        return sorted(str(each.relative_to(self.root)) for each in found)

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """See Lake."""
        inside, out = self.root.resolve(), {}
        for path in paths:
            place = (self.root / path).resolve()
            if not place.is_relative_to(inside):
                out[path] = OUTSIDE
            elif place.is_file():
                out[path] = place.stat().st_size
        return out

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        """See Lake."""
        return [self._read(self.root / path) for path in paths]

    @staticmethod
    def _read(place: Path) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return place.read_bytes()
        return None

    def modified_ms(self, path: str) -> int | None:
        """See Lake."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / path).stat().st_mtime_ns // 1_000_000
        return None

    def create(self, path: str, data: bytes) -> None:
        """See Lake."""
        place = self.root / path
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(data)
            try:
                os.link(beside, place)
            except OSError as error:
                if error.errno not in _NO_LINKS or place.exists():
                    raise
                beside.rename(place)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)

    def replace(self, path: str, data: bytes) -> None:
        """See Lake."""
        replace(self.root / path, data)

    def delete(self, paths: Sequence[str]) -> None:
        """See Lake."""
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    def remove(self, directory: str) -> None:
        """See Lake."""
        shutil.rmtree(self.root / directory, ignore_errors=True)

    def file(self, path: str) -> str:
        """See Lake."""
        return str((self.root / path).absolute())

    def open(self, file: str) -> Any:
        """See Lake."""
        return file

    def rows(
        self,
        spark: SparkSession,
        table: Table,
        files: Sequence[str],
        columns: Sequence[str] | None,
        reach: Reach | None,
    ) -> DataFrame:
        """See Lake; Spark finds out by itself what it can leave unread."""
        from pyspark.sql import types as T  # noqa: PLC0415  # it needs Spark

        from ebbmq_spark.schemas import schema_of  # noqa: PLC0415  # as above

        whole = schema_of(table)
        wanted = whole if columns is None else T.StructType([whole[name] for name in columns])
        return spark.read.schema(wanted).parquet(*map(for_spark, files))

    def write(self, frame: DataFrame, directory: str) -> tuple[Part, ...]:
        """See Lake."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415  # as above

        place = self.root / directory
        frame.write.mode("overwrite").options(**WRITTEN).parquet(to_spark(place))
        found = []
        for path in sorted(place.glob("*.parquet")):
            rows = pq.read_metadata(path).num_rows
            found.append(Part(str(path.relative_to(self.root)), rows, path.stat().st_size))
        if not found:
            # Spark writes a file even of no rows.
            raise StorageFailed(
                f"of what Spark wrote to {place} nothing is there",
                "let this machine and those of the cluster see the lake under the same path, or "
                "use one in an object store",
            )
        for other in (*place.glob(".*.crc"), *place.glob("_SUCCESS")):
            other.unlink()
        return tuple(found)

    @contextlib.contextmanager
    def only_one(self, what: str) -> Iterator[None]:
        """See Lake; the end of the process ends it, too."""
        self.require()
        place = self.root / runs.RUNS / f".{what}.lock"
        place.parent.mkdir(exist_ok=True)
        with place.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise busy(file.read().strip(), self.where) from None
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            yield


def replace(place: Path, data: bytes) -> None:
    """Write a file in place of another, so that there is always one of the two."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.rename(place)
    finally:
        beside.unlink(missing_ok=True)
