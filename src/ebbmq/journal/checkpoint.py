"""Checkpoints: named blobs, each with the journal position it stands for; two generations are kept.

    checkpoint-%08d.pages      the blobs a generation wrote, back to back
    checkpoint-%08d.manifest   [u32 magic][u32 version][u32 crc][u32 bytes] msgpack Manifest

A generation names blobs of its own file and blobs of former files that did not change since; a file
of which less than half is still named is not named again, so that old files can go. The manifest is
written under another name, synced and renamed last: a generation is there as a whole or not at all.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from ebbmq.errors import DamagedRecord

if TYPE_CHECKING:
    from ebbmq.journal.disk import Disk, File

_MAGIC: Final = 0x4B434245
_VERSION: Final = 1
_HEAD: Final = Struct("<IIII")
_PREFIX: Final = "checkpoint-"
_KEPT_GENERATIONS: Final = 2


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
    """The checkpoints on a disk; one writer."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._generation = 0
        self._file: File | None = None
        self._end = 0
        self._blobs: list[Blob] = []
        self._former: dict[tuple[int, int, int], Blob] = {}
        self._worth_keeping: set[int] = set()

    def load(self) -> Loaded | None:
        """The newest generation whose manifest verifies."""
        for generation in sorted(self._generations(), reverse=True):
            manifest = self._manifest(generation)
            if manifest is not None:
                return Loaded(self._disk, manifest)
        return None

    def begin(self, generation: int) -> None:
        """Start to write a generation; one that was not committed is forgotten."""
        if self._file is not None:
            self._file.close()
        former = self._manifest(generation - 1)
        self._former = {(b.kind, b.pid, b.number): b for b in former.blobs} if former else {}
        self._worth_keeping = self._files_worth_keeping()
        self._generation = generation
        self._blobs = []
        self._end = 0
        name = _pages_name(generation)
        if name in self._disk.names():
            self._disk.delete(name)
        self._file = self._disk.create(name, 0)

    def put(self, kind: int, pid: int, number: int, position: int, payload: bytes) -> None:
        """Write a blob."""
        assert self._file is not None
        self._file.write(self._end, [payload])
        self._blobs.append(
            Blob(
                kind, pid, number, position, self._generation, self._end, len(payload),
                crc32c(payload),
            )
        )  # fmt: skip
        self._end += len(payload)

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
        self._file.sync()
        self._file.close()
        self._file = None
        packed = _encode(Manifest(self._generation, start_position, meta, self._blobs))
        name = _manifest_name(self._generation)
        file = self._disk.create(name + ".new", 0)
        file.write(0, [_HEAD.pack(_MAGIC, _VERSION, crc32c(packed), len(packed)), packed])
        file.sync()
        file.close()
        self._disk.rename(name + ".new", name)
        self._sweep()

    def _files_worth_keeping(self) -> set[int]:
        named: dict[int, int] = {}
        for blob in self._former.values():
            named[blob.file] = named.get(blob.file, 0) + blob.length
        worth = set()
        present = set(self._disk.names())
        for number, size in named.items():
            if _pages_name(number) not in present:
                continue
            file = self._disk.open(_pages_name(number))
            if 2 * size >= file.size():
                worth.add(number)
            file.close()
        return worth

    def _sweep(self) -> None:
        kept = sorted(self._generations())[-_KEPT_GENERATIONS:]
        names = {_manifest_name(generation) for generation in kept}
        for generation in kept:
            manifest = self._manifest(generation)
            if manifest is not None:
                names |= {_pages_name(blob.file) for blob in manifest.blobs}
        for name in self._disk.names():
            if name.startswith(_PREFIX) and name not in names:
                self._disk.delete(name)

    def _generations(self) -> list[int]:
        return [
            int(name[len(_PREFIX) : -len(".manifest")])
            for name in self._disk.names()
            if name.startswith(_PREFIX) and name.endswith(".manifest")
        ]

    def _manifest(self, generation: int) -> Manifest | None:
        name = _manifest_name(generation)
        if generation < 1 or name not in self._disk.names():
            return None
        file = self._disk.open(name)
        data = file.read(0, file.size())
        file.close()
        if len(data) < _HEAD.size:
            return None
        magic, version, crc, size = _HEAD.unpack_from(data)
        packed = data[_HEAD.size : _HEAD.size + size]
        if magic != _MAGIC or version != _VERSION or len(packed) != size or crc32c(packed) != crc:
            return None
        return _decode(packed)


def _pages_name(generation: int) -> str:
    return f"{_PREFIX}{generation:08d}.pages"


def _manifest_name(generation: int) -> str:
    return f"{_PREFIX}{generation:08d}.manifest"


def _unreadable(blob: Blob, name: str, why: str) -> DamagedRecord:
    return DamagedRecord(
        f"blob {blob.kind}/{blob.pid:x}/{blob.number} in {name} cannot be read: {why}",
        "the journal is read from its start instead; run `ebbmq doctor`",
    )
