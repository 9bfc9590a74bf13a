"""Whether files are what their manifests say: looked at before they are read, and after a failure.

Before: the end of each file, which says its table, version, columns and rows. That finds what is no
Parquet, what is cut off, what is of another table and what a newer version wrote. After Spark
failed: all of each file, to name the one that is damaged inside. Either way the manifest is refused
by name, and the rest is read.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.errors import EbbError
from ebbmq.feed import layout, manifests
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.table import TABLE_KEY, VERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq.feed.table import Table
    from ebbmq_spark.lake import Lake

    Look = Callable[[Lake, Part, Table], None]

#: Files that are looked at at once: it is mostly waiting.
_AT_ONCE: Final = 8
ACTION: Final = "restore it, or remove its manifest to go on without its rows"


class Unreadable(UnknownFeed):
    """A file is damaged inside, which shows only while it is read."""


@contextlib.contextmanager
def named(file: str) -> Iterator[None]:
    """Name the file that turns out to be damaged while it is read.

    Raises:
        Unreadable: instead of what reading it raises.
    """
    try:
        yield
    except (pa.ArrowException, OSError, EbbError) as error:
        raise Unreadable(f"{file} cannot be read: {error}", ACTION) from error


def refused(lake: Lake, found: Iterable[Manifest]) -> dict[str, UnknownFeed]:
    """Manifests that name a file which says itself that it is not the one; by name, why."""
    return _looked(lake, found, _see_end)


def damaged(lake: Lake, found: Iterable[Manifest]) -> dict[str, UnknownFeed]:
    """Manifests that name a file which cannot be read to its end; by name, why.

    Files of a manifest that is not there any more are not damaged: their node took them away.
    """
    told = _looked(lake, found, _read_all)
    return {name: why for name, why in told.items() if lake.modified_ms(name) is not None}


def is_any_gone(lake: Lake, found: Iterable[Manifest]) -> bool:
    """Whether a node took one of them away meanwhile."""
    return any(lake.modified_ms(name_of(each)) is None for each in found)


def name_of(manifest: Manifest) -> str:
    """The file of a manifest."""
    return layout.manifest_file(
        manifest.table, manifest.written_at_ms, manifest.node, manifest.boot, manifest.number
    )


def _looked(lake: Lake, found: Iterable[Manifest], look: Look) -> dict[str, UnknownFeed]:
    parts = [(each, part) for each in found for part in each.parts]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = pool.map(lambda each: _why(lake, each[0], each[1], look), parts)
        pairs = zip(parts, told, strict=True)
        return {name_of(each): why for (each, _), why in pairs if why is not None}


def _why(lake: Lake, manifest: Manifest, part: Part, look: Look) -> UnknownFeed | None:
    try:
        look(lake, part, manifests.TABLES[manifest.table])
    except UnknownFeed as error:
        return error
    except EbbError as error:
        return UnknownFeed(f"{part.path} cannot be read: {error.detail}", ACTION)
    except (pa.ArrowException, OSError) as error:
        return UnknownFeed(f"{part.path} cannot be read: {' '.join(str(error).split())}", ACTION)
    return None


def _see_end(lake: Lake, part: Part, table: Table) -> None:
    with pq.ParquetFile(lake.open(lake.file(part.path))) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    told = schema.metadata or {}
    name, version = told.get(TABLE_KEY.encode()), told.get(VERSION_KEY.encode(), b"")
    if name is not None and version.isdigit():
        found = manifests.check_version(name.decode(errors="replace"), int(version), part.path)
        if found.name != table.name:
            raise UnknownFeed(f"{part.path} is of {found.name} instead of {table.name}", ACTION)
    _check_columns(schema, part, table)
    if rows != part.rows:
        raise UnknownFeed(f"{part.path} has {rows} rows instead of {part.rows}", ACTION)


def _check_columns(schema: pa.Schema, part: Part, table: Table) -> None:
    """See that Spark can read the columns: one that need not be there may be absent."""
    for wanted in schema_of(table):
        found = schema.get_all_field_indices(wanted.name)
        if len(found) > 1 or (not found and not wanted.nullable):
            raise UnknownFeed(
                f"{part.path} has {len(found)} columns {wanted.name}, and is of {table.name}",
                ACTION,
            )
        kinds = [schema.field(index).type for index in found]
        if not all(_plain(kind).equals(wanted.type) for kind in kinds):
            raise UnknownFeed(
                f"{part.path} has {kinds[0]} in column {wanted.name} instead of {wanted.type}",
                ACTION,
            )


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type by what Parquet stores; that Arrow would hold it in another way is none of it."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def _read_all(lake: Lake, part: Part, _: Table) -> None:
    with pq.ParquetFile(lake.open(lake.file(part.path))) as file:
        for batch in file.iter_batches(use_threads=False):
            batch.validate(full=True)
