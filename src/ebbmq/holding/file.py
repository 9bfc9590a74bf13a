"""A durable device: copies in a segment log of its own directory.

Theory of operation. A put appends the copies and syncs once; a delete appends tombstones. The index
is in RAM and is rebuilt by reading the log when the device opens. Space comes back from the front:
the oldest segment is deleted once nothing in it is live, and when less than half of the log is
live, what the oldest segment still has is appended again first. As segments go in order, a
tombstone always outlives the put it is about.

Invariants:
1. What the index says is live was synced.
2. Each live copy has journal space reserved for its tombstone, so a delete never fails for want
   of space.
3. A segment is deleted only after what was live in it is synced elsewhere. What cannot be read
   stays, and its segment with it, until it is put again or deleted; a probe tells which it is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ebbmq import limits
from ebbmq.checksum import crc32c
from ebbmq.errors import DamagedRecord, Overloaded, StorageFailed
from ebbmq.holding import file_format
from ebbmq.holding.columns import Batch
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack, Probe, Stored
from ebbmq.holding.file_index import FileIndex, places_of
from ebbmq.journal import faults, record
from ebbmq.journal.disk import FileDisk
from ebbmq.journal.found import Begun, Damaged, Found, Torn
from ebbmq.journal.log import Log
from ebbmq.journal.scan import scan
from ebbmq.journal.segment import FIRST_POSITION, OFFSET_MASK, name_of, numbers
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ebbmq.holding.file_format import Put
    from ebbmq.journal.disk import Disk
    from ebbmq.journal.found import Item

#: A tombstone of one message: a record of its own at worst.
_TOMBSTONE_BYTES: Final = 72
_SEGMENTS_PER_DEVICE: Final = 16
_SEGMENT_BYTES_MIN: Final = 64 * limits.KIB
_PROBE_FILE: Final = "probe"
_PROBE: Final = bytes(512)
#: So many damaged copies are told of at once; the others follow when these are mended.
_TOLD_MAX: Final = 1_024


class _Appended(NamedTuple):
    """A record of copies, and where its payload is."""

    put: Put
    segment: int
    start: int
    payload: bytes


class FileDevice:
    """Copies on a disk; `capacity_bytes` of its spec bounds the log, tombstones included.

    One process opens the directory at a time; the caller sees to that.
    """

    def __init__(
        self, spec: DeviceSpec, disk: Disk, uuid: bytes, clock: Callable[[], float]
    ) -> None:
        """Read the log and go on where it ends.

        Args:
            spec: what this device is.
            disk: a directory of its own.
            uuid: 16 bytes that are this device's for ever.
            clock: seconds that never go back, for the latency of a probe.

        Raises:
            StorageFailed: the directory cannot be read, or is another device's.
            DeviceFull: there is no space for a first segment.
        """
        assert spec.durable
        self._spec = spec
        self._disk = disk
        self._clock = clock
        self._index = FileIndex(file_format.ENTRY_BYTES)
        self._closed = False
        self._damaged_records = 0
        #: Copies that could not be read, or not as they were put, when they were to be moved.
        self._damaged: set[Key] = set()
        #: The segment that cannot go for their sake, and how many copies it had then.
        self._stuck: tuple[int, int] | None = None
        self._segment_bytes = min(
            limits.SEGMENT_BYTES,
            max(_SEGMENT_BYTES_MIN, spec.capacity_bytes // _SEGMENTS_PER_DEVICE),
        )
        try:
            self._see_that_it_reads()
            end = self._load(uuid)
            self._log = Log.open(disk, uuid, end, segment_bytes=self._segment_bytes, threaded=False)
        except OSError as error:
            raise faults.storage_failed("reading the device in", disk.where, error) from error
        except Overloaded as error:
            raise self._full(0) from error

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        return self._spec

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies; they survive power loss once this returns."""
        self._check()
        puts = file_format.puts_of(copies)
        if not puts:
            return
        self._admit(puts)
        appended = self._put(puts)
        if isinstance(copies, Batch) and copies.read_back:
            copies.is_verified = self._is_as_written(appended)
        if self._damaged:
            self._damaged.difference_update(key for put in puts for key in put.names())
        # Without a later header nothing would prove, after a restart, that the batch was synced.
        self._log.append(file_format.MARK, 0, 0, 0, ())
        self._log.write()
        self._reclaim(2 * self._index.live_bytes)

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum."""
        self._check()
        segments, offsets, lengths, crcs = self._index.find(keys).T.tolist()
        places = list(zip(segments, offsets, lengths, strict=True))
        if 0 not in segments:
            return self._checked(self._read(places), crcs)
        there = [at for at, segment in enumerate(segments) if segment]
        found: list[bytes | Lack] = [Lack.MISSING] * len(keys)
        payloads = self._read([places[at] for at in there])
        for at, payload in zip(
            there, self._checked(payloads, [crcs[at] for at in there]), strict=True
        ):
            found[at] = payload
        return found

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies; they do not come back once this returns."""
        self._check()
        present = self._index.present(keys)
        if not present:
            return
        self._append_deletes(present)
        self._log.commit()
        self._index.remove(present)
        if self._damaged:
            self._damaged.difference_update(present)
        with contextlib.suppress(Overloaded):
            self._log.admit(0, self._reserve_bytes())
        self._reclaim(2 * self._index.live_bytes)

    def scan(self, store: bytes) -> Iterable[Stored]:
        """Every copy of that store as of the call."""
        self._check()
        return self._index.of_store(store)

    def probe(self) -> Probe:
        """Write and sync a sector beside the log, and tell the space."""
        started = self._clock()
        failure = self._failure() or self._try_write()
        latency_ms = (self._clock() - started) * 1_000
        used = 0 if self._closed else self._used_bytes()
        found = {"damaged records": self._damaged_records, "damaged copies": len(self._damaged)}
        damaged = ", ".join(f"{count} {what}" for what, count in found.items() if count)
        return Probe(
            ok=failure is None,
            used_bytes=used,
            capacity_bytes=min(self._spec.capacity_bytes, used + self._free_bytes()),
            latency_ms=latency_ms,
            detail=failure or damaged,
            damaged=tuple(sorted(self._damaged)[:_TOLD_MAX]),
        )

    def close(self) -> None:
        """Let go of the files; the copies stay."""
        if not self._closed:
            self._closed = True
            self._log.close()
            if isinstance(self._disk, FileDisk):
                self._disk.close()

    # Opening

    def _see_that_it_reads(self) -> None:
        """Let a disk that fails as a whole be told from one with sectors that do not read.

        Around those the log is read. If that began while all of it fails, and ended when it is well
        again, copies would be taken for gone that are there.
        """
        if _PROBE_FILE not in self._disk.names():
            return
        file = self._disk.open(_PROBE_FILE)
        try:
            file.read(0, len(_PROBE))
        except OSError:
            # If only this one did not read, it does once it is written anew.
            file.write(0, [_PROBE])
            file.sync()
        finally:
            file.close()

    def _load(self, uuid: bytes) -> int:
        end = FIRST_POSITION
        for item in scan(self._disk, uuid):
            if end == FIRST_POSITION:
                self._check_owner(uuid, item)
            end = max(end, item.end)
            match item:
                case Found(header, payload):
                    self._restore(header, payload)
                case Damaged(_, _, header, payload):
                    self._damaged_records += 1
                    if (
                        header is not None
                        and payload is not None
                        and header.kind == file_format.PUT
                    ):
                        self._restore(header, payload)
                case Begun() | Torn():
                    pass
        return end

    def _check_owner(self, uuid: bytes, first: Item) -> None:
        """Refuse a directory in which nothing is ours: going on would erase it."""
        ours = type(first) is not Torn or bool(first.headers)
        for number in numbers(self._disk, old=False)[:1]:
            file = self._disk.open(name_of(number))
            data = read_around(file, 0, record.HEADER_BYTES)
            file.close()
            ours = ours or record.parse(record.seed(uuid), number << 32, data, 0) is not None
        if not ours:
            raise StorageFailed(
                f"the log in {self._disk.where} is not that of device {self._spec.name!r}",
                "give each device a directory of its own, and keep its identity with it",
            )

    def _restore(self, header: record.Header, payload: memoryview) -> None:
        if header.kind == file_format.DELETE:
            for owner, seqs in file_format.read_delete(payload):
                self._index.remove_numbers(owner, seqs)
        elif header.kind == file_format.PUT:
            start = (header.position & OFFSET_MASK) + record.HEADER_BYTES
            segment = header.position >> 32
            for owner, seqs, offsets, *told in file_format.read_put(payload, header.count):
                self._index.add(owner, seqs, places_of(segment, start + offsets, *told))

    # Space

    def _admit(self, puts: Sequence[Put]) -> None:
        sizes = _record_sizes(puts)
        nbytes = sum(sizes) + record.record_bytes(0)
        reserve = self._reserve_bytes(sum(len(put.seqs) for put in puts))
        if self._used_bytes() + nbytes + reserve > self._spec.capacity_bytes:
            self._reclaim(self._index.live_bytes)
            if self._used_bytes() + nbytes + reserve > self._spec.capacity_bytes:
                raise self._full(nbytes)
        self._preallocate(sizes, reserve)

    def _preallocate(self, sizes: Sequence[int], reserve: int) -> None:
        """Have space for records of these sizes, so that appending them cannot fail half way.

        A record that does not fit leaves the end of its segment unused. One above a segment's size
        enlarges a segment when it is appended, which only free space can promise.
        """
        segment = self._segment_bytes
        nbytes = sum(size if size <= segment else 2 * segment for size in sizes)
        enlarging = sum(size - segment for size in sizes if size > segment)
        try:
            self._log.admit(0, nbytes + min(segment, max(sizes)) + reserve)
        except Overloaded as error:
            raise self._full(sum(sizes)) from error
        if enlarging and enlarging > self._free_bytes():
            raise self._full(sum(sizes))

    def _reserve_bytes(self, more: int = 0) -> int:
        return (self._index.count + more) * _TOMBSTONE_BYTES

    def _used_bytes(self) -> int:
        return self._log.used_bytes

    def _free_bytes(self) -> int:
        try:
            return self._disk.free_bytes()
        except OSError:
            return 0

    def _reclaim(self, allowed_bytes: int) -> None:
        """Delete dead segments from the front; relocate while the log is much above `allowed`."""
        live = self._index.live
        while (number := self._log.oldest_sealed) is not None:
            if number in live:
                if self._used_bytes() <= allowed_bytes + 2 * self._segment_bytes:
                    return
                if self._stuck == (number, live[number]):
                    return
                try:
                    self._relocate(number)
                except DeviceFull:
                    return
                if number in live:
                    self._stuck = number, live[number]
                    return
            self._log.delete_segment(number)

    def _relocate(self, segment: int) -> None:
        """Append the live copies of a segment again, also damaged ones; what is unreadable stays.

        A damaged copy may be the only one, and a disk that does not read today may read tomorrow:
        what becomes of it is for those to say who know of the others.
        """
        found = self._index.in_segment(segment)
        payloads = self._read([place[:3] for _, place in found])
        copies = []
        for (key, place), payload in zip(found, payloads, strict=True):
            if isinstance(payload, bytes):
                copies.append(Copy(key, payload, place.crc))
                if crc32c(payload) == place.crc:
                    self._damaged.discard(key)
                    continue
            self._damaged.add(key)
        if copies:
            puts = file_format.puts_of(copies)
            self._preallocate(_record_sizes(puts), self._reserve_bytes())
            self._put(puts)

    # The log

    def _put(self, puts: Sequence[Put]) -> list[_Appended]:
        appended: list[_Appended] = []
        try:
            for put in puts:
                appended.append(self._append_put(put))
            self._log.commit()
        except Overloaded as error:
            known = [key for each in appended for key in each.put.names()]
            self._append_deletes([key for key in known if key not in self._index])
            self._log.commit()
            raise self._full(sum(put.nbytes() for put in puts)) from error
        for put, segment, start, _ in appended:
            first = start + file_format.payloads_at(len(put.seqs))
            self._index.put(put, segment, first)
        return appended

    def _append_put(self, put: Put) -> _Appended:
        payload = b"".join(put.parts())
        segment, start = self._log.place(len(payload))
        count, pid, first = len(put.seqs), int(put.pids[0]), int(put.seqs[0])
        self._log.append(file_format.PUT, pid, count, first, (payload,))
        return _Appended(put, segment, start, payload)

    def _is_as_written(self, appended: Sequence[_Appended]) -> bool:
        """Whether the disk gives back what was written to it."""
        try:
            return all(
                self._log.read(segment, start, len(payload)) == payload
                for _, segment, start, payload in appended
            )
        except DamagedRecord:
            return False

    def _append_deletes(self, keys: Sequence[Key]) -> None:
        for payload in file_format.delete_payloads(keys):
            self._log.append(file_format.DELETE, 0, 0, 0, (payload,))

    def _read(self, places: Sequence[tuple[int, int, int]]) -> list[bytes | Lack]:
        try:
            return list(self._log.read_many(places))
        except DamagedRecord:
            return [self._read_one(*place) for place in places]

    def _read_one(self, segment: int, offset: int, length: int) -> bytes | Lack:
        try:
            return self._log.read(segment, offset, length)
        except DamagedRecord as error:
            return Lack.UNREADABLE if isinstance(error.__cause__, OSError) else Lack.DAMAGED

    def _checked(self, payloads: list[bytes | Lack], crcs: list[int]) -> list[bytes | Lack]:
        if Lack not in map(type, payloads) and (
            list(map(crc32c, cast("list[bytes]", payloads))) == crcs
        ):
            return payloads
        return [
            Lack.DAMAGED if isinstance(payload, bytes) and crc32c(payload) != crc else payload
            for payload, crc in zip(payloads, crcs, strict=True)
        ]

    def _try_write(self) -> str | None:
        try:
            names = self._disk.names()
            file = (
                self._disk.open(_PROBE_FILE)
                if _PROBE_FILE in names
                else self._disk.create(_PROBE_FILE, len(_PROBE))
            )
            try:
                file.write(0, [_PROBE])
                file.sync()
            finally:
                file.close()
        except OSError as error:
            return f"writing in {self._disk.where} failed: {faults.reason(error)}"
        return None

    def _failure(self) -> str | None:
        if self._closed:
            return "closed"
        return None if self._log.failed is None else self._log.failed.detail

    def _check(self) -> None:
        if self._closed:
            raise StorageFailed(f"device {self._spec.name!r} is closed", "open it again")

    def _full(self, nbytes: int) -> DeviceFull:
        return DeviceFull(
            f"device {self._spec.name!r} in {self._disk.where} has no room for {nbytes} more bytes",
            "choose another device, free space on its disk, or raise its capacity_bytes",
        )


def _record_sizes(puts: Sequence[Put]) -> list[int]:
    return [record.record_bytes(put.nbytes()) for put in puts]
