"""Queues for partitions whose declaration cannot be read: their messages are served all the same.

Numbers of partitions only rise. One that is as high as the next that the last readable META fact
would give was declared after it, in a record that is lost; any other one was deleted (ADR 0038).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.model import QueueSpec
from ebbmq.node import declaring

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine
    from ebbmq.node.losses import Losses


class Undeclared:
    """The queues made while a data directory is read."""

    def __init__(self, engine: Engine, losses: Losses) -> None:
        self._engine = engine
        self._losses = losses
        self._names: dict[int, str] = {}
        #: Partitions from this one on were declared after the last META fact that was read.
        self.first_pid = 1

    def make(self, pid: int) -> None:
        """Make a queue for a partition, in which nothing is let go that its own would have kept."""
        catalog = self._engine.catalog
        base = name = f"recovered-{pid:x}"
        number = 1
        while name in catalog.queues:
            number += 1
            name = f"{base}-{number}"
        spec = QueueSpec(name, max_attempts=0, on_stale="dead_letter", dead_queue=f"{name}.dead")
        declaring.add_queue(self._engine, spec, [pid])
        catalog.next_pid = max(catalog.next_pid, pid + 1)
        self._names[pid] = name

    def settle(self) -> None:
        """Keep and name those that have messages; the whole journal was read."""
        catalog = self._engine.catalog
        for pid, name in self._names.items():
            pages = catalog.shards[pid].partition.index.pages.values()
            count = sum(page.live for page in pages)
            if count:
                self._losses.report(
                    f"the declaration of partition {pid:x} cannot be read; "
                    f"its {count} messages are in queue {name!r}"
                )
                continue
            self._engine.residency.close(pid)
            del catalog.queues[name], catalog.shards[pid]
