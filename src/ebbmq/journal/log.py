"""The node's log: one sequence of records for all partitions, made durable in groups.

An append joins the record's bytes and puts them on a list; no call into the kernel. `write` hands
everything on the list to the kernel (level *written*: survives a kill -9), `commit` writes and
syncs (level *synced*: survives a power cut). One sync covers every batch that was waiting. What
nobody waits for is written and synced within about UNSYNCED_FLUSH_MS, or after
UNSYNCED_FLUSH_MESSAGES of the kinds that are `counted`, so that a power cut costs at most about
that much of what was confirmed as written only.

1. One thread appends at a time (the caller's lock); any thread may write, wait and read.
2. Bytes reach the file in the order of appends.
3. `position >= written_position >= synced_position`, and none of them ever falls.
4. A failed write or sync is final: what the device has is unknown, so nothing is tried again, every
   waiter and every later append gets StorageFailed, and only reopening (recovery) helps.
5. A full disk is no failure: space is preallocated before a record is admitted, so that what was
   promised to later facts is there.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.errors import ClosedBroker, Overloaded, StorageFailed
from ebbmq.journal import faults, record
from ebbmq.journal.confirm import Confirmations
from ebbmq.journal.contract import SegmentInfo
from ebbmq.journal.layout import Layout, lay_out
from ebbmq.journal.old import OldGeneration
from ebbmq.journal.reader import Reader
from ebbmq.journal.record import (
    HEADER_BYTES,
    LINK,
    PADDING,
    pack_whole,
    record_bytes,
)
from ebbmq.journal.segment import FIRST_POSITION, OLD, Segment, name_of
from ebbmq.journal.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from ebbmq.journal.contract import Confirmed, Places
    from ebbmq.journal.disk import Disk
    from ebbmq.model import Level

_ADMIT_OVERHEAD: Final = HEADER_BYTES + record.ALIGNMENT
_UNFLUSHED_MAX: Final = limits.UNSYNCED_FLUSH_MESSAGES
#: A kind is one byte.
EVERY_KIND: Final = range(256)


class Log:
    """A journal on one disk; `open` makes one."""

    def __init__(
        self,
        disk: Disk,
        uuid: bytes,
        young: Layout,
        old: OldGeneration,
        *,
        threaded: bool,
        counted: Container[int],
    ) -> None:
        self._disk = disk
        self._store = record.seed(uuid)
        self._writer = Writer(young.active, young.sealed)
        self._reader = Reader(disk)
        self._spares = young.spares
        self._old = old
        self._active = young.active
        self._closed = False
        self._reserve_bytes = 0
        #: At most so much waits to be written: what was appended since `write` was last called.
        self._pending_bytes = 0
        self._counted = counted
        self._unflushed_count = 0
        #: Where the log ended at the last call of `mark`, after the last mark, and without marks;
        #: and up to where the last mark proves that it was synced.
        self._looked_at = self._marked_at = self._facts_end = self._proven = 0
        if not young.active.used:
            self._link(young.active, 0)
        self._writer.sync()
        self._confirm = Confirmations(self._writer, self._tidy, threaded=threaded)
        self._thread = self._confirm.thread

    @classmethod
    def open(  # noqa: PLR0913  # where a log goes on, and how
        cls,
        disk: Disk,
        uuid: bytes,
        end_position: int = FIRST_POSITION,
        *,
        segment_bytes: int = limits.SEGMENT_BYTES,
        threaded: bool = True,
        old_end: int | None = None,
        old_number: int = OLD | 1,
        known_synced: int = 0,
        counted: Container[int] = EVERY_KIND,
    ) -> Log:
        """Go on at `end_position`, the `end` of the last thing that `scan` found.

        Everything behind it is erased first, so that no torn record ever comes back; the old
        generation goes on at `old_end`, where one is given, and in segments from `old_number` on
        where it has none that high. What is before
        `known_synced` is on the device already. Kinds of records that are `counted` bring what
        would be lost with them: many of them are flushed sooner.

        Raises:
            StorageFailed: the disk cannot be read or written.
            Overloaded: code `disk_full`; there is no space for a first segment.
        """
        with contextlib.ExitStack() as opened:
            try:
                young = lay_out(disk, record.seed(uuid), end_position, segment_bytes, known_synced)
                opened.callback(young.close)
                old = OldGeneration(disk, uuid, segment_bytes, old_end, old_number)
                opened.callback(old.let_go)
            except OSError as error:
                if faults.is_full(error):
                    raise faults.cannot_open(disk.where, error) from error
                raise faults.storage_failed("opening the log in", disk.where, error) from error
            log = cls(disk, uuid, young, old, threaded=threaded, counted=counted)
            opened.pop_all()
        return log

    @property
    def position(self) -> int:
        """The position after the last append."""
        return self._active.base | self._active.used

    @property
    def written_position(self) -> int:
        """Everything before it survives the end of this process."""
        return self._writer.written_position

    @property
    def synced_position(self) -> int:
        """Everything before it survives a power cut."""
        return self._writer.synced_position

    @property
    def failed(self) -> StorageFailed | None:
        """What ended the log's trust in its disk, if anything did."""
        return self._writer.failed

    def stop(self, failed: StorageFailed) -> None:
        """Take nothing more, because of something beside this log that it must not go on without.

        Everybody who waits is told, and nothing is tried again; the first failure is what counts.
        """
        self._writer.stop(failed)
        self._confirm.release()

    @property
    def flushes(self) -> int:
        """How often the device was asked to make sure of what it holds, since `open`."""
        return self._writer.flushes + self._old.flushes

    @property
    def written_bytes(self) -> int:
        """Bytes handed to the kernel since the log was opened, relocated ones not counted."""
        return self._writer.written_bytes

    @property
    def on_commit(self) -> Callable[[int, int], None] | None:
        """Called with (written_position, synced_position) after each commit, before its waiters."""
        return self._confirm.on_commit

    @on_commit.setter
    def on_commit(self, callback: Callable[[int, int], None] | None) -> None:
        self._confirm.on_commit = callback

    @property
    def before_commit(self) -> Callable[[], None] | None:
        """Called before each commit writes, in its thread: a last chance to append to it."""
        return self._confirm.before_commit

    @before_commit.setter
    def before_commit(self, callback: Callable[[], None] | None) -> None:
        self._confirm.before_commit = callback

    def admit(self, payload_bytes: int, reserve_bytes: int) -> None:
        """Make sure that a record fits and still leaves `reserve_bytes` for later facts.

        `admit(0, reserve_bytes)` only says how much is to be reserved; what is preallocated above
        that is given back by the next commits.

        Raises:
            Overloaded: code `disk_full`; nothing was changed.
        """
        segment = self._active
        spares = self._spares
        self._reserve_bytes = reserve_bytes
        rest = segment.capacity - segment.used - payload_bytes - _ADMIT_OVERHEAD
        if rest < 0 or (
            rest + len(spares.files) * spares.usable_bytes < reserve_bytes + spares.slack_bytes
        ):
            rest = segment.capacity - segment.used
            self._preallocate(spares.needed(rest, record_bytes(payload_bytes), reserve_bytes))

    def place(self, payload_bytes: int) -> tuple[int, int]:
        """Say where the payload of the next append will start, if it has exactly this size."""
        segment = self._active
        nbytes = record_bytes(payload_bytes)
        if segment.used + nbytes > segment.capacity:
            segment = self._roll(nbytes)
        return segment.number, segment.used + HEADER_BYTES

    def append(self, kind: int, pid: int, count: int, first: int, parts: Sequence[bytes]) -> int:
        """Append one record at level memory and return the position after it.

        Raises:
            StorageFailed: the log has failed.
            Overloaded: code `disk_full`; only without `admit` before.
            ClosedBroker: the log was closed.
        """
        writer = self._writer
        if writer.failed is not None or self._closed:
            self._refuse()
        payload = b"".join(parts)
        size = len(payload)
        nbytes = (HEADER_BYTES + 7 + size) & -8
        segment = self._active
        if segment.used + nbytes > segment.capacity:
            segment = self._roll(nbytes)
        position = segment.base | segment.used
        about = (kind, pid, count, first, writer.synced_position)
        header = record.pack(self._store, position, about, payload)
        # One step of the interpreter, so that a writer takes the whole record or nothing of it.
        segment.pending += (header, payload, PADDING[size & 7])
        segment.used += nbytes
        self._pending_bytes += nbytes
        if kind in self._counted:
            self._unflushed_count += count
        self._have_flushed()
        if self._pending_bytes > limits.PENDING_BYTES_MAX:
            self.write()
        return position + nbytes

    def mark(self) -> None:
        """Append a LINK that proves what was synced, where no record has come since the last call.

        Called every few ms, so that what a sync covered is not taken for torn; marks have no marks.

        Raises:
            StorageFailed: the log fails now.
            Overloaded: code `disk_full`; later facts need the space.
        """
        if self._writer.failed is not None:
            return
        end, synced = self.position, self._writer.synced_position
        if end != self._marked_at:
            self._facts_end = end
        if end == self._looked_at and self._proven < min(synced, self._facts_end):
            self.admit(0, self._reserve_bytes)
            self._mark()
            self._proven, self._marked_at = synced, self.position
            self._have_flushed()
        self._looked_at = self.position
        # What was appended since a sync proves it, too, once it is written.
        self.write()

    def append_written(self, kind: int, pid: int, count: int, first: int, payload: bytes) -> int:
        """`append` a small record and `write`, in one step if nothing else waits to be written.

        Raises:
            StorageFailed: the log has failed.
            Overloaded: code `disk_full`; only without `admit` before.
            ClosedBroker: the log was closed.
        """
        writer, segment = self._writer, self._active
        used = segment.used
        if used != segment.written or self._closed or writer.failed is not None:
            return self._append_and_write(kind, pid, count, first, payload)
        position, synced = segment.base | used, writer.synced_position
        data = pack_whole(self._store, position, kind, pid, count, first, synced, payload)
        end = used + len(data)
        if end > segment.capacity:
            return self._append_and_write(kind, pid, count, first, payload)
        try:
            if segment.file.put(data, used) != len(data):
                segment.file.write(used, (data,))
        except OSError as error:
            raise self._failed_to_write(segment, error) from error
        # Nothing else is pending, so nobody else raises them.
        segment.used = segment.written = end
        if kind in self._counted:
            self._unflushed_count += count
            self._have_flushed()
        elif not self._thread.armed:
            self._thread.arm()
        return position + end - used

    def _failed_to_write(self, segment: Segment, error: OSError) -> StorageFailed:
        failed = self._writer.fail("writing", name_of(segment.number), error)
        self._confirm.release()
        return failed

    def _append_and_write(self, kind: int, pid: int, count: int, first: int, payload: bytes) -> int:
        position = self.append(kind, pid, count, first, (payload,))
        self.write()
        return position

    def _have_flushed(self) -> None:
        """Have what was appended flushed within the timeout, or soon if it is much."""
        if not self._thread.armed:
            self._thread.arm()
        if self._unflushed_count >= _UNFLUSHED_MAX:
            self._unflushed_count = 0
            self._thread.hurry()

    def write(self) -> None:
        """Hand everything appended before this call to the kernel, in the caller's thread.

        Raises:
            StorageFailed: the log has failed.
        """
        self._pending_bytes = 0
        segment = self._active
        # Segments are written in order: where nothing of the last is pending, nothing is.
        if segment.used != segment.written or self._writer.failed is not None:
            self._confirm.write()

    def when(self, level: Level, position: int, callback: Confirmed) -> None:
        """Call back once everything before `position` holds at `level`, or never will.

        In the caller's thread at once, except for `synced`: then in the commit thread, in the order
        asked. A callback must neither raise nor wait for this log.
        """
        assert position <= self.position
        self._confirm.when(level, position, callback)

    def wait(self, level: Level, position: int) -> None:
        """Return once everything before `position` holds at `level`.

        Raises:
            StorageFailed: it never will.
        """
        if level == "written":
            if position > self._writer.written_position:
                self._confirm.write()
        elif level == "synced" and position > self._writer.synced_position:
            self._confirm.wait_synced(position)

    def wait_for_commit(self) -> None:
        """Return once a commit that began after this call has ended, one way or the other."""
        self._confirm.wait_for_commit()

    def when_committed(self, callback: Confirmed) -> None:
        """Call back once a commit that began after this call has ended, one way or the other."""
        self._confirm.when_committed(callback)

    def commit(self) -> None:
        """Write and sync everything appended before this call, then call who waited for it.

        Raises:
            StorageFailed: the log has failed.
        """
        self._confirm.commit()

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Read bytes that were appended; pending ones are written first.

        Raises:
            DamagedRecord: the bytes are not there.
        """
        if (segment << 32 | offset) + length > self._writer.written_position and not segment & OLD:
            self.write()
        return self._reader.read(segment, offset, length)

    def read_many(self, places: Places) -> list[bytes]:
        """Read many (segment, offset, length) in the order given, neighbours with one call.

        Raises:
            DamagedRecord: some bytes are not there; `read` tells which.
        """
        written = self._writer.written_position
        if len(places) and written < self.position:
            places = np.asarray(places, dtype=np.int64)
            segments = places[:, 0]
            if ((segments >= written >> 32) & (segments <= self._active.number)).any():
                self.write()
        return self._reader.read_many(places)

    def read_cached(self, places: Places) -> list[bytes] | None:
        """`read_many` of what is written, if it can be had in one call that waits for no device.

        Raises:
            DamagedRecord: some bytes are not there.
        """
        return self._reader.read_cached(places)

    def append_old(
        self, kind: int, pid: int, count: int, first: int, parts: Sequence[bytes]
    ) -> tuple[int, int]:
        """Write a relocated record; return its segment and where its payload starts.

        Raises:
            StorageFailed: the log has failed.
            Overloaded: code `disk_full`; relocation can go on when there is space.
        """
        if self._writer.failed is not None or self._closed:
            self._refuse()
        about = (kind, pid, count, first, self._writer.synced_position)
        try:
            return self._old.append(about, b"".join(parts))
        except OSError as error:
            raise self._full_or_failed("writing an old segment in", error) from error

    @property
    def old_position(self) -> int:
        """The position after the last relocated record; 0 before the first."""
        return self._old.position

    def sync_old(self) -> None:
        """Return once every relocated record is on the device.

        Raises:
            StorageFailed: it never will be.
        """
        self._writer.check()
        try:
            self._old.sync()
        except OSError as error:
            raise self._writer.fail("syncing an old segment in", self._disk.where, error) from error

    @property
    def used_bytes(self) -> int:
        """What all segments hold."""
        young = sum([segment.used for segment in self._writer.open[:]])
        old = sum([segment.used_bytes for segment in self._old.segments()])
        return young + sum(list(self._writer.sealed.values())) + old

    @property
    def oldest_sealed(self) -> int | None:
        """The first young segment that is complete, if there is one."""
        return min(list(self._writer.sealed), default=None)

    def segments(self) -> list[SegmentInfo]:
        """All segments that hold records, young before old, in order."""
        young = {segment.number: (segment.used, False) for segment in self._writer.open[:]}
        young |= {number: (used, True) for number, used in list(self._writer.sealed.items())}
        found = [
            SegmentInfo(number, used, sealed, False)
            for number, (used, sealed) in sorted(young.items())
        ]
        return found + self._old.segments()

    def delete_segment(self, number: int) -> None:
        """Remove a sealed segment that nothing refers to any more; the caller vouches for that.

        Raises:
            StorageFailed: the disk refuses.
        """
        self._reader.forget(number)
        try:
            if number & OLD:
                self._old.delete(number)
                return
            used = self._writer.sealed.get(number)
            assert used is not None, f"{name_of(number)} is not sealed"
            assert self._writer.synced_position >= number << 32 | used
            del self._writer.sealed[number]
            self._disk.delete(name_of(number))
        except OSError as error:
            raise self._writer.fail("deleting", name_of(number), error) from error

    def close(self) -> None:
        """Commit everything and take nothing more.

        A last LINK says that it was synced, so that what is damaged later is never taken for torn.

        Raises:
            StorageFailed: the log has failed; it is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._thread.stop()
        try:
            self.commit()
            self._mark()
            self.commit()
            self._old.close()
        except OSError as error:
            raise self._writer.fail("closing the log in", self._disk.where, error) from error
        finally:
            self._old.let_go()
            self._spares.close()
            self._reader.close()
            self._writer.close()

    def _link(self, segment: Segment, before: int) -> None:
        position = segment.base | segment.used
        about = (LINK, 0, 0, before, self._writer.synced_position)
        segment.pending.append(record.pack(self._store, position, about, b""))
        segment.used += HEADER_BYTES

    def _mark(self) -> None:
        """End with a LINK that proves what was synced, unless the disk is too full for one."""
        if self._active.used + HEADER_BYTES <= self._active.capacity:
            self._link(self._active, 0)
            return
        with contextlib.suppress(Overloaded):
            self._roll(0)

    def _roll(self, nbytes: int) -> Segment:
        self._writer.check()
        try:
            segment = self._spares.take(HEADER_BYTES + nbytes)
        except OSError as error:
            raise self._full_or_failed("preallocating a segment in", error) from error
        full = self._active
        self._link(segment, full.base | full.used)
        # Closed before its successor can be seen: who sees both finds all of the first.
        full.closed = True
        self._writer.open.append(segment)
        self._active = segment
        return segment

    def _tidy(self) -> None:
        """Seal; preallocate ahead of need, so that rolling over never waits; give back the rest."""
        self._writer.seal()
        segment, spares = self._active, self._spares
        rest = segment.capacity - segment.used
        wanted = spares.needed(rest, 0, self._reserve_bytes + spares.ahead_bytes)
        # Given back a little later than made, so that a wavering reserve costs nothing.
        kept = spares.needed(rest, 0, self._reserve_bytes + 2 * spares.ahead_bytes)
        try:
            spares.give_back(kept)
            spares.ensure(wanted)
        except OSError as error:
            # A full disk is told to the publish that needs the space, not to the commit.
            if not faults.is_full(error):
                raise self._writer.fail("preallocating in", self._disk.where, error) from error

    def _preallocate(self, count: int) -> None:
        try:
            self._spares.ensure(count)
        except OSError as error:
            raise self._full_or_failed("preallocating in", error) from error

    def _refuse(self) -> None:
        self._writer.check()
        raise ClosedBroker("the journal is closed", "open the broker again")

    def _full_or_failed(self, doing: str, error: OSError) -> Overloaded | StorageFailed:
        if faults.is_full(error):
            return faults.disk_full(self._disk.where)
        return self._writer.fail(doing, self._disk.where, error)
