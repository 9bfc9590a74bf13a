"""A disk that ends the process, or fails, at a named operation of a named file."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ebbmq.journal.disk import FileDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.journal.disk import Disk, File

Operation = Literal["write", "sync", "create", "delete", "rename", "allocate", "truncate"]
Moment = Literal["before", "middle", "after"]

PARTS: Final = ("journal", "checkpoints", "removals")


class Fault(msgspec.Struct, frozen=True):
    """Strike at the `nth` operation on a file whose name starts with `prefix`, counted from 1.

    `error` is what the operation raises; without one the process is killed there. The middle of a
    write is when half of its bytes are written.
    """

    operation: Operation
    moment: Moment
    prefix: str = ""
    nth: int = 1
    error: int | None = None


class Trigger:
    """Counts operations, from any thread, until it is time to strike."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.count = 0
        self._lock = threading.Lock()

    def is_due(self, operation: Operation, name: str) -> bool:
        """Count one operation; True for the one that the fault names."""
        fault = self.fault
        if operation != fault.operation or not name.startswith(fault.prefix):
            return False
        with self._lock:
            self.count += 1
            return self.count == fault.nth

    def strike(self) -> None:
        """Kill the process, or raise."""
        if self.fault.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        raise OSError(self.fault.error, errno.errorcode[self.fault.error or 0])


class FaultyFile:
    """A file of a faulty disk."""

    def __init__(self, file: File, name: str, trigger: Trigger) -> None:
        self._file = file
        self._name = name
        self._trigger = trigger

    def write(self, offset: int, chunks: Sequence[bytes]) -> int:
        if not self._trigger.is_due("write", self._name):
            return self._file.write(offset, chunks)
        data = b"".join(chunks)
        match self._trigger.fault.moment:
            case "before":
                pass
            case "middle":
                self._file.write(offset, [data[: len(data) // 2]])
            case "after":
                self._file.write(offset, [data])
        self._trigger.strike()
        return len(data)

    def put(self, data: bytes, offset: int, /) -> int:
        return self.write(offset, [data])

    def sync(self) -> None:
        with Strike(self._trigger, "sync", self._name):
            self._file.sync()

    def allocate(self, nbytes: int) -> None:
        with Strike(self._trigger, "allocate", self._name):
            self._file.allocate(nbytes)

    def truncate(self, nbytes: int) -> None:
        with Strike(self._trigger, "truncate", self._name):
            self._file.truncate(nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._file.read(offset, nbytes)

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        return self._file.read_cached(offset, nbytes)

    def view(self) -> memoryview:
        return self._file.view()

    def data_from(self, offset: int) -> int:
        return self._file.data_from(offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class Strike:
    """Strikes before or after an operation, if the operation is the one."""

    def __init__(self, trigger: Trigger, operation: Operation, name: str) -> None:
        self._trigger = trigger
        self._is_due = trigger.is_due(operation, name)

    def __enter__(self) -> None:
        if self._is_due and self._trigger.fault.moment == "before":
            self._trigger.strike()

    def __exit__(self, *error: object) -> None:
        if self._is_due and self._trigger.fault.moment != "before" and error[0] is None:
            self._trigger.strike()


class DataDisk:
    """What a data directory holds as one disk, each file where it belongs."""

    def __init__(self, directory: Path) -> None:
        self._disks = []
        for part in PARTS:
            (directory / part).mkdir(parents=True, exist_ok=True)
            self._disks.append(FileDisk(directory / part))

    def _disk(self, name: str) -> FileDisk:
        return self._disks[_part(name)]

    @property
    def where(self) -> str:
        return self._disks[0].where

    def names(self) -> list[str]:
        return sorted(name for disk in self._disks for name in disk.names())

    def create(self, name: str, nbytes: int) -> File:
        return self._disk(name).create(name, nbytes)

    def open(self, name: str) -> File:
        return self._disk(name).open(name)

    def delete(self, name: str) -> None:
        self._disk(name).delete(name)

    def rename(self, name: str, new_name: str) -> None:
        self._disk(name).rename(name, new_name)

    def free_bytes(self) -> int:
        return self._disks[0].free_bytes()


def _part(name: str) -> int:
    if name.startswith(("young-", "old-")):
        return 0
    return 2 if name.startswith("removals.") else 1


class FaultyDisk:
    """Passes everything on to another disk, except at the fault."""

    def __init__(self, disk: Disk, fault: Fault) -> None:
        self._disk = disk
        self._trigger = Trigger(fault)

    @classmethod
    def real(cls, directory: str | Path, fault: Fault) -> FaultyDisk:
        """A data directory whose files fail."""
        return cls(DataDisk(Path(directory)), fault)

    @property
    def count(self) -> int:
        """How many operations of the kind that the fault names there were."""
        return self._trigger.count

    @property
    def where(self) -> str:
        return self._disk.where

    def names(self) -> list[str]:
        return self._disk.names()

    def create(self, name: str, nbytes: int) -> File:
        with Strike(self._trigger, "create", name):
            file = self._disk.create(name, nbytes)
        return FaultyFile(file, name, self._trigger)

    def open(self, name: str) -> File:
        return FaultyFile(self._disk.open(name), name, self._trigger)

    def delete(self, name: str) -> None:
        with Strike(self._trigger, "delete", name):
            self._disk.delete(name)

    def rename(self, name: str, new_name: str) -> None:
        with Strike(self._trigger, "rename", name):
            self._disk.rename(name, new_name)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()
