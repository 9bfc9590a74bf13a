"""Checkpoints: named blobs, each with the journal position it stands for; two generations are kept.

    checkpoint-%08d.pages      the blobs a generation wrote, back to back
    checkpoint-%08d.manifest   [u32 magic][u32 version][u32 crc][u32 bytes] msgpack Manifest
                               (crc: CRC32C of the version and the msgpack)

A generation names blobs of its own file and blobs of former files that did not change since; a file
of which less than half is still named, or that is one of too many, is not named again, so that old
files can go. The manifest is written under another name, synced and renamed last: a generation is
there as a whole or not at all. Files that the two newest good generations do not name are deleted.

Changing the format: raise _VERSION, leave the 16 bytes in front of the manifest as they are, and
teach `_manifest` to read the old version.
"""

from __future__ import annotations

import contextlib
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.checksum import crc32c
from ebbmq.errors import DamagedRecord, StorageFailed
from ebbmq.journal import faults
from ebbmq.journal.unreadable import read_around

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ebbmq.journal.disk import Disk, File

_MAGIC: Final = 0x4B434245
_VERSION: Final = 1
_HEAD: Final = Struct("<IIII")
_PREFIX: Final = "checkpoint-"
_MANIFEST: Final = ".manifest"
_KEPT_GENERATIONS: Final = 2
#: Former files that a generation may name.
_FILES_MAX: Final = 32


