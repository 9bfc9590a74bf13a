"""Files that Spark's own reader reads in place of ours, as they are named to it."""

from __future__ import annotations

import msgspec
from typing_extensions import override


class NamedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file. As JSON it is what `NamedFiles` of Handover.java reads."""

    #: Of an object it is a name, by which it is shown.
    path: str
    size_bytes: int
    #: Columns that are not in the file, each with its value in all rows.
    told: dict[str, str | int] = {}
    #: A bit for each row, set if the row is dead, in words of 64 bits; None if none is.
    dead: bytes | None = None
    #: Of an object: by it whoever has it can read, so it is never shown.
    url: str | None = None
    #: What a store tells objects of one name apart by; None if it does not.
    tag: str | None = None

    @override
    def __repr__(self) -> str:
        return f"NamedFile({self.path!r}, {self.size_bytes})"
