"""What a journal has in which record, and how to make one of them unreadable."""

from __future__ import annotations

import base64
import json
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ebbmq.core import facts as fact
from ebbmq.journal import scan
from ebbmq.journal.disk import FileDisk
from ebbmq.journal.found import Found
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.segment import OFFSET_MASK, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ebbmq import Broker


@dataclass
class Record:
    """One record of the young segments: the ids that it brings, and those that it says left."""

    position: int
    end: int
    kind: int
    brings: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)


def records(directory: Path) -> list[Record]:
    """Every record that can be read, in order."""
    uuid = base64.b64decode(json.loads((directory / "store.json").read_bytes())["uuid"])
    out: list[Record] = []
    for item in scan.scan(FileDisk(directory / "journal", read_only=True), uuid):
        if type(item) is not Found:
            continue
        head = item.header
        record = Record(head.position, head.end, head.kind)
        parts = [(head.kind, head.pid, head.count, head.first, 0, item.payload)]
        for kind, pid, count, first, _, payload in (
            fact.grouped(item.payload) if head.kind == fact.GROUP else parts
        ):
            if kind == fact.PUBLISH:
                record.brings |= {f"{pid:x}-{seq:x}" for seq in range(first, first + count)}
            elif kind == fact.ACK:
                for start, length in fact.acked(payload):
                    record.ends |= {f"{pid:x}-{start + n:x}" for n in range(length)}
            elif kind == fact.REMOVE:
                for removal in fact.REMOVAL.iter_unpack(payload):
                    record.ends.add(f"{pid:x}-{removal[2]:x}")
        out.append(record)
    return out


def old_records(directory: Path) -> list[Record]:
    """Every record of the old segments that can be read, in order."""
    uuid = base64.b64decode(json.loads((directory / "store.json").read_bytes())["uuid"])
    out: list[Record] = []
    for item in scan.scan_old(FileDisk(directory / "journal", read_only=True), uuid):
        if type(item) is Found:
            head, at = item.header, fact.RELOCATE_HEAD.size
            seqs = struct.unpack_from(f"<{head.count}Q", item.payload, at)
            brings = {f"{head.pid:x}-{seq:x}" for seq in seqs}
            out.append(Record(head.position, head.end, head.kind, brings))
    return out


def bringing(directory: Path, identity: str) -> Record:
    """The record that a message is in."""
    return next(record for record in records(directory) if identity in record.brings)


def erase_header(directory: Path, record: Record) -> None:
    """Make a record one that nobody can tell anything of."""
    _overwrite(directory, record.position, HEADER_BYTES)


def flip_header(directory: Path, record: Record) -> None:
    """Turn one bit of the header of a record."""
    path = directory / "journal" / name_of(record.position >> 32)
    data = bytearray(path.read_bytes())
    data[(record.position & OFFSET_MASK) + 17] ^= 4
    path.write_bytes(data)


def erase_sector(directory: Path, record: Record, nbytes: int = 512) -> None:
    """Overwrite the sector in which a record starts; it may take others along."""
    _overwrite(directory, record.position // nbytes * nbytes, nbytes)


def _overwrite(directory: Path, position: int, nbytes: int) -> None:
    path = directory / "journal" / name_of(position >> 32)
    with path.open("r+b") as file:
        file.seek(position & OFFSET_MASK)
        file.write(b"\xa5" * nbytes)


def forget_checkpoints(directory: Path) -> None:
    """Have everything read from the journal."""
    for path in (directory / "checkpoints").iterdir():
        path.unlink()


def give_back(broker: Broker, is_enough: Callable[[], bool]) -> None:
    """Have space given back until it is enough; another thread seals the segments."""
    deadline = time.monotonic() + 30
    while not is_enough():
        assert time.monotonic() < deadline, "too little was given back"
        broker.engine.upkeep()


def young(directory: Path) -> list[int]:
    """The numbers of the young segments."""
    return sorted(int(path.stem[6:]) for path in (directory / "journal").glob("young-*"))


def old(directory: Path) -> list[int]:
    """The numbers of the old segments."""
    return sorted(int(path.stem[4:]) for path in (directory / "journal").glob("old-*"))
