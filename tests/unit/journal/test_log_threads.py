"""Many threads, one commit thread, real files: fewer syncs than commits and nothing lost."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ebbmq import limits
from ebbmq.journal.commit import CommitThread
from ebbmq.journal.disk import FileDisk, MemoryDisk, OsFile
from ebbmq.journal.log import Log
from ebbmq.journal.scan import Found, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

UUID = bytes(range(16))
PATIENCE_S = 30.0


class CountingFile(OsFile):
    __slots__ = ("counted",)

    counted: Callable[[], None]

    def sync(self) -> None:
        self.counted()
        super().sync()


class CountingDisk(FileDisk):
    """Counts the syncs of segments, and can hold them up until a condition is met."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.syncs = 0
        self.hold: Callable[[], None] | None = None

    def create(self, name: str, nbytes: int) -> CountingFile:
        super().create(name, nbytes).close()
        return self.open(name)

    def open(self, name: str) -> CountingFile:
        file = super().open(name)
        counting = CountingFile(file._fd)  # noqa: SLF001 - taken over
        file._fd = -1  # noqa: SLF001
        counting.counted = self._count
        return counting

    def _count(self) -> None:
        self.syncs += 1
        if self.hold is not None:
            self.hold()


class StoppedWhileCounted:
    """Waiters of whom there are none; whoever counts them is told to stop in the middle of it."""

    def __init__(self) -> None:
        self.stop: Callable[[], None]
        self.stopper: threading.Thread | None = None

    def __len__(self) -> int:
        if self.stopper is None:
            self.stopper = threading.Thread(target=self.stop, daemon=True)
            self.stopper.start()
            while _function_of(self.stopper) not in ("join", "_wait_for_tstate_lock"):
                time.sleep(0)
        return 0


def _function_of(thread: threading.Thread) -> str | None:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # as documented
    return None if frame is None else frame.f_code.co_name


def test_a_commit_thread_that_is_stopped_while_it_looks_for_company_ends() -> None:
    waiters = StoppedWhileCounted()
    committed = threading.Event()

    def commit() -> int:
        committed.set()
        return 0

    thread = CommitThread(commit, waiters)
    waiters.stop = thread.stop
    thread.hurry()
    assert committed.wait(PATIENCE_S)
    assert waiters.stopper is not None
    waiters.stopper.join(PATIENCE_S)
    assert not waiters.stopper.is_alive()


@pytest.mark.parametrize("level", ["written", "synced"])
def test_eight_threads_publish_and_nothing_is_lost_or_mixed_up(tmp_path: Path, level: str) -> None:
    log = Log.open(FileDisk(tmp_path), UUID, segment_bytes=1 << 16)
    lock = threading.Lock()
    order: list[int] = []

    def publish(thread: int) -> None:
        for number in range(60):
            first = thread << 32 | number
            body = bytes([thread]) * (number * 37)
            with lock:
                segment, offset = log.place(len(body))
                position = log.append(1, thread, 1, first, [body])
                order.append(first)
            log.wait(level, position)  # type: ignore[arg-type]
            reached = log.synced_position if level == "synced" else log.written_position
            assert reached >= position
            assert log.read(segment, offset, len(body)) == body

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    log.close()
    found = [item for item in scan(FileDisk(tmp_path), UUID) if type(item) is Found]
    assert [item.header.first for item in found] == order
    for item in found:
        thread, number = item.header.first >> 32, item.header.first & 0xFFFF_FFFF
        assert item.payload == bytes([thread]) * (number * 37)


