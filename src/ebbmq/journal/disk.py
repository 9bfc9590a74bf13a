"""Where the bytes of a store live: real files, or a memory that loses power on request.

A name that was created, renamed or deleted stays so once the call returned; bytes and sizes of a
file are sure to outlive a power cut only once `sync` returned. `MemoryDisk` keeps that difference:
it remembers what every sector held at the last sync and, in a crash, gives back any mixture.
"""

from __future__ import annotations

import errno
import mmap
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ebbmq.journal import faults
from ebbmq.journal.sectors import SECTOR_BYTES, Content, sectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.journal.sectors import Chance

#: Below this one copy and one plain write cost less than the kernel's work per vector entry.
_JOIN_BYTES_MAX: Final = 16_384
_VECTOR_MAX: Final = 1_024
#: It is not in memory, or the file system cannot tell.
_WOULD_WAIT: Final = (errno.EAGAIN, errno.EOPNOTSUPP)


class File(Protocol):
    """An open file of a disk; every method may raise OSError."""

    def write(self, offset: int, chunks: Sequence[bytes]) -> int:
        """Write all chunks back to back from `offset` and return how many bytes that were."""

    def put(self, data: bytes, offset: int, /) -> int:
        """Write a few bytes at `offset` and return how many were written; mostly all."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` from `offset`; fewer come back only at the end of the file."""

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        """Read what can be had without waiting for a device; None if that is not all of it."""

    def view(self) -> memoryview:
        """All bytes there are, to be looked at; not a copy where files can be mapped."""

    def data_from(self, offset: int) -> int:
        """The next offset at which there may be anything but zeros; `size()` if there is none."""

    def allocate(self, nbytes: int) -> None:
        """Make sure that the first `nbytes` have their space; new ones read as zeros."""

    def truncate(self, nbytes: int) -> None:
        """Give back everything after the first `nbytes`."""

    def sync(self) -> None:
        """Return once everything written is on the device."""

    def size(self) -> int:
        """Bytes up to the end of the file, preallocated ones included."""

    def close(self) -> None:
        """Let go of the file; nothing else may be called."""


class Disk(Protocol):
    """A flat directory of files; every method may raise OSError."""

    @property
    def where(self) -> str:
        """The directory, for messages to people."""

    def names(self) -> list[str]:
        """All files, sorted."""

    def create(self, name: str, nbytes: int) -> File:
        """Make a file of `nbytes` preallocated zeros, or leave no file behind."""

    def open(self, name: str) -> File:
        """Open a file that exists."""

    def delete(self, name: str) -> None:
        """Remove a file for good."""

    def rename(self, name: str, new_name: str) -> None:
        """Give a file another name in one step, replacing what had that name."""

    def free_bytes(self) -> int:
        """Space that can still be allocated."""


