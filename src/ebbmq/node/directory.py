"""A broker's data directory: one owner at a time, one identity for ever.

data/
  store.json    uuid, format version, whether there is a log, and their checksum
  lock          held (flock), as the directory itself, by the process that has it open
  journal/      young-*.seg old-*.seg
  checkpoints/  pages and manifests
  removals/     removals.log removals.1.log
  decisions/    decisions.log decisions.1.log
  devices.json  identities of devices that are in a directory
  evicted.json  devices that were given up
  devices/      file devices whose directory is not set
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ebbmq.checksum import crc32c
from ebbmq.errors import DirectoryInUse, InvalidSpec, StorageFailed
from ebbmq.journal import faults
from ebbmq.journal.record import UUID_BYTES

FORMAT_VERSION: Final = 1
_TOLD_BYTES: Final = 8


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes this store itself.

    Every header of the journal is checked against the uuid, so a wrong one makes all of it look
    like an end that was never finished. Stores that were made before there was a `crc` have none.
    """

    uuid: Annotated[bytes, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]
    format_version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
    #: CRC32C of the uuid, the version as u32, little endian, and a byte 1 where it has a log.
    crc: int | None = None
    #: A first record is on the device: without any, the log is gone, and the store is not new.
    has_log: bool = False

    @property
    def told(self) -> str:
        """What tells this store from others to clients.

        They do not learn the uuid by it: who knows that can make a body look like a record.
        """
        return blake2b(self.uuid, digest_size=_TOLD_BYTES).hexdigest()


def encode(identity: Identity) -> bytes:
    """What store.json holds, with its checksum."""
    return msgspec.json.encode(msgspec.structs.replace(identity, crc=_checksum(identity)))


def decode(data: bytes) -> Identity:
    """Read what store.json holds.

    Raises:
        msgspec.DecodeError: it is not what was written.
    """
    identity = msgspec.json.decode(data, type=Identity)
    if identity.crc not in (None, _checksum(identity)):
        raise msgspec.DecodeError("its checksum does not match")
    return identity


def _checksum(identity: Identity) -> int:
    version = identity.format_version.to_bytes(4, "little")
    return crc32c(b"\1" * identity.has_log, crc32c(version, crc32c(identity.uuid)))


def _path(path: object) -> Path:
    """What was named; nothing at all is not the directory one happens to be in."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path) or not str(path):
        raise InvalidSpec(f"the data directory is {path!r:.80}", "give the path of a directory")
    return Path(path)


class Directory:
    """An open data directory; `close` lets the next one in."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = _path(path)
        if not create and not (self.path / "store.json").exists():
            raise StorageFailed(
                f"{self.path} is not a data directory: it has no store.json",
                "name the directory that a broker was opened on",
            )
        self._locks = self._take(create=create)
        #: Asked at every commit, wherever the process has gone by then.
        self._absolute = os.path.abspath(self.path)  # noqa: PTH100  # symlinks stay as they are
        self._opened = os.fstat(self._locks[0])
        try:
            self.identity = self._identity()
        except OSError as error:
            self.close()
            raise faults.cannot_open(str(self.path), error) from error
        except BaseException:
            self.close()
            raise

    def _take(self, *, create: bool) -> list[int]:
        """The descriptors that hold the locks."""
        try:
            if create:
                for part in ("", "journal", "checkpoints", "removals"):
                    (self.path / part).mkdir(parents=True, exist_ok=True)
            return lock(self.path)
        except BlockingIOError as error:
            raise DirectoryInUse(
                f"{self.path} is open already, in another process or in this one",
                "close it there, or connect to it instead of opening the directory",
            ) from error
        except OSError as error:
            if faults.is_full(error):
                raise faults.cannot_open(str(self.path), error) from error
            raise StorageFailed(
                f"cannot use {self.path} as a data directory: {error.strerror}",
                "give a directory that this user may write to",
            ) from error

    @classmethod
    def of(cls, other: Directory) -> Directory:
        """The same directory for reading beside its owner; holds no lock."""
        same = cls.__new__(cls)
        vars(same).update(vars(other), _locks=[])
        return same

    def _identity(self) -> Identity:
        path = self.path / "store.json"
        if path.exists():
            try:
                identity = decode(path.read_bytes())
            except msgspec.DecodeError as error:
                raise StorageFailed(
                    f"{path} is damaged: {error}", "restore it from a backup of this directory"
                ) from error
            if identity.format_version > FORMAT_VERSION:
                raise StorageFailed(
                    f"{self.path} has format version {identity.format_version}, "
                    f"this EbbMQ reads {FORMAT_VERSION}",
                    "open it with the EbbMQ that wrote it, or a later one",
                )
            return identity
        if any(any((self.path / part).iterdir()) for part in ("journal", "checkpoints")):
            raise StorageFailed(
                f"{path} is missing beside a journal or checkpoints",
                "restore it from a backup of this directory",
            )
        identity = Identity(secrets.token_bytes(16), FORMAT_VERSION)
        write_durably(path, encode(identity))
        return identity

    def note_log(self) -> None:
        """Say in store.json that a first record is on the device."""
        if not self.identity.has_log:
            self.identity = msgspec.structs.replace(self.identity, has_log=True)
            write_durably(self.path / "store.json", encode(self.identity))

    def lost(self) -> StorageFailed | None:
        """Why what has this path is not the directory that was opened; None while it is."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._absolute), self._opened):  # noqa: PTH116  # quicker
                return None
        return StorageFailed(
            f"{self.path} is not the directory any more that this broker opened: "
            "it was moved, deleted or replaced",
            "stop this broker, put the directory back or name where it is, and open it again; "
            "everything confirmed as synced before this is in it",
        )

    def close(self) -> None:
        """Let go of the locks."""
        unlock(self._locks)


def lock(directory: Path) -> list[int]:
    """Descriptors that have a directory for this process, until they are closed.

    Nobody gets around a lock on the directory itself; on a network file system only one on a file
    in it holds for other machines, too.

    Raises:
        BlockingIOError: another one has it.
        OSError: it cannot be locked.
    """
    locks: list[int] = []
    try:
        for path, flags in (
            (directory, os.O_RDONLY | os.O_DIRECTORY),
            (directory / "lock", os.O_RDWR | os.O_CREAT),
        ):
            locks.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
            fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        unlock(locks)
        raise
    return locks


def unlock(locks: list[int]) -> None:
    """Close what `lock` gave, once: two threads may be at it, and numbers are given out again."""
    with contextlib.suppress(IndexError):
        while True:
            os.close(locks.pop())


def write_durably(path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new one."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
