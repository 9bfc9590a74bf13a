"""Advice in the lake: runs that manifests make visible, and their rows some at a time.

A file is never read as a whole. What is of no known form is refused by name; nothing else in the
lake is touched by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.feed import layout, manifests
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.table import TABLE_KEY, VERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq.feed.table import Table
    from ebbmq.node.feeding.lake import Lake

_ROWS_AT_ONCE: Final = 65_536
_DAY_MS: Final = 86_400_000


class Found(NamedTuple):
    """A run whose advice is in the lake."""

    run: str
    written_at_ms: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows about all nodes."""
        return sum(part.rows for part in self.parts)


def find(
    lake: Lake, table: Table, since_ms: int = 0, until_ms: int | None = None
) -> tuple[list[Found], list[UnknownFeed]]:
    """Runs that were made visible at these instants, oldest first, and why others cannot be read.

    Args:
        lake: where.
        table: plans or rates.
        since_ms: what was written before is left out, by its day before it is read.
        until_ms: as far as days are looked at; None: at all of them.
    """
    found: dict[str, Found] = {}
    refused: list[UnknownFeed] = []
    for path, _ in _listed(lake, table, since_ms, until_ms):
        if not path.endswith(".json") or _named_before(path, since_ms):
            continue
        try:
            manifest = manifests.decode(lake.read(path), path)
            each = None if manifest.written_at_ms < since_ms else _run(manifest, table, path)
        except UnknownFeed as error:
            refused.append(error)
            continue
        if each is not None:
            before = found.get(each.run)
            found[each.run] = each if before is None else _joined(before, each)
    return sorted(found.values(), key=lambda each: (each.written_at_ms, each.run)), refused


def _listed(
    lake: Lake, table: Table, since_ms: int, until_ms: int | None
) -> Iterator[tuple[str, int]]:
    where = f"{table.name}/{layout.MANIFESTS}"
    if until_ms is None:
        yield from sorted(lake.list(where))
        return
    for day_ms in range(since_ms // _DAY_MS * _DAY_MS, until_ms + 1, _DAY_MS):
        yield from sorted(lake.list(f"{where}/date={layout.date_of(day_ms)}"))


def _named_before(path: str, instant_ms: int) -> bool:
    """Whether a manifest says by its name that it is older: then it need not be read."""
    at = path.rpartition("/")[2].partition("-")[0]
    return at.isdecimal() and int(at) < instant_ms


def _run(manifest: Manifest, table: Table, path: str) -> Found | None:
    """The run a manifest makes visible; None where it names no file."""
    if manifest.table != table.name:
        raise UnknownFeed(
            f"{path} is of table {manifest.table!r:.80}, and stands among the {table.name}",
            "remove that manifest: the pipeline did not write it",
        )
    runs = {layout.told_in(part.path, "run") for part in manifest.parts}
    if not runs:
        return None
    own = all(
        part.path.startswith(f"{table.name}/") and ".." not in part.path.split("/")
        for part in manifest.parts
    )
    run = runs.pop()
    if run is None or runs or not own:
        raise UnknownFeed(
            f"{path} names files that are not of one run",
            f"files of a run are below {layout.run_directory(table.name, 'RUN')}",
        )
    return Found(run, manifest.written_at_ms, manifest.parts)


def _joined(before: Found, more: Found) -> Found:
    parts = before.parts + tuple(part for part in more.parts if part not in before.parts)
    return Found(before.run, max(before.written_at_ms, more.written_at_ms), parts)


def batches(
    lake: Lake, table: Table, found: Found, columns: Sequence[str], node: str | None
) -> Iterator[dict[str, list[Any]]]:
    """The rows of a run about a node, or about all, by columns.

    Raises:
        UnknownFeed: a file is missing, damaged, or of no known form.
    """
    about = [part for part in found.parts if _may_be_about(part, node)]
    _check_sizes(lake, table, found.run, about)
    for part in about:
        try:
            with lake.open(part.path, part.bytes) as file:
                parquet = pq.ParquetFile(file)
                _check(parquet, table, part)
                wanted = node if "node" in parquet.schema_arrow.names else None
                yield from _batches(parquet, table, columns, wanted)
        except (pa.ArrowException, OSError) as error:
            # A disk or a store that fails has a number for it; it is tried again.
            if getattr(error, "errno", None) is not None:
                raise
            raise UnknownFeed(
                f"{part.path} cannot be read: {error}",
                "run the pipeline again; rows that were applied before it stay applied",
            ) from error


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
    parquet: pq.ParquetFile, table: Table, columns: Sequence[str], node: str | None
) -> Iterator[dict[str, list[Any]]]:
    there = [name for name in columns if name in parquet.schema_arrow.names]
    read = there if node is None else list(dict.fromkeys(("node", *there)))
    groups = [
        number for number in range(parquet.num_row_groups) if _may_have(parquet, number, node)
    ]
    known = schema_of(table)
    for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=read):
        rows = pa.Table.from_batches([batch])
        if node is not None:
            rows = rows.filter(pc.equal(rows["node"].cast(pa.string()), node))
        if len(rows):
            lists = {name: rows[name].cast(known.field(name).type).to_pylist() for name in there}
            none = [None] * len(rows)
            yield {name: lists.get(name, none) for name in columns}


def _may_have(parquet: pq.ParquetFile, number: int, node: str | None) -> bool:
    """Whether a group of rows may be about a node, by what is told of it."""
    if node is None:
        return True
    group = parquet.metadata.row_group(number)
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "node":
            told = column.statistics
            return told is None or not told.has_min_max or told.min <= node <= told.max
    return True