class OsFile:
    """A descriptor. It is closed with the last reference, so no reader ever meets a reused one."""

    __slots__ = ("_fd", "put")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: A step less than a method: it writes what one message leads to.
        self.put = partial(os.pwrite, fd)

    def write(self, offset: int, chunks: Sequence[bytes]) -> int:
        """Write all chunks back to back from `offset`."""
        total = sum(map(len, chunks))
        if total <= _JOIN_BYTES_MAX:
            self._write_all(offset, b"".join(chunks))
            return total
        for start in range(0, len(chunks), _VECTOR_MAX):
            vector = chunks[start : start + _VECTOR_MAX]
            wanted = sum(map(len, vector))
            done = os.pwritev(self._fd, vector, offset)
            if done < wanted:
                self._write_all(offset + done, memoryview(b"".join(vector))[done:])
            offset += wanted
        return total

    def _write_all(self, offset: int, data: bytes | memoryview) -> None:
        done = os.pwrite(self._fd, data, offset)
        while done < len(data):
            more = os.pwrite(self._fd, memoryview(data)[done:], offset + done)
            if not more:
                raise faults.full()
            done += more

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read from `offset`; before a sector that fails the kernel stops short, and says why."""
        data = os.pread(self._fd, nbytes, offset)
        while 0 < len(data) < nbytes and (
            more := os.pread(self._fd, nbytes - len(data), offset + len(data))
        ):
            data += more
        return data

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        """Read from `offset` what the kernel has in memory."""
        data = bytearray(nbytes)
        try:
            got = os.preadv(self._fd, [data], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _WOULD_WAIT:
                raise
            return None
        return bytes(data) if got == nbytes else None

    def view(self) -> memoryview:
        """Map the file."""
        if not self.size():
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ))

    def data_from(self, offset: int) -> int:
        """Ask the file system, which knows what was preallocated and never written."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            # ENXIO is its word for nothing but zeros; another one means that it cannot tell.
            return self.size() if error.errno == errno.ENXIO else offset

    def allocate(self, nbytes: int) -> None:
        """Preallocate; the file is as long as before if there is no space."""
        size = self.size()
        try:
            os.posix_fallocate(self._fd, 0, nbytes)
        except OSError:
            os.ftruncate(self._fd, size)
            raise

    def truncate(self, nbytes: int) -> None:
        """Cut the file."""
        os.ftruncate(self._fd, nbytes)

    def sync(self) -> None:
        """Flush to the device."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        """Bytes up to the end of the file."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileDisk:
    """An existing directory of the operating system."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._path = Path(path)
        self._mode = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        self._directory = OsFile(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        """Let go of the directory, so that its file system can be unmounted."""
        self._directory.close()

    @property
    def where(self) -> str:
        """The directory."""
        return str(self._path)

    def names(self) -> list[str]:
        """All files, sorted."""
        return sorted(path.name for path in self._path.iterdir())

    def create(self, name: str, nbytes: int) -> OsFile:
        """Make a preallocated file."""
        path = self._path / name
        file = OsFile(os.open(path, self._mode | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            if nbytes:
                file.allocate(nbytes)
            # The size goes to the device here, so that later syncs carry data only.
            file.sync()
        except OSError:
            file.close()
            path.unlink()
            raise
        self._directory.sync()
        return file

    def open(self, name: str) -> OsFile:
        """Open a file that exists."""
        return OsFile(os.open(self._path / name, self._mode))

    def delete(self, name: str) -> None:
        """Unlink a file."""
        (self._path / name).unlink()
        self._directory.sync()

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file over another."""
        (self._path / name).replace(self._path / new_name)
        self._directory.sync()

    def free_bytes(self) -> int:
        """Space for processes without special rights."""
        stats = os.statvfs(self._path)
        return stats.f_bavail * stats.f_frsize


