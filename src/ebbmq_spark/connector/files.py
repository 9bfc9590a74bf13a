"""Files that Spark's own reader reads in place of ours, as they are named to it."""

from __future__ import annotations

import msgspec


class NamedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file. As JSON it is what `NamedFiles` of Handover.java reads."""

    path: str
    size_bytes: int
    #: Columns that are not in the file, each with its value in all rows.
    told: dict[str, str | int] = {}
    #: A bit for each row, set if the row is dead, in words of 64 bits; None if none is.
    dead: bytes | None = None
