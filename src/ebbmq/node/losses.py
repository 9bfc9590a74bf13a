"""What a start could not read: said at once, and remembered for what it means later on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.node.log import log

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine


class Losses:
    """Everything that one opening of a data directory found missing, damaged or in doubt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Messages of a relocation that was not finished, or is damaged, by partition.
        self.doubtful: dict[int, set[int]] = {}
        #: By partition: messages whose body in a segment is damaged, with that segment.
        self.bodiless: dict[int, dict[int, int]] = {}
        #: By partition: messages that cannot be read, and leave once the log is open.
        self.unread: dict[int, list[int]] = {}
        #: A record of which not even the header can be read was passed.
        self.is_blind = False
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

    def faulty(self) -> set[int]:
        """Partitions of which neither checkpoint nor journal tells all."""
        return self.without_page & self.without_record & set(self._engine.catalog.shards)
