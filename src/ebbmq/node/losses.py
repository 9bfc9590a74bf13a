"""What a start could not read: said at once, and remembered for what it means later on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.core import facts as fact
from ebbmq.journal.segment import OLD
from ebbmq.node.catalog import Damage
from ebbmq.node.log import log
from ebbmq.node.numbering import Numbering
from ebbmq.node.outflow import message_id

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        #: Partition, first and end of messages that may be lost, and how.
        self.ranges: list[tuple[int, int, int, str]] = []
        #: By partition and segment: messages that wait until it is put back.
        self.doubts: dict[tuple[int, int], list[int]] = {}
        #: By partition: messages that are served from devices, with rows in such a segment.
        self.homeless: dict[int, list[int]] = {}
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
            doubt = "" if self.numbering.is_declared else ", or was given back"
            self.report(f"journal {_spelled(number)} is missing{doubt}")
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
            if engine.doubted.keys().isdisjoint({*segments, *self.missing}):
                self.unread.setdefault(pid, []).extend(gone)
        self._doubt_last()

    def name_doubts(self) -> None:
        """Say which messages are not delivered as long as a segment is not put back."""
        for number in self._engine.doubted.keys() - set(self.missing):
            self.report(f"journal {_spelled(number)} is cut short")
        for (pid, segment), seqs in self.doubts.items():
            for _, _, said in _runs(pid, seqs):
                self.report(f"in doubt without journal {_spelled(segment)}: {said}")

    def accept(self) -> None:
        """Give up what is in doubt: it leaves once the log is open."""
        for (pid, segment), seqs in self.doubts.items():
            self.unread.setdefault(pid, []).extend(seqs)
            why = f"{_spelled(segment)} was given up"
            self.ranges += [(pid, first, end, why) for first, end, _ in _runs(pid, seqs)]

    def remember(self) -> None:
        """Have the catalog say which messages may be lost, for who asks what became of them."""
        known = self._engine.catalog.damage
        at_ms, before = self._engine.clock.wall_ms(), {(d.pid, d.first, d.end) for d in known}
        known.extend(Damage(*it[:3], at_ms, it[3]) for it in self.ranges if it[:3] not in before)

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
        self.ranges.append((pid, first, end, "something cannot be read"))
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
        for first, end, said in _runs(pid, seqs):
            self.ranges.append((pid, first, end, "it cannot be read"))
            self.report(f"{said} cannot be read")

    def faulty(self) -> set[int]:
        """Partitions of which neither checkpoint nor journal tells all."""
        return self.without_page & self.without_record & set(self._engine.catalog.shards)


def _spelled(segment: int) -> str:
    return f"old segment {segment ^ OLD}" if segment & OLD else f"segment {segment}"


def _runs(pid: int, seqs: list[int]) -> Iterator[tuple[int, int, str]]:
    """First and end of consecutive messages, and how they are called."""
    for first, count in fact.runs_of(sorted(seqs)):
        said = f"message {message_id(pid, first)}"
        if count > 1:
            said = f"messages {said[8:]} to {message_id(pid, first + count - 1)}"
        yield first, first + count, said
