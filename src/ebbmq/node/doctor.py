"""Checking a data directory that nobody has open: records, pages, bodies in the log, removals.

Bodies that are on devices only are counted: devices check what they give out themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ebbmq.core.row import ELSEWHERE, IN_DOUBT, ROW
from ebbmq.errors import DamagedRecord, EbbError
from ebbmq.journal import checkpoint, faults, scan
from ebbmq.journal.disk import FileDisk, MemoryDisk
from ebbmq.journal.found import Found, Torn
from ebbmq.journal.reader import Reader
from ebbmq.node.clock import SystemClock, doubt_of
from ebbmq.node.config import Config
from ebbmq.node.directory import Directory
from ebbmq.node.engine import Engine
from ebbmq.node.keeping import restarting
from ebbmq.node.outflow import is_intact, message_id
from ebbmq.node.recovery import Recovery
from ebbmq.node.removal_blocks import unreadable_bytes
from ebbmq.node.removals import NoRemovals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from ebbmq.journal.disk import Disk
    from ebbmq.node.catalog import Shard

    Progress = Callable[[int, int], None]


class Report(msgspec.Struct):
    """What an examination found."""

    messages: int = 0
    records: int = 0
    bodies: int = 0
    #: Bodies that are on devices and no more in the log.
    elsewhere: int = 0
    torn_bytes: int = 0
    unusable: bool = False
    problems: list[str] = []
    #: The next opening will not believe the calendar; no damage.
    clock_doubt: str | None = None

    @property
    def clean(self) -> bool:
        """Whether everything that was ever confirmed can be read."""
        return not self.unusable and not self.problems

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**msgspec.structs.asdict(self), "clean": self.clean}


def examine(
    data: str | Path, progress: Progress | None = None, *, disk: Disk | None = None
) -> Report:
    """Verify a data directory and change nothing in it.

    Args:
        data: the directory.
        progress: told how much is done, and of how much.
        disk: where journal and checkpoints are kept instead of in the directory.

    Raises:
        DirectoryInUse: a process has it open.
    """
    report = Report()
    directory = Directory(data, create=False)
    try:
        _examine(directory, disk, report, progress or (lambda done, total: None))
    except (EbbError, OSError) as error:
        told = faults.cannot_open(str(data), error) if isinstance(error, OSError) else error
        report.unusable = True
        report.problems.append(str(told))
    finally:
        directory.close()
    return report


def _examine(directory: Directory, given: Disk | None, report: Report, progress: Progress) -> None:
    disk = given or _disk(directory.path / "journal")
    pages = given or _disk(directory.path / "checkpoints")
    total = sum(disk.open(name).size() for name in disk.names())
    _records(disk, directory.identity.uuid, report, progress, total)
    _checkpoints(pages, report)
    engine = Engine(Config(), SystemClock(), directory, NoRemovals())
    recovery = Recovery(engine, disk, pages)
    recovery.read()
    restarting.mark_rows(engine)
    report.clock_doubt = doubt_of(recovery.since_ms(engine.clock.wall_ms()))
    _removals(directory.path / "removals", report, was_closed=recovery.was_closed)
    for problem in engine.damage:
        if problem not in report.problems:
            report.problems.append(problem)
    reader = Reader(disk)
    shards = list(engine.catalog.shards.values())
    live = sum(page.live for shard in shards for page in shard.partition.index.pages.values())
    for shard in shards:
        given_up = recovery.given_up(shard.partition.pid)
        _bodies(shard, set(given_up), reader, report, lambda done: progress(done, live))
    reader.close()


def _disk(path: Path) -> Disk:
    """A part of the data directory; one that is gone has no files."""
    if path.is_dir():
        return FileDisk(path, read_only=True)
    missing = MemoryDisk()
    missing.where = str(path)
    return missing


def _records(disk: Disk, uuid: bytes, report: Report, progress: Progress, total: int) -> None:
    done = 0
    for found in (scan.scan(disk, uuid), scan.scan_old(disk, uuid)):
        for item in found:
            if type(item) is Found:
                report.records += 1
                done += item.header.payload_bytes
                progress(min(done, total), total)
            elif type(item) is Torn:
                report.torn_bytes += item.nbytes


def _checkpoints(disk: Disk, report: Report) -> None:
    checkpoints = checkpoint.Checkpoints(disk)
    for name in checkpoints.damaged_manifests():
        report.problems.append(f"checkpoint: {name} does not match its checksum")
    loaded = checkpoints.load()
    if loaded is None:
        return
    for blob in loaded.blobs:
        try:
            loaded.read(blob)
        except DamagedRecord as error:
            report.problems.append(f"checkpoint: {error.detail}")
    loaded.close()


def _removals(directory: Path, report: Report, *, was_closed: bool) -> None:
    """Every block of the removals log is whole, but for an end that the journal has, too."""
    for name in ("removals.1.log", "removals.log"):
        path = directory / name
        damaged, tail = unreadable_bytes(path.read_bytes() if path.exists() else b"")
        if was_closed or name != "removals.log":
            damaged += tail
        if damaged:
            report.problems.append(f"removals log: {damaged} bytes of {name} cannot be read")


def _bodies(
    shard: Shard,
    given_up: Collection[int],
    reader: Reader,
    report: Report,
    progress: Callable[[int], None],
) -> None:
    """Every live message has its body, and it is the one that was published."""
    for page, slots in shard.partition.index.live_seqs():
        for slot in slots.tolist():
            if page.number << 12 | slot in given_up:
                continue
            row = ROW.unpack_from(page.buffer, page.offset_of(slot << 6))
            if row[0] >= IN_DOUBT:
                continue
            report.messages += 1
            if row[1] & ELSEWHERE:
                report.elsewhere += 1
                continue
            identity = message_id(shard.partition.pid, page.number << 12 | slot)
            try:
                intact = is_intact(reader.read(row[9], row[10], row[11]), row)
            except (DamagedRecord, OSError):
                intact = False
            if intact:
                report.bodies += 1
            else:
                report.problems.append(f"body of message {identity} does not match its checksum")
        progress(report.messages)
