"""Brings the bytes of the log's open segments to the device, in order, or fails for good."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ebbmq.errors import StorageFailed
from ebbmq.journal import faults
from ebbmq.journal.segment import name_of

if TYPE_CHECKING:
    from ebbmq.journal.segment import Segment


class Writer:
    """The open segments and how far they are written and synced; any thread may write or sync.

    After the first OSError what the device holds is unknown, so nothing is tried again.
    """

    def __init__(self, active: Segment, sealed: dict[int, int]) -> None:
        self.open = [active]
        self.sealed = sealed
        self.synced_position = active.base | active.used
        #: How often a device was asked to make sure of what it holds.
        self.flushes = 0
        self.failed: StorageFailed | None = None
        self._write_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._sealed_bytes = 0

    @property
    def written_position(self) -> int:
        """Everything before it was handed to the kernel; segments are written in order."""
        position = 0
        for segment in self.open[:]:
            written = segment.written
            position = segment.base | written
            if written < segment.used:
                break
        return position

    @property
    def written_bytes(self) -> int:
        """Bytes handed to the kernel since the log was opened."""
        with self._write_lock:
            return self._sealed_bytes + sum(
                segment.written - segment.start for segment in self.open
            )

    def write(self) -> None:
        """Hand everything appended before this call to the kernel.

        Raises:
            StorageFailed: now or before.
        """
        with self._write_lock:
            self.check()
            # The list is copied before any segment is looked at: all but its last are closed, so
            # whatever an earlier one holds is complete when a later one is written.
            for segment in self.open[:]:
                try:
                    segment.write_pending()
                except OSError as error:
                    raise self.fail("writing", name_of(segment.number), error) from error

    def sync(self) -> None:
        """Write everything appended before this call and return once the device has it.

        Raises:
            StorageFailed: now or before.
        """
        with self._sync_lock:
            self.write()
            written = self.written_position
            for segment in self.open[:]:
                upto = segment.written
                if upto > segment.synced:
                    try:
                        self.flushes += 1
                        segment.file.sync()
                    except OSError as error:
                        raise self.fail("syncing", name_of(segment.number), error) from error
                    segment.synced = upto
            self.synced_position = max(self.synced_position, written)

    def seal(self) -> None:
        """Give back the unused ends of segments that were rolled over, once they are synced.

        Raises:
            StorageFailed: now or before.
        """
        with self._sync_lock:
            for segment in self.open[:-1]:
                if not segment.is_sealable:
                    continue
                try:
                    if segment.used < segment.capacity:
                        segment.file.truncate(segment.used)
                    segment.file.close()
                except OSError as error:
                    raise self.fail("sealing", name_of(segment.number), error) from error
                self.sealed[segment.number] = segment.used
                with self._write_lock:
                    self.open.remove(segment)
                    self._sealed_bytes += segment.used - segment.start

    def close(self) -> None:
        """Close the files."""
        for segment in self.open:
            segment.file.close()

    def check(self) -> None:
        """Raise what happened, if anything did."""
        if self.failed is not None:
            raise StorageFailed(self.failed.detail, self.failed.action)

    def fail(self, doing: str, where: str, error: OSError) -> StorageFailed:
        """Stop everything for good and return the error to raise."""
        failed = self.stop(faults.storage_failed(doing, where, error))
        return StorageFailed(failed.detail, failed.action)

    def stop(self, failed: StorageFailed) -> StorageFailed:
        """Stop everything for good; what stopped it first is returned."""
        if self.failed is None:
            self.failed = failed
        return self.failed
