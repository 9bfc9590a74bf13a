"""What reading a log finds: records, records of which the beginning is enough, damage, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ebbmq.journal.record import Header


class _Read(msgspec.Struct, frozen=True, gc=False):
    """A record whose header verified; its payload is a view of what was read at once.

    So do not keep it. `end`, here and below, is where the log ends if nothing else is found.
    """

    header: Header
    payload: memoryview

    @property
    def position(self) -> int:
        """Where the record starts."""
        return self.header.position

    @property
    def end(self) -> int:
        """Position after the record."""
        return self.header.end


class Found(_Read, frozen=True, gc=False):
    """A record that verified as a whole."""


class Begun(_Read, frozen=True, gc=False):
    """A record that was on the device once, of which only the beginning was asked for.

    Whether the beginning of its payload verifies is for the caller to say.
    """


class Damaged(msgspec.Struct, frozen=True, gc=False):
    """Bytes that were on the device once and cannot be believed any more.

    With a header it is exactly one record, whose payload (what is left of it) does not verify;
    without, it is everything up to the next record that can be read.
    """

    position: int
    nbytes: int
    header: Header | None = None
    payload: memoryview | None = None

    @property
    def end(self) -> int:
        """Position after the damage."""
        return self.position + self.nbytes


class Torn(msgspec.Struct, frozen=True, gc=False):
    """The end of the log: from `position` on, `nbytes` were written and never known as synced."""

    position: int
    nbytes: int
    headers: tuple[Header, ...] = ()

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.position


Item = Found | Begun | Damaged | Torn