def test_waiting_batches_share_a_sync(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    log = Log.open(disk, UUID)
    lock = threading.Lock()
    appended = threading.Barrier(8)
    commits = 8 * 5

    def publish(thread: int) -> None:
        for number in range(5):
            with lock:
                position = log.append(1, thread, 1, number, [b"x" * 100])
            appended.wait(PATIENCE_S)
            log.wait("synced", position)

    before = disk.syncs
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    used = disk.syncs - before
    log.close()
    assert 5 <= used < commits


def test_what_comes_during_a_sync_is_covered_by_the_next_one(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    log = Log.open(disk, UUID)
    syncing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        syncing.set()
        assert go_on.wait(PATIENCE_S)

    disk.hold = hold
    called: list[int] = []
    done = threading.Event()
    log.when("synced", log.append(1, 0, 1, 0, [b"x"]), lambda _: called.append(0))
    assert syncing.wait(PATIENCE_S)
    before = disk.syncs
    for number in range(1, 20):
        position = log.append(1, 0, 1, number, [b"x"])
        log.when("synced", position, lambda _, number=number: called.append(number))  # type: ignore[misc]
    log.when("synced", position, lambda _: done.set())
    assert called == []
    go_on.set()
    assert done.wait(PATIENCE_S)
    log.close()
    assert called == list(range(20))
    assert disk.syncs - before <= 4


def reached(log: Log, position: int) -> threading.Event:
    event = threading.Event()

    def committed(_: int, synced: int) -> None:
        if synced >= position:
            event.set()

    log.on_commit = committed
    if log.synced_position >= position:
        event.set()
    return event


def test_what_nobody_waits_for_is_synced_soon() -> None:
    log = Log.open(MemoryDisk(), UUID, segment_bytes=1 << 20)
    position = log.append(1, 0, 1, 0, [b"x"])
    assert reached(log, position).wait(PATIENCE_S)
    assert log.written_position == position
    log.close()


def test_many_messages_that_nobody_waits_for_are_synced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ebbmq.journal.commit._FLUSH_SECONDS", 1_000.0)
    log = Log.open(MemoryDisk(), UUID, segment_bytes=1 << 20)
    log.append(1, 0, limits.UNSYNCED_FLUSH_MESSAGES - 1, 0, [b"x"])
    position = log.append(1, 0, 1, 0, [b"x"])
    assert reached(log, position).wait(PATIENCE_S)
    log.close()


def test_what_is_not_counted_waits_for_the_flush_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbmq.journal.commit._FLUSH_SECONDS", 1_000.0)
    log = Log.open(MemoryDisk(), UUID, segment_bytes=1 << 20, counted={2})
    many, before = limits.UNSYNCED_FLUSH_MESSAGES, log.synced_position
    log.append(1, 0, many, 0, [b"x"])
    log.append_written(1, 0, many, 0, b"x")
    log.append(2, 0, many - 1, 0, [b"x"])
    assert log.synced_position == before
    position = log.append_written(2, 0, 1, 0, b"x")
    assert reached(log, position).wait(PATIENCE_S)
    assert log.flushes == 2
    log.close()


def test_closing_commits_what_is_pending(tmp_path: Path) -> None:
    log = Log.open(FileDisk(tmp_path), UUID)
    for number in range(50):
        log.append(1, 0, 1, number, [b"x"])
    log.close()
    assert log.synced_position == log.position
    found = [item for item in scan(FileDisk(tmp_path), UUID) if type(item) is Found]
    assert [item.header.first for item in found] == list(range(50))


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set once the main thread was interrupted; no later signal interrupts it again."""
    event = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not event.is_set():
            event.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield event
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_strands_nobody(
    tmp_path: Path, interrupted: threading.Event
) -> None:
    disk = CountingDisk(tmp_path)
    log = Log.open(disk, UUID)
    syncing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        syncing.set()
        assert go_on.wait(PATIENCE_S)

    disk.hold = hold
    position = log.append(1, 0, 1, 0, [b"x"])
    log.when("synced", position, lambda _: None)
    assert syncing.wait(PATIENCE_S)
    waiting = log._confirm._waiters  # noqa: SLF001 - the only way to know that all have come
    # The commit that is held may have begun before the first one waited.
    everyone = len(waiting) + 7
    main = threading.get_ident()

    def interrupt() -> None:
        while len(waiting) < everyone:
            pass
        # A signal that comes just before the thread falls asleep does not wake it.
        while not interrupted.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    threads = [threading.Thread(target=log.wait, args=("synced", position)) for _ in range(6)]
    for thread in [*threads, threading.Thread(target=interrupt)]:
        thread.start()
    with pytest.raises(KeyboardInterrupt):
        log.wait("synced", position)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    log.close()