class MemoryFile:
    """An open file of a MemoryDisk; useless after the crash or kill of its process."""

    def __init__(self, disk: MemoryDisk, content: Content) -> None:
        self._disk = disk
        self._content = content
        self._boot = disk.boots

    def write(self, offset: int, chunks: Sequence[bytes]) -> int:
        """Write to what a sync would save."""
        self._check()
        self._disk.count_write()
        data = b"".join(chunks)
        end = offset + len(data)
        self._grow(end)
        self._content.make_readable(offset, end)
        self._content.remember(offset, end)
        self._content.data[offset:end] = data
        return len(data)

    def put(self, data: bytes, offset: int, /) -> int:
        """Write to what a sync would save."""
        return self.write(offset, (data,))

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read what was written, synced or not."""
        self._check()
        self._content.check_readable(offset, offset + nbytes)
        return bytes(memoryview(self._content.data)[offset : offset + nbytes])

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        """Read what was written: nobody waits for memory."""
        data = self.read(offset, nbytes)
        return data if len(data) == nbytes else None

    def view(self) -> memoryview:
        """Copy what was written."""
        return memoryview(self.read(0, self.size()))

    def data_from(self, offset: int) -> int:
        """Anything may be there."""
        return min(offset, len(self._content.data))

    def allocate(self, nbytes: int) -> None:
        """Preallocate zeros."""
        self._check()
        self._grow(nbytes)

    def truncate(self, nbytes: int) -> None:
        """Cut the file."""
        self._check()
        self._content.remember(nbytes, len(self._content.data))
        del self._content.data[nbytes:]

    def sync(self) -> None:
        """Make everything written survive a crash, unless this sync is the one to fail."""
        self._check()
        content = self._content
        try:
            self._disk.count_sync()
        except OSError:
            content.lost = {**content.before, **content.lost}
            raise
        finally:
            content.before.clear()
        content.synced_size = len(content.data)

    def size(self) -> int:
        """Bytes up to the end of the file."""
        return len(self._content.data)

    def close(self) -> None:
        """Let go of the file."""
        self._boot = -1

    def _check(self) -> None:
        if self._boot != self._disk.boots:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _grow(self, size: int) -> None:
        more = size - len(self._content.data)
        if more > 0:
            if more > self._disk.free_bytes():
                raise faults.full()
            self._content.data.extend(bytes(more))


class MemoryDisk:
    """Files in memory that can be crashed, killed, filled up and damaged; nothing is left to luck.

    The caller's random numbers decide what a crash keeps, so the same seed gives the same bytes.
    """

    where = "memory"

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.boots = 0
        self.syncs = 0
        self._files: dict[str, Content] = {}
        self._sync_failure: int | None = None
        self._write_failure: int | None = None

    def names(self) -> list[str]:
        """All files, sorted."""
        return sorted(self._files)

    def create(self, name: str, nbytes: int) -> MemoryFile:
        """Make a preallocated file."""
        if name in self._files:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if nbytes > self.free_bytes():
            raise faults.full()
        self._files[name] = Content(nbytes)
        return self.open(name)

    def open(self, name: str) -> MemoryFile:
        """Open a file that exists."""
        return MemoryFile(self, self._content(name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        del self._files[self._checked(name)]

    def rename(self, name: str, new_name: str) -> None:
        """Give a file another name."""
        self._files[new_name] = self._files.pop(self._checked(name))

    def free_bytes(self) -> int:
        """Capacity less the sizes of all files."""
        return self.capacity - sum(len(content.data) for content in self._files.values())

    def crash(self, chance: Chance) -> None:
        """Cut the power: synced bytes stay, of the others any subset of sectors."""
        for name in sorted(self._files):
            self._files[name].crash(chance)
        self._boot()

    def kill(self) -> None:
        """Kill the process: everything written stays, open files do not."""
        self._boot()

    def fail_sync_after(self, syncs: int) -> None:
        """Let so many syncs succeed and the next one fail with EIO, losing what it should save."""
        self._sync_failure = syncs

    def fail_write_after(self, writes: int) -> None:
        """Let so many writes succeed and the next one fail with EIO."""
        self._write_failure = writes

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Turn one stored bit, as a failing medium does."""
        content = self._content(name)
        content.data[offset] ^= 1 << bit
        sector, at = divmod(offset, SECTOR_BYTES)
        for kept in (content.before, content.lost):
            if sector in kept:
                held = bytearray(kept[sector])
                held[at] ^= 1 << bit
                kept[sector] = bytes(held)

    def spoil(self, name: str, offset: int, nbytes: int) -> None:
        """Let sectors fail to be read until they are written again, as a failing medium does."""
        self._content(name).unreadable |= set(sectors_of(offset, offset + nbytes))

    def count_sync(self) -> None:
        """Count a sync of any file and fail the one that was asked to fail."""
        self.syncs += 1
        left, self._sync_failure = self._sync_failure, _less_one(self._sync_failure)
        _fail_at_zero(left)

    def count_write(self) -> None:
        """Count a write to any file and fail the one that was asked to fail."""
        left, self._write_failure = self._write_failure, _less_one(self._write_failure)
        _fail_at_zero(left)

    def _boot(self) -> None:
        self.boots += 1
        self._sync_failure = self._write_failure = None

    def _content(self, name: str) -> Content:
        return self._files[self._checked(name)]

    def _checked(self, name: str) -> str:
        if name not in self._files:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return name


def _less_one(left: int | None) -> int | None:
    return left - 1 if left else None


def _fail_at_zero(left: int | None) -> None:
    if left == 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
