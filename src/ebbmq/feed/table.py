"""Tables of the lake as plain data: who writes them and who reads them build their schema of it.

A table has a version. Adding a column that may be absent keeps it: older files lack the column, and
a reader fills it with nothing. Any other change raises it, and a reader refuses versions it does
not know. Column kinds are few on purpose, so that Parquet, Arrow and Spark agree on them exactly.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["text", "int32", "int64", "float64", "bool", "texts", "bytes"]

#: Keys of a Parquet file's own metadata: which table it is a part of, and in which version.
TABLE_KEY: Final = "ebbmq.table"
VERSION_KEY: Final = "ebbmq.version"


class Column(NamedTuple):
    """One column; one that is not `required` may be absent from a row."""

    name: str
    kind: Kind
    meaning: str
    required: bool = True


class Table(NamedTuple):
    """A table of the lake in one version."""

    name: str
    version: int
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the columns every row has."""
        return tuple(column.name for column in self.columns if column.required)

    def metadata(self) -> dict[str, str]:
        """What every file of the table says about itself."""
        return {TABLE_KEY: self.name, VERSION_KEY: str(self.version)}


def optional(name: str, kind: Kind, meaning: str) -> Column:
    """A column that may be absent from a row."""
    return Column(name, kind, meaning, required=False)
