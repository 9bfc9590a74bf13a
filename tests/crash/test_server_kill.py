"""kill -9 of the server under load from clients that go on: what was confirmed is there."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import Broker, Client
from ebbmq.errors import EbbError
from tests.crash import worker
from tests.crash.forked_server import ForkedServer
from tests.crash.story import OPTIONS, drain
from tests.history import LeaseCall, Restart, Settle, check
from tests.recorder import MemoryKeeper, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.history import Event

pytestmark = pytest.mark.crash

CLIENTS = 4
LOAD_S = 0.3
CALLS_AT_ONCE = 20


class User(threading.Thread):
    """A client that works through every life of the server and keeps what it saw."""

    def __init__(self, url: str, job: worker.Job, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.keeper = MemoryKeeper()
        self.calls = 0
        self.unanswered = 0
        self.failure: BaseException | None = None
        self._url = url
        self._job = job
        self._number = number
        self._stopping = stop

    def run(self) -> None:
        try:
            with Client(self._url) as client:
                recorder = Recorder(client, self.keeper, time.monotonic_ns)
                mix = worker.Client(recorder, self._job, self._number)
                while not self._stopping.is_set():
                    self._work(mix)
        except BaseException as error:
            self.failure = error
            raise

    def _work(self, mix: worker.Client) -> None:
        try:
            mix.run()
            self.calls += CALLS_AT_ONCE
        except EbbError:
            # Nobody can say what became of that call; the record says so as well.
            self.unanswered += 1


def settings(tmp_path: Path) -> Path:
    """Small enough that a short life rolls segments, checkpoints and compacts."""
    path = tmp_path / "ebbmq.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in worker.CONFIG.items()))
    return path


def as_believed(events: Iterable[Event], restarts: list[Restart]) -> Iterator[Event]:
    """What the clients saw, less what they cannot know.

    A client that tries again lives through restarts. A lease call is repeated only if it was not
    sent, so it belongs to the last life. A settle that was refused then was carried out before, or
    came too late: the client takes the first for granted, the checker must not.
    """
    for event in events:
        lived = [
            restart.at + 1
            for restart in restarts
            if isinstance(event, LeaseCall | Settle)
            and event.started <= restart.at < (event.ended or 0)
        ]
        if not lived:
            yield event
        elif isinstance(event, LeaseCall):
            yield msgspec.structs.replace(event, started=max(lived))
        else:
            for started in (event.started, *lived):
                yield msgspec.structs.replace(event, started=started, outcome="unknown")


def test_every_promise_holds_when_the_server_is_killed_again_and_again(
    tmp_path: Path, server_kills: int
) -> None:
    data = tmp_path / "data"
    with Broker.open(data, config=worker.CONFIG) as broker:
        for spec in worker.QUEUES.values():
            broker.declare(spec)
    options = ("--data", str(data), "--config", str(settings(tmp_path)), "--http-port")
    job = worker.Job(
        directory=str(data),
        record="",
        life=0,
        seed=server_kills,
        calls=CALLS_AT_ONCE,
        levels=("synced",),
    )
    stop = threading.Event()
    moments = random.Random(server_kills)
    restarts: list[Restart] = []
    with ForkedServer(tmp_path / "server.out") as server:
        url = server.start(*options, "0")
        port = url.rpartition(":")[2]
        users = [User(url, job, number, stop) for number in range(CLIENTS)]
        try:
            for user in users:
                user.start()
            for _ in range(server_kills):
                time.sleep(moments.uniform(0, LOAD_S))
                assert server.end(signal.SIGKILL) == -signal.SIGKILL
                restarts.append(Restart(time.monotonic_ns(), "kill"))
                assert server.start(*options, port) == url
        finally:
            stop.set()
            for user in users:
                user.join()
        assert server.end(signal.SIGTERM) == 0
        restarts.append(Restart(time.monotonic_ns(), "clean"))
    assert [user.failure for user in users] == [None] * CLIENTS
    assert all(user.calls for user in users)
    with Broker.open(data, config=worker.CONFIG) as broker:
        assert broker.health()["damage"] == []
        last = drain(broker)
    seen = as_believed((e for user in users for e in user.keeper.events()), restarts)
    assert check([*seen, *restarts, *last], OPTIONS) == []
