"""Advice in the lake: runs that manifests make visible, and their rows some at a time.

A file is never read as a whole. What is of no known form is refused by name; nothing else in the
lake is touched by that.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq import limits
from ebbmq.feed import layout, manifests, runs
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.plans import PLANS
from ebbmq.feed.table import TABLE_KEY, VERSION_KEY
from ebbmq.node.advising.worth import Worth, all_ranked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq.feed.table import Table
    from ebbmq.node.feeding.lake import Lake

    Floats = npt.NDArray[np.float64]

_ROWS_AT_ONCE: Final = 65_536
#: What reading says of bytes that are not what they should be, statistics and texts included.
_FILE_ERRORS: Final = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
)
#: A plan of which the most valuable come first is read as often at most, and once more.
_BANDS_MAX: Final = 16
#: Runs of a table that are looked at; a node remembers as many of both tables.
RUNS_MAX: Final = limits.RUNS_KEPT_MAX // 2


class Found(NamedTuple):
    """A run whose advice is in the lake."""

    run: str
    written_at_ms: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows about all nodes."""
        return sum(part.rows for part in self.parts)


def find(lake: Lake, table: Table) -> tuple[list[Found], list[UnknownFeed]]:
    """All runs that are visible, oldest first, and why others cannot be read."""
    return _told(lake, (_read(lake, table, path) for path, _ in _listed(lake, table)))


class Sight:
    """The last runs of a table that are visible; what was read is not read again."""

    def __init__(self, lake: Lake, table: Table) -> None:
        self._lake, self._table = lake, table
        #: By name and size: what is no manifest may be replaced by one that is.
        self._seen: dict[tuple[str, int], Found | UnknownFeed | None] = {}

    def find(self) -> tuple[list[Found], list[UnknownFeed]]:
        """Runs, oldest first, and why others cannot be read."""
        seen, lake, table = self._seen, self._lake, self._table
        self._seen = {
            each: seen[each] if each in seen else _read(lake, table, each[0])
            for each in _listed(lake, table)[-RUNS_MAX:]
        }
        return _told(lake, self._seen.values())


def _listed(lake: Lake, table: Table) -> list[tuple[str, int]]:
    """Manifests and their sizes, by the instants in their names: of one clock, whichever it is."""
    listed = lake.list(f"{table.name}/{layout.MANIFESTS}")
    return sorted(each for each in listed if each[0].endswith(".json"))


def _read(lake: Lake, table: Table, path: str) -> Found | UnknownFeed | None:
    """The run a manifest makes visible, or why it does not; None where there is none."""
    # A disk has names that are no text, and this one is told to people.
    name = path.encode(errors="backslashreplace").decode()
    try:
        return _run(manifests.decode(lake.read(path), name), table, name)
    except UnknownFeed as error:
        return error
    except FileNotFoundError:  # the pipeline took it away meanwhile
        return None


def _told(
    lake: Lake,
    read: Iterable[Found | UnknownFeed | None],
) -> tuple[list[Found], list[UnknownFeed]]:
    found: dict[str, Found] = {}
    refused: list[UnknownFeed] = []
    for each in read:
        if isinstance(each, UnknownFeed):
            refused.append(each)
        elif each is not None:
            before = found.get(each.run)
            found[each.run] = each if before is None else _joined(before, each)
    # What has no record did not end: nothing comes of it.
    names = {name for name, _ in lake.list(runs.RUNS)} if found else set()
    ended = [each for each in found.values() if runs.record_file(each.run) in names]
    return sorted(ended, key=lambda each: (each.written_at_ms, each.run)), refused


def _run(manifest: Manifest, table: Table, path: str) -> Found | None:
    """The run a manifest makes visible; None where it names no file."""
    if manifest.table != table.name:
        raise UnknownFeed(
            f"{path} is of table {manifest.table!r:.80}, and stands among the {table.name}",
            "remove that manifest: the pipeline did not write it",
        )
    named = {layout.told_in(part.path, "run") for part in manifest.parts}
    if not named:
        return None
    own = all(
        part.path.startswith(f"{table.name}/") and ".." not in part.path.split("/")
        for part in manifest.parts
    )
    run = named.pop()
    if not run or len(run) > limits.NAME_CHARS_MAX or named or not own:
        raise UnknownFeed(
            f"{path} names files that are not of one run",
            f"files of a run are below {layout.run_directory(table.name, 'RUN')}",
        )
    return Found(run, manifest.written_at_ms, manifest.parts)


def _joined(before: Found, more: Found) -> Found:
    parts = before.parts + tuple(part for part in more.parts if part not in before.parts)
    return Found(before.run, max(before.written_at_ms, more.written_at_ms), parts)


