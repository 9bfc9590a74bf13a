"""Manifests: what makes files of the lake visible, all of them at once, and says what is in them.

Written last, under a name that did not exist before. A file that no manifest names was never
published, whatever it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.errors import ClientError
from ebbmq.feed.events import EVENTS
from ebbmq.feed.plans import PLANS
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.settings import Settings
from ebbmq.feed.snapshots import CATALOG
from ebbmq.feed.steps import STEPS
from ebbmq.feed.traces import TRACE

if TYPE_CHECKING:
    from ebbmq.feed.table import Table

FORMAT: Final = 1
# Fields of structs are looked up at run time, hence no names for type checkers only.
JudgedBy = Settings | None
TABLES: Final = {
    table.name: table for table in (EVENTS, CATALOG, PLANS, PROFILES, RATES, STEPS, TRACE)
}


class UnknownFeed(ClientError):
    """Something in the lake is not of a form this version can read."""

    code = "unknown_feed"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: its name from the root of the lake, and what it must hold to be the one meant."""

    path: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of one table that became visible together."""

    format: int = FORMAT
    table: str
    version: int
    node: str
    boot: int
    number: int
    written_at_ms: int
    parts: tuple[Part, ...]
    #: Of events: the first and last `seq` and instant told; a gap to the next boot's is none.
    first_seq: int | None = None
    last_seq: int | None = None
    first_at_ms: int | None = None
    last_at_ms: int | None = None
    #: Of a snapshot: what its messages were judged by.
    settings: JudgedBy = None


class _Head(msgspec.Struct):
    """What is read of a manifest before it is known to be of this format."""

    format: int
    table: str
    version: int


def encode(manifest: Manifest) -> bytes:
    """A manifest as it is stored."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode(stored: bytes, name: str) -> Manifest:
    """Read a manifest.

    Raises:
        UnknownFeed: it is none, or of a format, table or version that is not known here.
    """
    try:
        head = msgspec.json.decode(stored, type=_Head)
        if head.format == FORMAT:
            check_version(head.table, head.version, name)
            return msgspec.json.decode(stored, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnknownFeed(
            f"{name} is no manifest: {error}", "remove it if nothing else wrote it; no row is lost"
        ) from error
    raise UnknownFeed(
        f"{name} is of format {head.format}, this version reads {FORMAT}",
        "read this lake with the newer version that wrote it",
    )


def check_version(table: str, version: int, name: str) -> Table:
    """The table a file is a part of.

    Raises:
        UnknownFeed: no such table, or a version of it that is not known here.
    """
    known = TABLES.get(table)
    if known is None:
        raise UnknownFeed(
            f"{name} is of table {table!r:.80}, which is none of {', '.join(TABLES)}",
            "read this lake with the version that wrote it",
        )
    if not 1 <= version <= known.version:
        raise UnknownFeed(
            f"{name} is of version {version} of {table}, this version reads up to {known.version}",
            "read this lake with the newer version that wrote it",
        )
    return known
