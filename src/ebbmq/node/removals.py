"""The removals log: one record per message that left its queue other than by ack, bounded on disk.

Records are the ones the journal holds (`core.facts.REMOVAL`), appended here in blocks once the
journal has them, each block (`node.removal_blocks`) with the journal position it came from;
recovery appends what is missing. Two files take turns, so the newest half of the bound is always
there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.facts import REMOVAL_DTYPE
from ebbmq.errors import Overloaded, StorageFailed
from ebbmq.journal import faults
from ebbmq.node.log import log
from ebbmq.node.removal_blocks import find_blocks, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from ebbmq.journal.disk import Disk, File
    from ebbmq.node.engine import Engine

_FLUSH_BYTES: Final = 256 * 1024
_FILE_BYTES_MAX: Final = limits.REMOVALS_BYTES_MAX // 2
_CURRENT: Final = "removals.log"
_FORMER: Final = "removals.1.log"
#: Empty, until it becomes the current one.
_NEXT: Final = "removals.new.log"


class Removals:
    """The log's files; one writer.

    What the disk holds after a failed write or sync is unknown: nothing is tried again, and
    `on_failure` is told.
    """

    def __init__(self, disk: Disk, bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self.position = 0
        #: Stops who relies on this log; set once there is somebody.
        self.on_failure: Callable[[StorageFailed], None] = lambda failed: None
        self._failed: StorageFailed | None = None
        self._pending: list[tuple[int, bytes]] = []
        #: Positions whose records are there behind damage.
        self._behind: set[int] = set()
        try:
            self._end = self._resume(_CURRENT)
            if not self.position:
                self._resume(_FORMER)
            self._file = self._opened()
        except OSError as error:
            if faults.is_full(error):
                raise faults.disk_full(disk.where) from error
            raise faults.storage_failed("opening the removals log in", disk.where, error) from error

    def _opened(self) -> File:
        """The current file, without a block that a crash cut short: recovery appends it again."""
        if _CURRENT not in self._disk.names():
            return self._disk.create(_CURRENT, 0)
        file = self._disk.open(_CURRENT)
        try:
            file.truncate(self._end)
        except OSError:
            file.close()
            raise
        return file

    def _resume(self, name: str) -> int:
        """Find how far a file goes, and up to where nothing is missing in it."""
        end = 0
        is_whole = True
        for block in find_blocks(self._view(name)):
            is_whole = is_whole and block.start == end
            if is_whole:
                self.position = max(self.position, block.position)
            else:
                self._behind.add(block.position)
            end = block.end
        if not is_whole:
            log.warning(
                "removals_damaged",
                file=name,
                action="what the journal still has is appended again; see ebbmq doctor",
            )
        return end

    def note(self, records: bytes, position: int) -> None:
        """Keep the records of a REMOVE fact at a journal position; `flush` writes them."""
        if position > self.position and position not in self._behind:
            self.position = position
            self._pending.append((position, records))

    def flush(self, synced: int) -> bool:
        """Write what was noted and is durable in the journal: a removal undone is not on record.

        At most so much that nobody waits long; True if there is more to write.

        Raises:
            Overloaded: code `disk_full`; they stay noted, and in the journal.
            StorageFailed: now or before.
        """
        self._check()
        ready: list[tuple[int, bytes]] = []
        size = 0
        for entry in self._pending:
            if entry[0] > synced or size > _FLUSH_BYTES:
                break
            ready.append(entry)
            size += len(entry[1])
        if not ready:
            return False
        parts: list[bytes] = []
        for position, records in ready:
            parts += pack(records, position)
        self._append(b"".join(parts))
        del self._pending[: len(ready)]
        return bool(self._pending) and self._pending[0][0] <= synced

    def _append(self, data: bytes) -> None:
        if self._end + len(data) > self._bytes_max and self._end:
            self._take_turns()
        try:
            self._end += self._file.write(self._end, [data])
        except OSError as error:
            if not faults.is_full(error):
                raise self._fail("writing", error) from error
            self._cut()
            raise _no_space(error) from error

    def _cut(self) -> None:
        """Take back a block that found no room for all of it."""
        try:
            self._file.truncate(self._end)
        except OSError as error:
            raise self._fail("writing", error) from error

    def _take_turns(self) -> None:
        """Go on in an empty file; whoever still syncs or reads the former one has it open."""
        self._sync(self._file)
        # Made before anything is renamed: where there is no room for it, all stays as it is.
        try:
            if _NEXT in self._disk.names():
                self._disk.delete(_NEXT)
            file = self._disk.create(_NEXT, 0)
        except OSError as error:
            if not faults.is_full(error):
                raise self._fail("making", error) from error
            raise _no_space(error) from error
        try:
            self._disk.rename(_CURRENT, _FORMER)
            self._disk.rename(_NEXT, _CURRENT)
        except OSError as error:
            raise self._fail("renaming", error) from error
        self._file, self._end = file, 0

    def begin_sync(self, synced: int) -> Callable[[], None]:
        """Write; what is returned flushes to the device, and needs no lock.

        Segments with the same facts may go afterwards.

        Raises:
            Overloaded: code `disk_full`.
            StorageFailed: now or before; what is returned raises it, too.
        """
        while self.flush(synced):
            pass
        return partial(self._sync, self._file)

    def _sync(self, file: File) -> None:
        self._check()
        try:
            file.sync()
        except OSError as error:
            raise self._fail("syncing", error) from error

    def _check(self) -> None:
        if self._failed is not None:
            raise StorageFailed(self._failed.detail, self._failed.action)

    def _fail(self, doing: str, error: OSError) -> StorageFailed:
        """Stop for good and return the error to raise."""
        if self._failed is None:
            where = f"the removals log in {self._disk.where}"
            self._failed = faults.storage_failed(doing, where, error)
            self.on_failure(self._failed)
        return StorageFailed(self._failed.detail, self._failed.action)

    def close(self, synced: int = 0) -> None:
        """Write what was noted and is durable in the journal, and let go of the file."""
        try:
            while self.flush(synced):
                pass
        except (Overloaded, StorageFailed) as error:
            log.warning("removals_in_the_journal_only", detail=error.detail)
        finally:
            self._file.close()

    def reading(self) -> Reading:
        """All records up to this instant, to be searched without keeping the writer waiting."""
        files = [self._view(_FORMER), self._view(_CURRENT)[: self._end]]
        return Reading(files, [records for _, records in self._pending])

    def _view(self, name: str) -> memoryview:
        """A file's bytes; the log may be larger than the RAM there is to spare."""
        return self._disk.open(name).view() if name in self._disk.names() else memoryview(b"")


