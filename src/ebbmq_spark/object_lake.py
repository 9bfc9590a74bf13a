"""A lake in an object store, through obstore: Spark needs no jars for it (ADR 0028).

The driver lists, reads manifests and makes things visible; tasks fetch and store rows. An object is
there as a whole or not at all, and counts once a manifest names it.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ebbmq.feed import runs
from ebbmq.feed.claims import is_lake, no_lake
from ebbmq_spark.places import Outrun, Place, Store
from ebbmq_spark.turns import TURN_S, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.manifests import Part
    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Reach

#: Requests for small objects that are under way at once.
_AT_ONCE: Final = 16


class ObjectLake:
    """See `lake.Lake`."""

    is_remote = True

    def __init__(
        self, address: str, options: Mapping[str, str] | None = None, turn_s: float = TURN_S
    ) -> None:
        """Name the store; nothing is asked of it yet.

        Args:
            address: its URL, such as `s3://bucket/prefix`.
            options: as obstore names them; what is not given comes from the environment.
            turn_s: how long who writes may be silent before another one takes over.

        Raises:
            InvalidSpec: the URL or an option cannot be used.
        """
        self.place = Place(address, dict(options or {}))
        self._store = Store(self.place)
        self.where = self._store.where
        self._turn_s = turn_s
        self._turn: Turn | None = None
        self._sizes: dict[str, int] = {}

    # Python 3.11 has no `override`.
    def __reduce__(self) -> tuple[type[ObjectLake], tuple[Any, ...]]:  # type: ignore[explicit-override]
        """Over Spark Connect what a stream writes is written elsewhere; the turn stays here."""
        return ObjectLake, (self.place.address, self.place.store, self._turn_s)

    def require(self) -> None:
        """See Lake."""
        if not is_lake(self._store.list):
            raise no_lake(self.where)

    def list(self, prefix: str) -> list[str]:
        """See Lake."""
        return [each.path for each in self._store.list(prefix)]

    def directories(self, prefix: str) -> Sequence[str]:
        """See Lake."""
        return self._store.directories(prefix)

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """See Lake: by listing the days or runs that the names are of."""
        roots = sorted({"/".join(path.split("/")[:2]) for path in paths})
        found = {each.path: each.size for root in roots for each in self._store.list(root)}
        told = {path: found[path] for path in paths if path in found}
        self._sizes |= told
        return told

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        """See Lake."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._store.read_if_there, paths))

    def modified_ms(self, path: str) -> int | None:
        """See Lake."""
        found = self._store.head(path)
        return None if found is None else found.modified_ms

    def create(self, path: str, data: bytes) -> None:
        """See Lake; not by who lost the turn."""
        self._check_turn()
        try:
            self._store.write(path, data, "create")
        except Outrun:
            # A request whose answer was lost is sent again, and then finds what it wrote.
            if self._store.read_if_there(path) != data:
                raise

    def replace(self, path: str, data: bytes) -> None:
        """See Lake; not by who lost the turn."""
        self._check_turn()
        self._store.write(path, data)

    def delete(self, paths: Sequence[str]) -> None:
        """See Lake; not by who lost the turn."""
        self._check_turn()
        self._store.delete(paths)

    def remove(self, directory: str) -> None:
        """See Lake."""
        self.delete(self.list(directory))

    def file(self, path: str) -> str:
        """See Lake."""
        return path

    def open(self, file: str) -> Any:
        """See Lake."""
        return self._store.open(file)

    def rows(
        self,
        spark: SparkSession,
        table: Table,
        files: Sequence[str],
        columns: Sequence[str] | None,
        reach: Reach | None,
    ) -> DataFrame:
        """See Lake."""
        from ebbmq_spark import object_tables  # noqa: PLC0415  # it needs Spark

        sized = [(file, self._sizes.get(file, 0)) for file in files]
        return object_tables.read(spark, self.place, table, sized, columns, reach)

    def write(self, frame: DataFrame, directory: str) -> tuple[Part, ...]:
        """See Lake; what tasks left that were tried again goes."""
        from ebbmq_spark import object_tables  # noqa: PLC0415  # as above

        parts = object_tables.write(frame, self.place, directory)
        named = {part.path for part in parts}
        self._sizes |= {part.path: part.bytes for part in parts}
        self.delete([path for path in self.list(directory) if path not in named])
        return parts

    @contextlib.contextmanager
    def only_one(self, what: str) -> Iterator[None]:
        """See Lake; who is killed is waited for as long as a turn lasts."""
        self.require()
        self._turn = turn = Turn(self._store, f"{runs.RUNS}/_{what}.lock", self._turn_s)
        try:
            with turn.held():
                yield
        finally:
            self._turn = None

    def _check_turn(self) -> None:
        if self._turn is not None:
            self._turn.check()
