"""What a start could not read: said at once, and remembered for what it means later on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.core import facts as fact
from ebbmq.journal.segment import OLD
from ebbmq.node.log import log
from ebbmq.node.numbering import Numbering
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine

#: So many queues are named at most.
_NAMES_MAX: Final = 8


class Losses:
    """Everything that one opening of a data directory found missing, damaged or in doubt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Which messages there should be.
        self.numbering = Numbering()
        #: Messages of a relocation that was not finished, or is damaged, by partition.
        self.doubtful: dict[int, set[int]] = {}
        #: By partition: messages and the old segment that has them, where that is damaged or gone.
        self.moved: dict[int, dict[int, int]] = {}
        #: By partition: messages whose body in a segment is damaged, with that segment.
        self.bodiless: dict[int, dict[int, int]] = {}
        #: By partition: messages that cannot be read, and leave once the log is open.
        self.unread: dict[int, list[int]] = {}
        #: Partitions a checkpointed page, and those a record of which cannot be read.
        self.without_page: set[int] = set()
        self.without_record: set[int] = set()
        #: Segments that were there when the catalog was last told, and those that are missing.
        self.segments: list[int] = []
        self.missing: list[int] = []

    def report(self, problem: str) -> None:
        """Say what cannot be read."""
        self._engine.damage.append(problem)
        log.error("damage", detail=problem)

    def give_up(self, pid: int, seq: int, problem: str) -> None:
        """Say what cannot be read, and have the message leave on the record."""
        self.report(problem)
        self.unread.setdefault(pid, []).append(seq)

    def left(self, pid: int, seqs: range | list[int]) -> None:
        """Messages are known to have left: nobody misses them."""
        if pid in self.doubtful:
            self.doubtful[pid].difference_update(seqs)
        if pid in self.moved:
            for seq in seqs:
                self.moved[pid].pop(seq, None)
        if type(seqs) is range:
            self.numbering.left(pid, seqs)
        else:
            for first, count in fact.runs_of(seqs):
                self.numbering.left(pid, range(first, first + count))

    def name_missing(self) -> None:
        """Say which messages no record brings, though one did; the whole journal was read."""
        engine = self._engine
        for number in self.missing:
            if number in self.segments:
                doubt = "" if self.numbering.is_declared else ", or was given back"
                which = f"old segment {number ^ OLD}" if number & OLD else f"segment {number}"
                self.report(f"journal {which} is missing{doubt}")
        for missing in self.numbering.missing(self.segments):
            pid, first, end, segments, in_doubt = missing
            shard = engine.catalog.shards.get(pid)
            if shard is None or first == end:
                continue
            if in_doubt:
                self.doubt(pid, first, end)
                continue
            for segment in segments:
                # While it is there, facts about them are kept that say that they left.
                engine.note_range(segment, pid, first, end - first)
            left = self.numbering.has_left(pid, first, end)
            index = shard.partition.index
            gone = [s for s in range(first, end) if s not in left and index.locate(s) is None]
            self._name(pid, gone)
            if not set(segments) & set(self.missing):
                self.unread.setdefault(pid, []).extend(gone)
        self._doubt_last()

    def _doubt_last(self) -> None:
        """Of queues that no later record tells of, what cannot be read may be the last messages."""
        shards = self._engine.catalog.shards
        pids = self.numbering.open_ended(shards, self.segments)
        names = sorted({shards[pid].queue.spec.name for pid in pids})
        if names:
            others = f" and {len(names) - _NAMES_MAX} others" if len(names) > _NAMES_MAX else ""
            said = ", ".join(map(repr, names[:_NAMES_MAX])) + others
            self.report(f"what cannot be read may have been the last messages of {said}")

    def doubt(self, pid: int, first: int, end: int) -> None:
        """Say that messages of a partition may be lost."""
        self.report(
            "what cannot be read may have been some of the messages "
            f"{message_id(pid, first)} to {message_id(pid, end - 1)}; "
            "the others had left, or never were"
        )

    def of_relocated(self, pid: int, seq: int, segment: int) -> str:
        """What is to be said of a relocated message that cannot be found."""
        if segment in self.missing and not self.numbering.is_declared:
            return f"relocated message {message_id(pid, seq)} may be lost, or had left"
        return f"relocated message {message_id(pid, seq)} cannot be read"

    def _name(self, pid: int, seqs: list[int]) -> None:
        for first, count in fact.runs_of(seqs):
            if count == 1:
                self.report(f"message {message_id(pid, first)} cannot be read")
            else:
                last = message_id(pid, first + count - 1)
                self.report(f"messages {message_id(pid, first)} to {last} cannot be read")

    def faulty(self) -> set[int]:
        """Partitions of which neither checkpoint nor journal tells all."""
        return self.without_page & self.without_record & set(self._engine.catalog.shards)
