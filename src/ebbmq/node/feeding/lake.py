"""Where the feed is written: a directory, or an object store through obstore.

Files are written whole under names that did not exist; one that counts is on its device. A manifest
appears as a whole or not at all: by a link in a directory, by a conditional put in a store. A power
cut may take the last manifest, never a file that a manifest names: file systems keep the order of
names, so directories need no flush, which others on the same disk would wait for.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from typing_extensions import override

from ebbmq.errors import InvalidSpec, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ebbmq.holding.bucket import Bucket

_TEMPORARY: Final = ".part"
#: Of an object that is read here and there, so much at a time.
_FETCHED_BYTES: Final = 1 << 20
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_SCHEMES: Final = ("s3", "gs", "az", "memory")


class Lake(Protocol):
    """Files by their name from the root of the lake."""

    where: str

    def write(self, path: str, data: bytes) -> None:
        """Write a file that did not exist."""

    def publish(self, path: str, data: bytes) -> None:
        """Write a small file that did not exist so that nobody ever sees a part of it."""

    def read(self, path: str) -> bytes:
        """A small file."""

    def open(self, path: str, size: int) -> BinaryIO:
        """A file of a size, to be read here and there."""

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size of every file below a directory, leftovers included."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; one that is not there is fine."""


def open_lake(address: str, options: Mapping[str, str], data: Path) -> Lake:
    """The lake of an address: a directory, relative to the data directory, or a URL.

    Raises:
        InvalidSpec: the address is of no known kind.
    """
    scheme, found, _ = address.partition("://")
    if not found:
        return DirectoryLake(data / address)
    if scheme == "file":
        return DirectoryLake(Path(address.removeprefix("file://")))
    if scheme not in _SCHEMES:
        raise InvalidSpec(
            f"feed.lake is {address!r}", f"use a directory, or a URL of {', '.join(_SCHEMES)}"
        )
    # Who writes to a directory does not load what object stores need.
    from ebbmq.holding.bucket import Bucket  # noqa: PLC0415

    return ObjectLake(Bucket(address, options))


class DirectoryLake:
    """A lake in a directory, which is made again if somebody took it away."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def write(self, path: str, data: bytes) -> None:
        """Write a file that did not exist, down to the device."""
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write(place, data)
        except FileExistsError:  # not ours
            raise
        except OSError:
            # What there is of it takes space that may be short.
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)
            raise

    def publish(self, path: str, data: bytes) -> None:
        """Write a file beside, then give it its name."""
        place = self._root / path
        beside = place.with_name(place.name + _TEMPORARY)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write(beside, data)
            _name(beside, place)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)

    def read(self, path: str) -> bytes:
        """A small file."""
        return (self._root / path).read_bytes()

    def open(self, path: str, size: int) -> BinaryIO:
        """A file to be read here and there."""
        return (self._root / path).open("rb")

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size of every file below a directory."""
        for at, _, names in os.walk(self._root / prefix, onerror=_unless_absent):
            for name in names:
                place = Path(at, name)
                with contextlib.suppress(FileNotFoundError):
                    yield str(place.relative_to(self._root)), place.stat().st_size

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files, and directories that are empty after that."""
        for path in paths:
            place = self._root / path
            place.unlink(missing_ok=True)
            for parent in place.parents:
                if parent == self._root:
                    break
                try:
                    parent.rmdir()
                except OSError:
                    break

    @staticmethod
    def _write(place: Path, data: bytes) -> None:
        with place.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _name(beside: Path, place: Path) -> None:
    """Give a file a name that no other has, also where there are no links."""
    try:
        os.link(beside, place)
    except OSError as error:
        if error.errno not in _NO_LINKS or place.exists():
            raise
        beside.rename(place)


def _unless_absent(error: OSError) -> None:
    """What cannot be listed is not taken for empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


class ObjectLake:
    """A lake in an object store; an object is there as a whole or not at all."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.where = bucket.where

    def write(self, path: str, data: bytes) -> None:
        """Put an object that did not exist."""
        self._bucket.put(path, bytes(data))

    def publish(self, path: str, data: bytes) -> None:
        """Put an object that did not exist."""
        self._bucket.put(path, bytes(data))

    def read(self, path: str) -> bytes:
        """A small object."""
        found = self._bucket.get(path)
        if found is None:
            raise StorageFailed(f"{path} in {self.where} is gone", "see who deletes there")
        return found

    def open(self, path: str, size: int) -> BinaryIO:
        """An object, of which only what is asked for is fetched."""
        return io.BufferedReader(_Ranges(self._bucket, path, size), _FETCHED_BYTES)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size of every object below a prefix."""
        for found in self._bucket.list(prefix):
            yield found.path, found.size

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects."""
        self._bucket.delete(paths)


class _Ranges(io.RawIOBase):
    """An object of a known size as a file: each read is a request."""

    def __init__(self, bucket: Bucket, path: str, size: int) -> None:
        self._bucket, self._path, self._size = bucket, path, size
        self._at = 0

    @override
    def readable(self) -> bool:
        """Yes."""
        return True

    @override
    def seekable(self) -> bool:
        """Yes."""
        return True

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on from elsewhere."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    @override
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as io calls it
        """Fetch what comes next."""
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        found = self._bucket.get(self._path, self._at, end)
        if found is None:
            raise StorageFailed(f"{self._path} is gone", "see who deletes in the lake")
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
