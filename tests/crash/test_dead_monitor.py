"""The thread that looks after devices dies of a defect: somebody is told, and intake stops."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import StorageFailed
from ebbmq.node.clock import SystemClock
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

MONITOR = "ebbmq-devices"
CONFIG = {"devices": {"second": {"kind": "file", "capacity_bytes": 1 << 26}}}


class DefectiveClock(SystemClock):
    """Fails in a way that no clock may, for the thread that looks after devices."""

    is_broken = False

    @override
    def elapsed_ms(self) -> int:
        if self.is_broken and threading.current_thread().name == MONITOR:
            raise LookupError("no time")
        return super().elapsed_ms()


def test_the_end_of_the_thread_that_looks_after_devices_stops_intake_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = DefectiveClock()
    broker = Broker.open(tmp_path, config=CONFIG, clock=clock)
    broker.declare(QueueSpec("q"))
    broker.publish("q", Message(b"kept", replicas=2))
    assert broker.health()["ready"]
    clock.is_broken = True
    wait_until(lambda: not broker.health()["ready"], "being told")
    assert f"{MONITOR} died of LookupError: no time" in broker.health()["problems"][0]
    with pytest.raises(StorageFailed, match=MONITOR):
        broker.publish("q", Message(b"refused"))
    (told,) = [record for record in caplog.records if "thread_died" in record.getMessage()]
    assert told.exc_info is not None
    with pytest.raises(StorageFailed):
        broker.close()
    with Broker.open(tmp_path, config=CONFIG) as broker:
        assert [lease.body for lease in broker.lease("q", count=10)] == [b"kept"]


def open_and_close(path: Path, clock: DefectiveClock) -> None:
    broker = Broker.open(path, config=CONFIG, clock=clock)
    wait_until(lambda: not broker.health()["ready"], "being told")
    broker.close()


def test_it_is_told_also_if_it_comes_while_the_store_is_opened(tmp_path: Path) -> None:
    clock = DefectiveClock()
    clock.is_broken = True
    with pytest.raises(StorageFailed, match=MONITOR):
        open_and_close(tmp_path, clock)
    Broker.open(tmp_path, config=CONFIG).close()