class Blob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a blob is and what it stands for."""

    kind: int
    pid: int
    number: int
    position: int
    file: int
    offset: int
    length: int
    crc: int


class Manifest(msgspec.Struct, frozen=True):
    """Everything a generation consists of."""

    generation: int
    start_position: int
    meta: bytes
    blobs: list[Blob]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Manifest).decode


class Loaded:
    """A generation that can be read."""

    def __init__(self, disk: Disk, manifest: Manifest) -> None:
        self._disk = disk
        self._files: dict[int, File] = {}
        self.generation = manifest.generation
        self.start_position = manifest.start_position
        self.meta = manifest.meta
        self.blobs = manifest.blobs

    def read(self, blob: Blob) -> bytes:
        """The bytes of a blob.

        Raises:
            DamagedRecord: they are not what was written.
        """
        name = _pages_name(blob.file)
        try:
            file = self._files.get(blob.file)
            if file is None:
                file = self._files[blob.file] = self._disk.open(name)
            payload = file.read(blob.offset, blob.length)
        except OSError as error:
            raise _unreadable(blob, name, str(error)) from error
        if len(payload) != blob.length or crc32c(payload) != blob.crc:
            raise _unreadable(blob, name, "its checksum does not match")
        return payload

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class Checkpoints:
    """The checkpoints on a disk; one writer.

    A checkpoint that cannot be written raises Overloaded (code `disk_full`) or StorageFailed and
    changes nothing: the generations before it stay, and another one may be begun.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._generation = 0
        self._file: File | None = None
        self._end = 0
        self._blobs: list[Blob] = []
        self._former: dict[tuple[int, int, int], Blob] = {}
        self._worth_keeping: set[int] = set()

    def load(self, *, before: int | None = None) -> Loaded | None:
        """The newest generation whose manifest verifies, or the newest one older than `before`.

        Raises:
            StorageFailed: a later version of EbbMQ wrote a newer one, or the disk cannot be read.
        """
        for manifest in self._good_manifests():
            if before is None or manifest.generation < before:
                return Loaded(self._disk, manifest)
        return None

    def begin(self, generation: int) -> None:
        """Start to write a generation; one that was not committed is forgotten."""
        former = next(self._good_manifests(), None)
        assert former is None or former.generation < generation
        with self._named_errors():
            self._abandon()
            self._former = {(b.kind, b.pid, b.number): b for b in former.blobs} if former else {}
            self._worth_keeping = self._files_worth_keeping()
            self._generation = generation
            self._blobs = []
            self._end = 0
            self._file = self._create(_pages_name(generation))

    def put(self, kind: int, pid: int, number: int, position: int, payload: bytes) -> None:
        """Write a blob."""
        self.put_parts(kind, pid, number, position, [payload])

    def put_parts(
        self, kind: int, pid: int, number: int, position: int, parts: Iterable[bytes]
    ) -> None:
        """Write a blob of which there need never be all in memory."""
        assert self._file is not None
        at, crc = self._end, 0
        for part in parts:
            with self._named_errors():
                self._file.write(self._end, [part])
            crc = crc32c(part, crc)
            self._end += len(part)
        size = self._end - at
        self._blobs.append(Blob(kind, pid, number, position, self._generation, at, size, crc))

    def keep(self, kind: int, pid: int, number: int) -> bool:
        """Name the blob of the former generation again; False means that it must be put."""
        blob = self._former.get((kind, pid, number))
        if blob is None or blob.file not in self._worth_keeping:
            return False
        self._blobs.append(blob)
        return True

    def commit(self, meta: bytes, start_position: int) -> None:
        """Make the generation durable and visible, then let go of what nothing names any more."""
        assert self._file is not None
        packed = _encode(Manifest(self._generation, start_position, meta, self._blobs))
        name = _manifest_name(self._generation)
        with self._named_errors():
            self._file.sync()
            self._abandon()
            file = self._create(name + ".new")
            head = _HEAD.pack(_MAGIC, _VERSION, _checksum(_VERSION, packed), len(packed))
            file.write(0, [head, packed])
            file.sync()
            file.close()
            self._disk.rename(name + ".new", name)
            self._sweep()

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self, name: str) -> File:
        """Make a file anew, in place of one that an interrupted checkpoint left."""
        if name in self._disk.names():
            self._disk.delete(name)
        return self._disk.create(name, 0)

    def _files_worth_keeping(self) -> set[int]:
        named: dict[int, int] = {}
        for blob in self._former.values():
            named[blob.file] = named.get(blob.file, 0) + blob.length
        present = set(self._disk.names())
        half_named: dict[int, int] = {}
        for number, size in named.items():
            if _pages_name(number) in present:
                file = self._disk.open(_pages_name(number))
                if 2 * size >= file.size():
                    half_named[number] = size
                file.close()
        return set(sorted(half_named, key=half_named.__getitem__, reverse=True)[:_FILES_MAX])

    def _sweep(self) -> None:
        names: set[str] = set()
        for manifest, _ in zip(self._good_manifests(), range(_KEPT_GENERATIONS), strict=False):
            names.add(_manifest_name(manifest.generation))
            names |= {_pages_name(blob.file) for blob in manifest.blobs}
        for name in self._disk.names():
            if name.startswith(_PREFIX) and name not in names:
                self._disk.delete(name)

    def damaged_manifests(self) -> list[str]:
        """Those that do not verify, by name; a crash leaves none, since they are renamed last."""
        with self._named_errors():
            return [
                _manifest_name(generation)
                for generation in self._generations()
                if self._manifest(generation) is None
            ]

    def _good_manifests(self) -> Iterator[Manifest]:
        """Those that verify, newest first."""
        with self._named_errors():
            generations = self._generations()
        for generation in generations:
            with self._named_errors():
                manifest = self._manifest(generation)
            if manifest is not None:
                yield manifest

    def _generations(self) -> list[int]:
        """Those that have a manifest, newest first."""
        return sorted(
            (
                int(name[len(_PREFIX) : -len(_MANIFEST)])
                for name in self._disk.names()
                if name.startswith(_PREFIX) and name.endswith(_MANIFEST)
            ),
            reverse=True,
        )

    def _manifest(self, generation: int) -> Manifest | None:
        file = self._disk.open(_manifest_name(generation))
        data = read_around(file, 0, file.size())
        file.close()
        if len(data) < _HEAD.size:
            return None
        magic, version, crc, size = _HEAD.unpack_from(data)
        packed = data[_HEAD.size : _HEAD.size + size]
        if magic != _MAGIC or len(packed) != size or _checksum(version, packed) != crc:
            return None
        if version != _VERSION:
            raise StorageFailed(
                f"{_manifest_name(generation)} has format version {version}, "
                f"this EbbMQ reads version {_VERSION}",
                "open the data directory with the EbbMQ that wrote it, or a later one",
            )
        return _decode(packed)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if faults.is_full(error):
                raise faults.disk_full(self._disk.where) from error
            raise faults.storage_failed("a checkpoint in", self._disk.where, error) from error


def _pages_name(generation: int) -> str:
    return f"{_PREFIX}{generation:08d}.pages"


def _manifest_name(generation: int) -> str:
    return f"{_PREFIX}{generation:08d}{_MANIFEST}"


def _checksum(version: int, packed: bytes) -> int:
    return crc32c(packed, crc32c(version.to_bytes(4, "little")))


def _unreadable(blob: Blob, name: str, why: str) -> DamagedRecord:
    return DamagedRecord(
        f"blob {blob.kind}/{blob.pid:x}/{blob.number} in {name} cannot be read: {why}",
        "the journal is read from its start instead; run `ebbmq doctor`",
    )
