"""Whether files are what their manifests say: looked at before they are read, and after a failure.

Before: the end of each file, which says its table, version and rows. That finds what is no Parquet,
what is cut off and what a newer version wrote. After Spark failed: all of each file, to name the
one that is damaged inside. Either way the manifest is refused by name, and the rest is read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from ebbmq.errors import EbbError
from ebbmq.feed import layout, manifests
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.table import TABLE_KEY, VERSION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ebbmq.feed.manifests import Manifest, Part
    from ebbmq_spark.lake import Lake

    Look = Callable[[Lake, Part], None]

#: Files that are looked at at once: it is mostly waiting.
_AT_ONCE: Final = 8
_ACTION: Final = "restore it, or remove its manifest to go on without its rows"


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
    parts = [(name_of(each), part) for each in found for part in each.parts]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = pool.map(lambda each: _why(lake, each[1], look), parts)
        return {name: why for (name, _), why in zip(parts, told, strict=True) if why is not None}


def _why(lake: Lake, part: Part, look: Look) -> UnknownFeed | None:
    try:
        look(lake, part)
    except UnknownFeed as error:
        return error
    except EbbError as error:
        return UnknownFeed(f"{part.path} cannot be read: {error.detail}", _ACTION)
    except (pa.ArrowException, OSError) as error:
        return UnknownFeed(f"{part.path} cannot be read: {error}", _ACTION)
    return None


def _see_end(lake: Lake, part: Part) -> None:
    with pq.ParquetFile(lake.open(lake.file(part.path))) as file:
        told = file.schema_arrow.metadata or {}
        rows = file.metadata.num_rows
    table, version = told.get(TABLE_KEY.encode()), told.get(VERSION_KEY.encode(), b"")
    if table is not None and version.isdigit():
        manifests.check_version(table.decode(errors="replace"), int(version), part.path)
    if rows != part.rows:
        raise UnknownFeed(f"{part.path} has {rows} rows instead of {part.rows}", _ACTION)


def _read_all(lake: Lake, part: Part) -> None:
    with pq.ParquetFile(lake.open(lake.file(part.path))) as file:
        for batch in file.iter_batches(use_threads=False):
            batch.validate(full=True)
