"""The removals log: one record per message that left its queue other than by ack, bounded on disk.

Records are the ones the journal holds (`core.facts.REMOVAL`), appended here in blocks once the
journal has them, each block (`node.removal_blocks`) with the journal position it came from;
recovery appends what is missing. Two files take turns, so the newest half of the bound is always
there.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.core.facts import REMOVAL_DTYPE
from ebbmq.errors import Overloaded
from ebbmq.node.log import log
from ebbmq.node.removal_blocks import find_blocks, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from ebbmq.node.engine import Engine

_FLUSH_BYTES: Final = 256 * 1024
_FILE_BYTES_MAX: Final = limits.REMOVALS_BYTES_MAX // 2


class Removals:
    """The log's files; one writer."""

    def __init__(self, directory: Path, bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._current = directory / "removals.log"
        self._former = directory / "removals.1.log"
        self._bytes_max = bytes_max
        directory.mkdir(parents=True, exist_ok=True)
        self.position = 0
        self._pending: list[tuple[int, bytes]] = []
        #: Positions whose records are there behind damage.
        self._behind: set[int] = set()
        good = self._resume(self._current)
        if not self.position:
            self._resume(self._former)
        self._descriptor = os.open(self._current, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A block cut short by a crash is in the journal still: recovery appends it again.
        os.ftruncate(self._descriptor, good)
        self._end = good

    def _resume(self, path: Path) -> int:
        """Find how far a file goes, and up to where nothing is missing in it."""
        end = 0
        is_whole = True
        for block in find_blocks(path.read_bytes() if path.exists() else b""):
            is_whole = is_whole and block.start == end
            if is_whole:
                self.position = max(self.position, block.position)
            else:
                self._behind.add(block.position)
            end = block.end
        if not is_whole:
            log.warning(
                "removals_damaged",
                file=path.name,
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
        """
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
        try:
            self._append(b"".join(parts))
        except OSError as error:
            # They stay noted, and in the journal: written when there is space.
            os.ftruncate(self._descriptor, self._end)
            raise Overloaded(
                f"the removals log cannot be written: {error.strerror}",
                "free space on the disk of the data directory",
                code="disk_full",
            ) from error
        del self._pending[: len(ready)]
        return bool(self._pending) and self._pending[0][0] <= synced

    def _append(self, data: bytes) -> None:
        if self._end + len(data) > self._bytes_max and self._end:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._current.replace(self._former)
            self._descriptor = os.open(self._current, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end = 0
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, memoryview(data)[done:], self._end + done)
        self._end += done

    def begin_sync(self, synced: int) -> Callable[[], None]:
        """Write; what is returned flushes to the device, and needs no lock.

        Segments with the same facts may go afterwards.
        """
        while self.flush(synced):
            pass
        descriptor = os.dup(self._descriptor)

        def flush_to_device() -> None:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

        return flush_to_device

    def close(self, synced: int = 0) -> None:
        """Write what was noted and is durable in the journal, and let go of the file."""
        try:
            while self.flush(synced):
                pass
        except Overloaded as error:
            log.warning("removals_in_the_journal_only", detail=error.detail)
        finally:
            os.close(self._descriptor)

    def reading(self) -> Reading:
        """All records up to this instant, to be searched without keeping the writer waiting."""
        files = [_mapped(self._former), _mapped(self._current)[: self._end]]
        return Reading(files, [records for _, records in self._pending])


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


def _mapped(path: Path) -> memoryview:
    """A file's bytes, mapped: the log may be larger than the RAM there is to spare."""
    if not path.exists() or not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


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
