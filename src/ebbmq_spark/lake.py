"""Lakes: the files that manifests name, all of a known version, and nothing else.

A lake is a directory or an object store; both are written and read through the same few verbs, and
what is visible in them is decided the same way.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from ebbmq.errors import ClientError, InvalidSpec
from ebbmq.feed import layout, manifests
from ebbmq.feed.manifests import UnknownFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq.feed.table import Table

_SCHEMES: Final = ("s3", "gs", "az")
#: What Spark takes for more than a letter of a path.
_OF_PATTERNS: Final = re.compile(r"[\\*?{}\[\]]")


class PipelineBusy(ClientError):
    """Another run writes to the lake."""

    code = "pipeline_busy"


def busy(owner: str, where: str) -> PipelineBusy:
    """The refusal that names who is at work."""
    return PipelineBusy(
        f"{owner or 'another process'} is at work on {where}", "wait until it has ended, or end it"
    )


class Reach(NamedTuple):
    """Rows are wanted as far as a column goes up to a bound; files tell where they are beyond."""

    column: str
    until: int


class Lake(Protocol):
    """Files by their names from the root of a lake."""

    #: For people, and for who opens it again.
    where: str
    #: Whether rows come over the network each time they are asked for.
    is_remote: bool

    def require(self) -> None:
        """See that there is a lake.

        Raises:
            UnknownFeed: there is none.
        """

    def list(self, prefix: str) -> list[str]:
        """The names of all files below a directory, in order."""

    def directories(self, prefix: str) -> Sequence[str]:
        """The names of what a directory has in it, one step down, if something is below."""

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """The sizes of those files that are there.

        Raises:
            UnknownFeed: a name leads out of the lake.
        """

    def read_many(self, paths: Sequence[str]) -> Sequence[bytes | None]:
        """Small files; None for one that is not there."""

    def modified_ms(self, path: str) -> int | None:
        """When a file was written, by the clock of whoever keeps it; None if it is not there."""

    def create(self, path: str, data: bytes) -> None:
        """Write a small file that did not exist so that nobody ever sees a part of it."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file in place of another, so that there is always one of the two."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; one that is not there is fine."""

    def remove(self, directory: str) -> None:
        """Delete everything below a directory."""

    def file(self, path: str) -> str:
        """A file as `rows` and `open` take it."""

    def open(self, file: str) -> Any:
        """A Parquet file to be read here."""

    def rows(
        self,
        spark: SparkSession,
        table: Table,
        files: Sequence[str],
        columns: Sequence[str] | None,
        reach: Reach | None,
    ) -> DataFrame:
        """Rows of a table; there is at least one file."""

    def write(self, frame: DataFrame, directory: str) -> tuple[Part, ...]:
        """Write rows into a directory of their own, where nobody sees them yet."""

    def only_one(self, what: str) -> AbstractContextManager[None]:
        """Be the only one of a kind that writes here.

        Raises:
            PipelineBusy: another one is at work.
            UnknownFeed: there is no lake.
        """


#: A lake, or the directory that it is.
Where = Path | Lake


class Visible(NamedTuple):
    """What is to be read of a table, and what cannot be."""

    manifests: list[Manifest]
    #: As `read_table` takes them: paths of a directory, names in an object store.
    files: list[str]
    #: Why a manifest was left out; the others are read all the same.
    refused: list[UnknownFeed]
    #: The names of those, in the same order.
    refused_names: list[str]


def open_lake(address: str | Path, options: Mapping[str, str] | None = None) -> Lake:
    """The lake of an address.

    Args:
        address: a directory, or the URL of an object store.
        options: of the store, as obstore names them.

    Raises:
        InvalidSpec: the address is of no known kind, or an option cannot be used.
    """
    # Who uses one kind does not load what the other needs.
    from ebbmq_spark.directory_lake import DirectoryLake  # noqa: PLC0415

    scheme, found, rest = str(address).partition("://")
    if not found:
        return DirectoryLake(Path(address))
    if scheme == "file":
        return DirectoryLake(Path(unquote(rest)))
    if scheme not in _SCHEMES:
        raise InvalidSpec(
            f"the lake is {str(address)!r:.200}",
            f"use a directory, or a URL of {', '.join(_SCHEMES)}",
        )
    try:
        from ebbmq_spark.object_lake import ObjectLake  # noqa: PLC0415

        return ObjectLake(str(address), options)
    except ModuleNotFoundError as error:
        raise ClientError(
            f"a lake in an object store is read with obstore, and {error.name} is not installed",
            "pip install 'ebbmq[feed]'",
            code="missing_package",
        ) from error


def for_spark(place: str | Path) -> str:
    """A file of this machine as Spark's readers take it: letter by letter, and of no other system.

    Without a scheme Hadoop may take another one for granted, and some letters for a pattern.
    """
    return "file://" + _OF_PATTERNS.sub(r"\\\g<0>", str(Path(place).absolute()))


def to_spark(place: Path) -> str:
    """A directory of this machine as Spark's writers take it: they know no patterns."""
    return f"file://{place.resolve()}"