class Reading:
    """The records there were at an instant; the files may grow or take turns meanwhile."""

    def __init__(self, files: list[memoryview], pending: list[bytes]) -> None:
        self._files = files
        self._pending = pending

    def find(
        self,
        pids: list[int],
        *,
        reason: int | None = None,
        since_ms: int | None = None,
        seq: int | None = None,
    ) -> npt.NDArray[np.void]:
        """Matching records, oldest first, also those not written yet."""
        found = []
        for records in self._all():
            mask = np.isin(records["pid"], pids)
            if reason is not None:
                mask &= records["reason"] == reason
            if since_ms is not None:
                mask &= records["at_ms"] >= since_ms
            if seq is not None:
                mask &= records["seq"] == seq
            if mask.any():
                found.append(records[mask])
        return np.concatenate(found) if found else np.empty(0, dtype=REMOVAL_DTYPE)

    def _all(self) -> Iterator[npt.NDArray[np.void]]:
        for data in self._files:
            yield from (block.records for block in find_blocks(data))
        for packed in self._pending:
            yield np.frombuffer(packed, dtype=REMOVAL_DTYPE)


def _no_space(error: OSError) -> Overloaded:
    return Overloaded(
        f"the removals log cannot be written: {faults.reason(error)}",
        "free space on the disk of the data directory",
        code="disk_full",
    )


def flush_in_parts(engine: Engine) -> None:
    """Write what is durable in the journal, the lock free between parts of it."""
    more = True
    while more:
        with engine.in_turn:
            more = engine.closed is None and engine.removals.flush(engine.journal.synced_position)
        if more:
            engine.let_others_in()


class NoRemovals:
    """Keeps nothing: for examining a store without changing it."""

    def note(self, records: bytes, position: int) -> None:
        """Ignore removals."""

    def flush(self, synced: int) -> bool:
        """Nothing was kept."""
        return False

    def begin_sync(self, synced: int) -> Callable[[], None]:
        """Nothing was kept."""
        return lambda: None

    def close(self, synced: int = 0) -> None:
        """Nothing is open."""

    def reading(self) -> Reading:
        """Nothing was kept."""
        return Reading([], [])
