"""A broker with devices that come and go, step by step: the floor holds, restarts change nothing.

Copies are made by threads, so what is between two steps is not known; what must hold at any moment
is asked after each step, what must come true in the end is waited for.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG
from ebbmq.errors import StorageFailed
from ebbmq.holding import opening
from tests.crash.copies import differences, holdings, is_settled
from tests.crash.devices import MIB, SOON, Mood, Moods, MoodyDisk
from tests.servers import wait_until

if TYPE_CHECKING:
    import pytest

FILES = ("a", "b")
DURABLE = frozenset({LOG, *FILES})
QUEUES = {"once": 1, "twice": 2}
DEVICES: dict[str, Any] = {
    **{
        name: {"kind": "file", "capacity_bytes": 8 * MIB, "status": SOON, "stall_ms": 60_000}
        for name in FILES
    },
    "ram": {"kind": "memory", "capacity_bytes": MIB, "status": SOON},
}
RULES = [
    {"id": "A", "weight": 90, "device": "a", "when": "IMPORTANCE > 6"},
    {"id": "R", "weight": 80, "device": "ram", "when": "IMPORTANCE < 4"},
    {"id": "B", "weight": 70, "device": "b", "when": "IMPORTANCE > 8 OR IMPORTANCE < 4"},
]


class DevicesThatComeAndGo(RuleBasedStateMachine):
    """At most one device fails at a time."""

    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.moods = {name: Moods() for name in FILES}
        self.ill: Any = None
        self.bodies: dict[str, tuple[str, bytes]] = {}
        self.count = 0
        self.open()

    def open(self) -> None:
        self.broker = Broker.open(
            self.directory,
            {
                "devices": DEVICES,
                "rules": RULES,
                "placement": {"repair_after_ms": 50},
                "segment_bytes": 1 << 16,
                "checkpoint_every_facts": 50,
                "upkeep_every_ms": 5,
            },
        )
        for name, min_copies in QUEUES.items():
            self.broker.declare(QueueSpec(name, min_copies=min_copies, cache_enabled=False))

    @override
    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.heal()
            self.broker.close()
            shutil.rmtree(self.directory)

    def heal(self) -> None:
        if self.ill is not None:
            self.ill.__exit__(None, None, None)
            self.ill = None

    @rule(
        queue=st.sampled_from([*QUEUES]),
        count=st.integers(1, 12),
        importance=st.integers(1, 10),
        replicas=st.sampled_from([None, 1, 2, 3]),
    )
    def publish(self, queue: str, count: int, importance: int, replicas: int | None) -> None:
        bodies = [b"%d " % (self.count + n) + bytes(500) for n in range(count)]
        self.count += count
        sent = [Message(body, importance=importance, replicas=replicas) for body in bodies]
        for receipt, body in zip(self.broker.publish(queue, sent), bodies, strict=True):
            self.bodies[receipt.id] = queue, body

    @rule(queue=st.sampled_from([*QUEUES]), count=st.integers(1, 20), acked=st.booleans())
    def lease(self, queue: str, count: int, *, acked: bool) -> None:
        leases = self.broker.lease(queue, count)
        for lease in leases:
            assert self.bodies[lease.id] == (queue, lease.body)
        tokens = [lease.token for lease in leases]
        if not tokens:
            return
        if not acked:
            self.broker.release(queue, tokens)
            return
        self.broker.ack(queue, tokens, confirm="synced")
        for lease in leases:
            del self.bodies[lease.id]

    @precondition(lambda self: self.ill is None)
    @rule(
        device=st.sampled_from(FILES),
        mood=st.sampled_from(["failing", "unwritable", "wrong", "nothing"]),
    )
    def fall_ill(self, device: str, mood: Mood) -> None:
        # What is under way has no second copy to turn to yet.
        self.settle()
        if any(holding.copies == {device} for holding in holdings(self.broker).values()):
            # Nobody can mend what only the device that lies has; what it does not give, it may yet.
            mood = "failing"
        self.ill = self.moods[device].being(mood)
        self.ill.__enter__()

    @rule()
    def get_well(self) -> None:
        self.heal()
        self.settle()

    @rule(keep_checkpoints=st.booleans())
    def restart(self, *, keep_checkpoints: bool) -> None:
        self.broker.close()
        self.heal()
        if not keep_checkpoints:
            shutil.rmtree(self.directory / "checkpoints")
        self.open()
        assert self.depth() == len(self.bodies)

    def depth(self) -> int:
        return sum(sum(self.broker.stats(name)["depth"].values()) for name in QUEUES)

    def settle(self) -> None:
        def is_so() -> bool:
            try:
                return is_settled(self.broker) and differences(self.broker) == {}
            except StorageFailed:
                return False  # a device that got well is not open again yet

        wait_until(is_so, "settling")
        assert self.depth() == len(self.bodies)

    @invariant()
    def every_message_has_a_durable_copy(self) -> None:
        for holding in holdings(self.broker).values():
            assert holding.copies & DURABLE, holding
        assert self.broker.engine.damage == []


def test_the_floor_holds_and_restarts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machines: list[DevicesThatComeAndGo] = []

    class Machine(DevicesThatComeAndGo):
        def __init__(self) -> None:
            super().__init__()
            machines.append(self)

    def disk(directory: Path) -> MoodyDisk:
        return MoodyDisk(directory, machines[-1].moods[directory.name])

    monkeypatch.setattr(opening, "FileDisk", disk)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # of hypothesis
        Machine, settings=settings(max_examples=12, stateful_step_count=20, deadline=None)
    )
