"""Bugs planted on purpose: small wrong edits, each of which a suite that is named must catch.

`edits.toml` has one entry for each: `bug` says what is wrong with it, `file`, `old` and `new` what
is changed (`old` stands in the file exactly once), `suite` what pytest is asked to run, and
`promise` the section of docs/GUARANTEES.md that it breaks. `make planted` plants one after the
other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bug, and the suite that must catch it."""

    bug: str
    promise: int
    file: str
    old: str
    new: str
    suite: str

    def planted(self, text: str) -> str:
        """A file's text with the bug in it."""
        count = text.count(self.old)
        assert count == 1, f"{self.file} has the text of {self.bug!r} {count} times, not once"
        return text.replace(self.old, self.new)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    edit: tuple[Edit, ...]


def edits() -> tuple[Edit, ...]:
    """All bugs there are to plant."""
    text = (Path(__file__).parent / "edits.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table).edit
