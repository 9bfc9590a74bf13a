"""Runs that were: their records in the lake, and the lock that keeps two from writing at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ebbmq.errors import ClientError
from ebbmq.feed import runs
from ebbmq.feed.manifests import UnknownFeed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq.feed.runs import Record


class PipelineBusy(ClientError):
    """Another run writes to the lake."""

    code = "pipeline_busy"


class History(NamedTuple):
    """The records of runs that were carried through, the last one last."""

    records: list[Record]
    refused: list[UnknownFeed]

    def last(self, kind: runs.Kind) -> Record | None:
        """The last run of a kind."""
        return next((each for each in reversed(self.records) if each.kind == kind), None)


def read(root: Path) -> History:
    """The history of a lake; a record that cannot be read is named, the others are there.

    Raises:
        UnknownFeed: there is no such directory.
    """
    require_lake(root)
    found = History([], [])
    for path in sorted((root / runs.RUNS).glob("*.json")):
        try:
            found.records.append(runs.decode(path.read_bytes(), path.name))
        except UnknownFeed as error:
            found.refused.append(error)
    return found


def require_lake(root: Path) -> None:
    """See that there is a lake.

    Raises:
        UnknownFeed: there is no such directory.
    """
    if not root.is_dir():
        raise UnknownFeed(f"there is no lake at {root}", "name the directory that nodes write to")


def run_name(at_ms: int) -> str:
    """The name of a run that begins at an instant; names sort by it."""
    at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
    return f"{at:%Y%m%dT%H%M%S}{at_ms % 1_000:03d}Z"


@contextlib.contextmanager
def only_one(root: Path, what: str) -> Iterator[None]:
    """Be the only one of a kind on the lake; the end of the process ends it, too.

    Raises:
        PipelineBusy: another one is at work.
        UnknownFeed: there is no such directory.
    """
    require_lake(root)
    place = root / runs.RUNS / f".{what}.lock"
    place.parent.mkdir(exist_ok=True)
    with place.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise PipelineBusy(
                f"{owner} is at work on {root}", "wait until it has ended, or end it"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