def opened(where: Where) -> Lake:
    """A lake that is named by its directory, opened."""
    return open_lake(where) if isinstance(where, Path) else where


def visible(where: Where, table: Table, wanted: Callable[[Named], bool] | None = None) -> Visible:
    """The files of a table that are complete, by their manifests, in the order of these.

    Args:
        where: the lake.
        table: which table of it.
        wanted: by the name of a manifest, whether it is to be read; all of them unless given.

    Raises:
        UnknownFeed: there is no such lake.
    """
    lake = opened(where)
    lake.require()
    names = [
        name
        for name in lake.list(f"{table.name}/{layout.MANIFESTS}")
        if name.endswith(".json") and _is_wanted(name, wanted)
    ]
    found = Visible([], [], [], [])
    read: list[tuple[str, Manifest]] = []
    for name, stored in zip(names, lake.read_many(names), strict=True):
        if stored is None:  # its node took it away meanwhile
            continue
        try:
            read.append((name, manifests.decode(stored, name)))
        except UnknownFeed as error:
            _refuse(found, name, error)
    sizes = lake.sizes([part.path for _, each in read for part in each.parts if _is_name(part)])
    for name, manifest in read:
        try:
            for part in manifest.parts:
                _check(part, sizes, name)
        except UnknownFeed as error:
            # Old files go after their manifest: then it was not wrong, only late.
            if lake.modified_ms(name) is not None:
                _refuse(found, name, error)
            continue
        found.manifests.append(manifest)
        found.files.extend(lake.file(part.path) for part in manifest.parts)
    return found


def _is_wanted(name: str, wanted: Callable[[Named], bool] | None) -> bool:
    told = layout.named(name)
    return wanted is None or told is None or wanted(told)


def _refuse(found: Visible, name: str, error: UnknownFeed) -> None:
    found.refused.append(error)
    found.refused_names.append(name)


def _is_name(part: Part) -> bool:
    """Whether a name leads to somewhere below the root."""
    return not part.path.startswith("/") and ".." not in part.path.split("/")


def _check(part: Part, sizes: Mapping[str, int], manifest: str) -> None:
    """See that a part is inside the lake and of the size its manifest says."""
    size = sizes.get(part.path, -1)
    if not _is_name(part) or size == OUTSIDE:
        raise UnknownFeed(
            f"{manifest.rpartition('/')[2]} names {part.path}, which is outside of the lake",
            "remove that manifest: no node wrote it",
        )
    if size != part.bytes:
        state = "is missing" if size < 0 else f"has {size} bytes instead of {part.bytes}"
        raise UnknownFeed(
            f"{part.path} {state}",
            "restore it, or remove its manifest to go on without its rows",
        )


#: The size of what is not in the lake, wherever a link leads.
OUTSIDE: Final = -2


def read_table(
    spark: SparkSession,
    table: Table,
    files: Sequence[str],
    lake: Lake | None = None,
    columns: Sequence[str] | None = None,
    reach: Reach | None = None,
) -> DataFrame:
    """Rows of a table; a column that an older file lacks is empty.

    Args:
        spark: where to run.
        table: which table the files are of.
        files: as `visible` names them.
        lake: where they are, unless it is a directory.
        columns: those that are needed; all unless given.
        reach: rows beyond it may be left out.
    """
    from ebbmq_spark.schemas import schema_of  # noqa: PLC0415  # who only looks does without Spark

    if not files:
        empty = spark.createDataFrame([], schema_of(table))
        return empty if columns is None else empty.select(*columns)
    # A directory is read by Spark itself, whoever opened it.
    found = opened(Path()) if lake is None else lake
    return found.rows(spark, table, files, columns, reach)