class Band(NamedTuple):
    """Rows that are worth more than one value, and no more than another; None is no bound."""

    above: float | None = None
    upto: float | None = None

    def has(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Whether rows are of it, by their values; what is worth no number is of the lowest."""
        is_in = np.ones(len(values), dtype=bool)
        if self.above is not None:
            is_in &= values > self.above
        if self.upto is not None:
            is_in &= ~(values > self.upto)
        return is_in


ALL: Final = Band()


def batches(
    lake: Lake,
    table: Table,
    found: Found,
    columns: Sequence[str],
    node: str | None,
    band: Band = ALL,
) -> Iterator[dict[str, list[Any]]]:
    """The rows of a run about a node, or about all, by columns; of a plan, those of a band.

    Raises:
        UnknownFeed: a file is missing, damaged, or of no known form.
    """
    for part in _parts(lake, table, found, node):
        with _opened(lake, table, part) as parquet:
            yield from _batches(parquet, table, columns, _wanted(parquet, node), band)


def joined(some: Iterable[dict[str, list[Any]]]) -> Iterator[dict[str, list[Any]]]:
    """Batches of the same rows, of several files together where these have few."""
    held: dict[str, list[Any]] = {}
    count = 0
    for batch in some:
        more = len(next(iter(batch.values())))
        if count and count + more > _ROWS_AT_ONCE:
            yield held
            held, count = {}, 0
        for name, values in batch.items():
            held.setdefault(name, []).extend(values)
        count += more
    if count:
        yield held


def worth(lake: Lake, found: Found, node: str) -> dict[str | None, Worth]:
    """By tier: what the rows of a plan about a node are worth, and the bytes they are to write.

    It takes some megabytes, however many rows there are: no other column is read.

    Raises:
        UnknownFeed: a file is missing, damaged, or of no known form.
    """
    out: dict[str | None, Worth] = {}
    for part in _parts(lake, PLANS, found, node):
        with _opened(lake, PLANS, part) as parquet:
            wanted = _wanted(parquet, node)
            for rows in _tables(parquet, ("to_tier", "value", "bytes"), wanted):
                tiers = _column(rows, "to_tier", pa.string())
                values = _values(rows)
                sizes = pc.fill_null(_column(rows, "bytes", pa.int64()), 0).to_numpy()
                sizes = np.maximum(sizes, 0)
                for tier in pc.unique(tiers).to_pylist():
                    # Null is equal to null here.
                    mine = pc.is_in(tiers, pa.array([tier], pa.string())).to_numpy()
                    out.setdefault(tier, Worth()).add(values[mine], sizes[mine])
    return out


def bands(worths: Iterable[Worth], below: float | None = None) -> list[Band]:
    """Bands of some ten thousand rows each, or of a part of all, the most valuable first.

    Args:
        worths: of rows.
        below: what is worth more is a band by itself.
    """
    every = all_ranked(worths)
    values, counts = every.values, every.counts
    if below is not None:
        values, counts = values[values <= below], counts[values <= below]
    through = np.cumsum(counts)
    total = int(through[-1]) if len(through) else 0
    step = max(_ROWS_AT_ONCE, -(-total // _BANDS_MAX))
    edges = [] if below is None else [below]
    ends = np.searchsorted(through, np.arange(step, total, step), side="right")
    for edge in values[ends].tolist():
        # What is worth as much as another is of the same band.
        if edge < (edges[-1] if edges else values[0]):
            edges.append(edge)
    return [Band(*each) for each in zip([*edges, None], [None, *edges], strict=True)]


def outdated(lake: Lake, table: Table, found: Found, node: str, before_ms: int) -> int | None:
    """How many rows are about a node, if all of them were decided before an instant; else None.

    Files say so without their rows being read.

    Raises:
        UnknownFeed: a file is missing, damaged, or of no known form.
    """
    rows = 0
    for part in _parts(lake, table, found, node):
        with _opened(lake, table, part) as parquet:
            wanted = _wanted(parquet, node)
            groups = _groups(parquet, wanted)
            if not all(_is_before(parquet, number, before_ms) for number in groups):
                return None
            rows += _count(parquet, groups, wanted)
    return rows


def _parts(lake: Lake, table: Table, found: Found, node: str | None) -> list[Part]:
    """Files that may have rows about a node; all of them are there."""
    about = [part for part in found.parts if _may_be_about(part, node)]
    _check_sizes(lake, table, found.run, about)
    return about


@contextlib.contextmanager
def _opened(lake: Lake, table: Table, part: Part) -> Iterator[pq.ParquetFile]:
    try:
        with lake.open(part.path, part.bytes) as file:
            parquet = pq.ParquetFile(file)
            _check(parquet, table, part)
            yield parquet
    except _FILE_ERRORS as error:
        # A disk or a store that fails has a number for it; it is tried again.
        if getattr(error, "errno", None) is not None:
            raise
        raise UnknownFeed(
            f"{part.path} cannot be read: {error}",
            "run the pipeline again; rows that were applied before it stay applied",
        ) from error


def _wanted(parquet: pq.ParquetFile, node: str | None) -> str | None:
    """Whose rows are to be chosen; None: all of them are."""
    return node if "node" in parquet.schema_arrow.names else None


def _may_be_about(part: Part, node: str | None) -> bool:
    """Whether a file may have rows about a node, by its name."""
    whose = layout.told_in(part.path, "node")
    return node is None or whose is None or whose == node


def _check_sizes(lake: Lake, table: Table, run: str, parts: Sequence[Part]) -> None:
    """See that all files are there before any row is taken."""
    sizes = dict(lake.list(layout.run_directory(table.name, run))) if parts else {}
    for part in parts:
        size = sizes.get(part.path)
        if size != part.bytes:
            state = "is missing" if size is None else f"has {size} bytes instead of {part.bytes}"
            raise UnknownFeed(
                f"{part.path} {state}", "run the pipeline again, or remove that run's manifest"
            )


def _check(parquet: pq.ParquetFile, table: Table, part: Part) -> None:
    told = parquet.schema_arrow.metadata or {}
    name, version = told.get(TABLE_KEY.encode()), told.get(VERSION_KEY.encode())
    if name is not None and version is not None:
        manifests.check_version(name.decode(), int(version), part.path)
    lacking = [
        each for each in table.required if each not in parquet.schema_arrow.names and each != "node"
    ]
    if lacking or parquet.metadata.num_rows != part.rows:
        what = f"lacks {', '.join(lacking)}" if lacking else "is not the one its manifest names"
        raise UnknownFeed(
            f"{part.path} {what}", "run the pipeline again, or remove that run's manifest"
        )


def _batches(
    parquet: pq.ParquetFile, table: Table, columns: Sequence[str], node: str | None, band: Band
) -> Iterator[dict[str, list[Any]]]:
    there = [name for name in columns if name in parquet.schema_arrow.names]
    known = schema_of(table)
    more = () if band == ALL else ("value",)
    for read in _tables(parquet, list(dict.fromkeys((*there, *more))), node):
        rows = read if band == ALL else read.filter(pa.array(band.has(_values(read))))
        if len(rows):
            lists = {name: rows[name].cast(known.field(name).type).to_pylist() for name in there}
            none = [None] * len(rows)
            yield {name: lists.get(name, none) for name in columns}


def _tables(
    parquet: pq.ParquetFile, columns: Sequence[str], node: str | None
) -> Iterator[pa.Table]:
    """Some columns of the rows about a node, or about all."""
    read = columns if node is None else list(dict.fromkeys(("node", *columns)))
    groups = _groups(parquet, node)
    for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=read):
        rows = pa.Table.from_batches([batch])
        if node is not None:
            rows = rows.filter(pc.equal(rows["node"].cast(pa.string()), node))
        yield rows


def _values(rows: pa.Table) -> Floats:
    """What rows of a plan are worth; nothing where they do not say."""
    found: Floats = pc.fill_null(_column(rows, "value", pa.float64()), 0.0).to_numpy()
    return found


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of rows; nulls where the file has none of that name."""
    if name in rows.column_names:
        return rows[name].cast(kind)
    return pa.chunked_array([pa.nulls(len(rows), kind)])


def _count(parquet: pq.ParquetFile, groups: Sequence[int], node: str | None) -> int:
    """How many rows of groups are about a node."""
    if node is None or not groups:
        return sum(parquet.metadata.row_group(number).num_rows for number in groups)
    read = parquet.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=["node"])
    return sum(
        pc.sum(pc.equal(batch.column(0).cast(pa.string()), node)).as_py() or 0 for batch in read
    )


def _groups(parquet: pq.ParquetFile, node: str | None) -> list[int]:
    """Groups of rows that may be about a node, by what is told of them."""
    numbers = range(parquet.num_row_groups)
    if node is None:
        return list(numbers)
    bounds = [_bounds(parquet, number, "node") for number in numbers]
    return [number for number in numbers if _within(bounds[number], node)]


def _within(bounds: tuple[Any, Any] | None, value: Any) -> bool:
    return bounds is None or bounds[0] <= value <= bounds[1]


def _is_before(parquet: pq.ParquetFile, number: int, before_ms: int) -> bool:
    """Whether all rows of a group are known to have been decided before an instant."""
    bounds = _bounds(parquet, number, "decided_at_ms")
    return bounds is not None and bounds[1] < before_ms


def _bounds(parquet: pq.ParquetFile, number: int, name: str) -> tuple[Any, Any] | None:
    """The least and the greatest value of a column in a group; None if they are not told."""
    group = parquet.metadata.row_group(number)
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == name:
            told = column.statistics
            return None if told is None or not told.has_min_max else (told.min, told.max)
    return None
