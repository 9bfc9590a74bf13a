"""What the broker asks of a journal; the local log is one, a replicated stream may be another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from ebbmq.errors import StorageFailed
    from ebbmq.model import Level

    Confirmed = Callable[[StorageFailed | None], None]
    #: (segment, offset, length) each; three columns for many.
    Places = Sequence[tuple[int, int, int]] | npt.NDArray[np.int64]


class Journal(Protocol):
    """An ordered log of records with levels of safety, appended to by one writer at a time."""

    @property
    def position(self) -> int:
        """The position after the last append."""

    def admit(self, payload_bytes: int, reserve_bytes: int) -> None:
        """Make sure that a record fits and still leaves `reserve_bytes` for later facts."""

    def place(self, payload_bytes: int) -> tuple[int, int]:
        """Say in which segment and at which offset the payload of the next append will start."""

    def append(self, kind: int, pid: int, count: int, first: int, parts: Sequence[bytes]) -> int:
        """Append one record at level memory and return the position after it."""

    def append_written(self, kind: int, pid: int, count: int, first: int, payload: bytes) -> int:
        """Append one small record, bring everything to level written, return the position."""

    def when(self, level: Level, position: int, callback: Confirmed) -> None:
        """Call back once everything before `position` holds at `level`, or never will."""

    def wait(self, level: Level, position: int) -> None:
        """Return once everything before `position` holds at `level`."""

    def close(self) -> None:
        """Make everything appended durable and take nothing more."""


class SegmentInfo(NamedTuple):
    """A stored segment."""

    number: int
    used_bytes: int
    sealed: bool
    old: bool


class Store(Protocol):
    """The bytes behind a journal: bodies are read from it, relocated in it and let go."""

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Read bytes that were appended."""

    def read_many(self, places: Places) -> list[bytes]:
        """Read many (segment, offset, length), neighbours together."""

    def append_old(
        self, kind: int, pid: int, count: int, first: int, parts: Sequence[bytes]
    ) -> tuple[int, int]:
        """Write a relocated record; return its segment and where its payload starts."""

    @property
    def old_position(self) -> int:
        """The position after the last relocated record; 0 before the first."""

    def sync_old(self) -> None:
        """Return once every relocated record is on the device."""

    def segments(self) -> list[SegmentInfo]:
        """All segments, young before old, in order."""

    def delete_segment(self, number: int) -> None:
        """Remove a sealed segment that nothing refers to."""
