"""Runs of the pipeline: a small JSON file each, written last; what has none did not happen.

A record says how far the run read (a watermark a node), so that the next one goes on from there,
and what came of it, for people.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ebbmq.feed.heard import Stretch
from ebbmq.feed.manifests import UnknownFeed

RUNS: Final = "runs"
#: How files end that say what was begun; they go when the record comes.
BEGUN: Final = ".begun"
FORMAT: Final = 1
Kind = Literal["run", "plan", "stream"]
# Fields of structs are looked up at run time, hence no names for type checkers only.
Stretches = tuple[Stretch, ...]


class Read(msgspec.Struct, frozen=True, gc=False):
    """How far a node's events were read: its last manifest, and the last number in it."""

    boot: int
    number: int
    last_seq: int = 0


class Action(msgspec.Struct, frozen=True, gc=False):
    """What a plan asks for of one kind, or leaves out for one reason."""

    count: int
    bytes: int


class Checks(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many events of a node were read, and what was wrong with them; as `Record` has it."""

    events: int = 0
    rejected: int = 0
    duplicates: int = 0
    missing: int = 0
    recovered: int = 0
    impossible: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong."""
        return self == Checks(events=self.events)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was carried through."""

    format: int = FORMAT
    run: str
    kind: Kind
    started_at_ms: int
    #: 0 of one that was begun and did not end: nothing comes of it.
    ended_at_ms: int
    full: bool = False
    #: Events read, and what was wrong with them.
    events: int = 0
    rejected: int = 0
    duplicates: int = 0
    missing: int = 0
    #: Numbers that were missing for a run before, and were told after all.
    recovered: int = 0
    impossible: int = 0
    #: The same by node, of those that were read; "" has the rows that do not say whose they are.
    nodes: dict[str, Checks] = {}
    #: Messages in the snapshots, and how many of them were looked at.
    messages: int = 0
    looked_at: int = 0
    actions: dict[str, Action] = {}
    cost_before: float = 0.0
    cost_after: float = 0.0
    #: What a month may cost; None without a bound.
    budget: float | None = None
    #: What the plan would do with more `room` or `money`.
    left_out: dict[str, Action] = {}
    #: By name: why a file was not read; the next run tries it again.
    refused: dict[str, str] = {}
    read: dict[str, Read] = {}
    #: Which numbers were told up to here.
    heard: dict[str, dict[int, Stretches]] = {}
    #: The run that wrote the profiles, rates and steps that hold: this one, or one before it.
    counted: str | None = None
    notes: tuple[str, ...] = ()


def not_read(name: str, why: str) -> str:
    """That a file was not read, in a line that names it once."""
    line = " ".join(why.split())
    return (
        f"not read: {line}" if name.rpartition("/")[2] in line else f"{name} was not read: {line}"
    )


def nothing_planned(record: Record) -> str:
    """Why a plan asks for nothing, as far as is known."""
    if not record.refused:
        if record.messages:
            return "every message is kept as it should be"
        return "there is no message in any snapshot"
    count = len(record.refused)
    files = "1 file" if count == 1 else f"{count:,} files"
    if record.messages:
        return f"{files} could not be read; of the others every message is kept as it should be"
    return f"{files} could not be read, and in the other snapshots there is no message"


def record_file(run: str) -> str:
    """Where the record of a run is; names sort by instant."""
    return f"{RUNS}/{run}.json"


def begun_file(run: str) -> str:
    """Where it is said that a run was begun."""
    return f"{RUNS}/{run}{BEGUN}"


def encode(record: Record) -> bytes:
    """A record as it is stored."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def decode(stored: bytes, name: str) -> Record:
    """Read a record.

    Raises:
        UnknownFeed: it is none, or of a format that is not known here.
    """
    try:
        head = msgspec.json.decode(stored, type=dict[str, object])
        if head.get("format") == FORMAT:
            return msgspec.json.decode(stored, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnknownFeed(f"{name} is no record of a run: {error}", "remove it") from error
    raise UnknownFeed(
        f"{name} is of format {head.get('format')!r}, this version reads {FORMAT}",
        "use the newer version that wrote it",
    )
