"""Copies that a lost device had are made anew elsewhere, those of the most valuable first."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from ebbmq import Broker, Message, QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = 52_000
BATCH = 2_000
ROOM = 64 << 20
STATUS = {"every_ms": 20, "failures_to_open": 1, "open_ms": 60_000}
CONFIG = {
    "devices": {
        "first": {"kind": "file", "capacity_bytes": ROOM, "status": STATUS},
        "spare": {"kind": "file", "capacity_bytes": ROOM},
    },
    # The second copy is that of the log, however the devices are doing.
    "rules": [{"id": "W-001", "weight": 90, "device": "first", "when": "SIZE < 1"}],
    "placement": {"repair_after_ms": 1, "move_bytes_per_s": 1 << 40},
    "upkeep_every_ms": 1_000,
}


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_of_many_messages_that_lack_a_copy_the_most_valuable_get_theirs_first(
    tmp_path: Path,
) -> None:
    with Broker.open(tmp_path / "data", CONFIG) as broker:
        broker.declare(QueueSpec("q", cache_bytes=1 << 20))
        holdings, keeper = broker.engine.holdings, broker.engine.keeping
        importances = [1 + n * 7 % 10 for n in range(BATCH)]
        batch = [Message(b"%d" % each, importance=each, replicas=2) for each in importances]
        for _ in range(COUNT // BATCH):
            broker.publish("q", batch, confirm="memory")

        def copies(device: str) -> int:
            with broker.engine.lock:
                return holdings.counts(device)[0]

        until(lambda: copies("first") == COUNT, "copies on the first device")
        made: list[int] = []

        def tell(decision) -> None:
            if decision.event == "copied" and decision.device == "spare":
                made.extend(decision.names)

        with broker.engine.lock:
            keeper.decisions.tell = tell
        (tmp_path / "data" / "devices" / "first").rename(tmp_path / "gone")
        until(lambda: copies("spare") == COUNT, "copies on the spare device")
        assert len(made) == COUNT
        values = [importance(broker, name) for name in made]
    assert all(left >= right for left, right in pairwise(values))


def importance(broker: Broker, name: int) -> int:
    known = broker.engine.keeping.row_of(name)
    assert known is not None
    return known[2][2]
