"""Making and deleting copies, by a thread of its own: what the holdings ask for becomes true.

Theory of operation. Work is a name and a device; bodies are read when their turn comes, so what
waits costs a few bytes whatever its size. Puts and deletes of one device are made many at a time,
and few calls are under way at once, so a slow device slows nobody else. What came of a call is told
to the keeper by the thread of the port.

What a publish waits for goes before what only tidies up: copies that review asks for are made at
the pace of `move_bytes_per_s`, and only when nothing urgent waits for that device.

A copy that lets another one go is read back first.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq import limits
from ebbmq.core.copies import LOG, name_of, parts_of
from ebbmq.core.row import ELSEWHERE, HIGH, LOW48, RATE_UNIT
from ebbmq.errors import EbbError
from ebbmq.holding.contract import Copy, Key, Properties
from ebbmq.node import leasing
from ebbmq.node.log import log
from ebbmq.node.relocating import relocate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ebbmq.core.copies import Name
    from ebbmq.core.partition import Row
    from ebbmq.holding.contract import Lack
    from ebbmq.node.catalog import Shard
    from ebbmq.node.devices.port import Port
    from ebbmq.node.engine import Engine

    _Known = tuple[Name, Shard, int, Row]

_COUNT_MAX: Final = 512
_BYTES_MAX: Final = 2 * limits.MIB
_CALLS_MAX: Final = 2
_PAUSE_S: Final = 0.05
_AFTER_ERROR_S: Final = 1.0


class _Delete(NamedTuple):
    position: int
    name: Name
    forget: bool


class _Work:
    """What waits for one device."""

    def __init__(self) -> None:
        self.urgent: deque[Name] = deque()
        self.calm: deque[Name] = deque()
        self.deletes: deque[_Delete] = deque()
        self.under_way = 0
        self.copied = self.deleted = self.failed = 0


class _Ready(NamedTuple):
    """A message whose body was read, on its way to a device."""

    name: Name
    copy: Copy


class Mover:
    """Carries out puts and deletes, which are asked for with the engine's lock held."""

    def __init__(self, engine: Engine, *, bytes_per_s: int) -> None:
        self._engine = engine
        self._work: dict[str, _Work] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._bytes_per_s = bytes_per_s
        self._allowance = float(bytes_per_s)
        self._refilled_at = engine.clock.elapsed_ms()
        self._thread = threading.Thread(target=self._run, name="ebbmq-mover", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is not done is asked for again at the next start."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def put_many(self, names: Sequence[Name], device: str, *, calm: bool = False) -> None:
        """Have bodies copied to a device."""
        work = self._of(device)
        (work.calm if calm else work.urgent).extend(names)
        self._wake.set()

    def delete_many(
        self, names: Sequence[Name], device: str, position: int, *, forget: bool
    ) -> None:
        """Have copies deleted once the journal is on the device up to a position."""
        self._of(device).deletes.extend(_Delete(position, name, forget) for name in names)

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def waiting(self) -> dict[str, tuple[int, int]]:
        """By device: copies to be made, copies to be deleted."""
        return {
            device: (len(work.urgent) + len(work.calm), len(work.deletes))
            for device, work in list(self._work.items())
        }

    def counts(self, device: str) -> tuple[int, int, int]:
        """Copies made, deleted and failed on a device since the start."""
        work = self._work.get(device)
        return (work.copied, work.deleted, work.failed) if work else (0, 0, 0)

    def _of(self, device: str) -> _Work:
        work = self._work.get(device)
        if work is None:
            work = self._work[device] = _Work()
        return work

    # The thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            try:
                while not self._stop.is_set() and self._round():
                    pass
            except EbbError as error:
                log.error("mover", code=error.code, detail=error.detail)
                self._stop.wait(_AFTER_ERROR_S)
                self._take_up_again()

    def _take_up_again(self) -> None:
        """Ask anew for every copy that was asked for: who was at work is not known any more."""
        with self._engine.lock:
            for work in self._work.values():
                work.urgent.clear()
                work.calm.clear()
            for name, holding in self._engine.holdings.items():
                for device in holding.pending:
                    self._of(device).urgent.append(name)

    def _round(self) -> bool:
        """Begin what can be begun; whether anything could."""
        begun = False
        for device, work in list(self._work.items()):
            if device == LOG:
                begun |= self._bring_home(work)
                continue
            devices = self._engine.devices
            port = devices.ports.get(device) if devices is not None else None
            if port is None or work.under_way >= _CALLS_MAX:
                continue
            if not port.state.usable:
                begun |= self._give_up(device, work)
                continue
            begun |= self._delete_some(port, work)
            begun |= self._put_some(port, work)
        return begun

    def _bring_home(self, work: _Work) -> bool:
        """Write bodies that other devices have into the log."""
        engine = self._engine
        with engine.lock:
            names = _take([work.urgent, work.calm], _COUNT_MAX)
        if not names:
            return False
        ready, rest = self._read(names, LOG)
        by_shard: dict[Shard, list[tuple[int, bytes]]] = {}
        with engine.lock:
            work.urgent.extendleft(reversed(rest))
            for each in ready:
                known = engine.keeping.row_of(each.name)
                if known is not None and known[2][1] & ELSEWHERE:
                    by_shard.setdefault(known[0], []).append((known[1], each.copy.payload))
            for shard, some in by_shard.items():
                seqs, bodies = [seq for seq, _ in some], [body for _, body in some]
                relocate(engine, shard, seqs, bodies, home=True)
        engine.journal.sync_old()
        with engine.lock:
            work.copied += len(ready)
            engine.keeping.copies_made(LOG, [each.name for each in ready])
        return True

    def _give_up(self, device: str, work: _Work) -> bool:
        """The device cannot be used: what should go there goes elsewhere."""
        with self._engine.lock:
            names = _take([work.urgent, work.calm], _COUNT_MAX)
            if names:
                work.failed += len(names)
                self._engine.keeping.copies_failed(device, names)
        return bool(names)

    def _put_some(self, port: Port, work: _Work) -> bool:
        with self._engine.lock:
            calm = not work.urgent
            names = _take([work.calm if calm else work.urgent], _COUNT_MAX)
        if not names:
            return False
        if calm and not self._may_move():
            with self._engine.lock:
                work.calm.extendleft(reversed(names))
            return False
        ready, rest = self._read(names, port.spec.name)
        if rest:
            with self._engine.lock:
                (work.calm if calm else work.urgent).extendleft(reversed(rest))
        if not ready:
            return bool(rest)
        if calm:
            self._allowance -= sum(len(each.copy.payload) for each in ready)
        work.under_way += 1
        future = port.put([each.copy for each in ready])
        future.add_done_callback(partial(self._put_done, port, work, ready))
        return True

    def _may_move(self) -> bool:
        now_ms = self._engine.clock.elapsed_ms()
        gained = (now_ms - self._refilled_at) * self._bytes_per_s / 1_000
        self._refilled_at = now_ms
        self._allowance = min(self._allowance + gained, float(self._bytes_per_s))
        return self._allowance > 0

    def _delete_some(self, port: Port, work: _Work) -> bool:
        synced = self._engine.journal.synced_position
        some: list[_Delete] = []
        holdings = self._engine.holdings
        with self._engine.lock:
            while work.deletes and work.deletes[0].position <= synced and len(some) < _COUNT_MAX:
                delete = work.deletes.popleft()
                holding = holdings.of(delete.name)
                # A copy that was taken for a stray may have been asked for since.
                if port.name not in holding.copies | holding.pending:
                    some.append(delete)
        if not some:
            return False
        work.under_way += 1
        future = port.delete([self._key(each.name) for each in some])
        future.add_done_callback(partial(self._delete_done, port, work, some))
        return True

    def _key(self, name: Name) -> Key:
        return Key(self._engine.directory.identity.uuid, *parts_of(name))

    # Bodies

    def _read(self, names: Sequence[Name], device: str) -> tuple[list[_Ready], list[Name]]:
        """Bodies of messages still to be copied, and names for which there was no room."""
        bodies: dict[Name, bytes] = {}
        with self._engine.lock:
            wanted, rest = self._wanted(names, device)
            for name, shard, seq, row in wanted:
                payload = shard.resident.get(seq, row[2])
                if payload is not None:
                    bodies[name] = payload
        by_shard: dict[Shard, list[int]] = {}
        for name, shard, seq, _ in wanted:
            if name not in bodies:
                by_shard.setdefault(shard, []).append(seq)
        for shard, seqs in by_shard.items():
            for seq, body in zip(seqs, leasing.read_bodies(self._engine, shard, seqs), strict=True):
                if isinstance(body, bytes):
                    bodies[name_of(shard.partition.pid, seq)] = body
        ready = [
            _Ready(name, Copy(self._key(name), bodies[name], row[12], _properties(shard, row)))
            for name, shard, _, row in wanted
            if name in bodies
        ]
        unread = [name for name, _, _, _ in wanted if name not in bodies]
        if unread:
            with self._engine.lock:
                self._engine.keeping.copies_failed(device, unread)
        return ready, rest

    def _wanted(self, names: Sequence[Name], device: str) -> tuple[list[_Known], list[Name]]:
        """Those still to be copied, as many as fit into one call, and the rest (lock is held)."""
        wanted: list[_Known] = []
        size = 0
        for number, name in enumerate(names):
            known = self._engine.keeping.row_of(name)
            if known is None or device not in self._engine.holdings.of(name).pending:
                continue
            size += known[2][11]
            if wanted and size > _BYTES_MAX:
                return wanted, list(names[number:])
            wanted.append((name, *known))
        return wanted, []

    # Results

    def _put_done(self, port: Port, work: _Work, ready: list[_Ready], future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(port, work, ready, error)
            return
        holdings = self._engine.holdings
        with self._engine.lock:
            moved = any(holdings.of(each.name).leaving for each in ready)
        if not moved:
            self._copied(port, work, ready)
            return
        check = port.get([each.copy.key for each in ready])
        check.add_done_callback(partial(self._checked, port, work, ready))

    def _checked(
        self, port: Port, work: _Work, ready: list[_Ready], future: Future[list[bytes | Lack]]
    ) -> None:
        error = future.exception()
        if error is not None:
            self._failed(port, work, ready, error)
            return
        bodies = future.result()
        good = [
            each
            for each, body in zip(ready, bodies, strict=True)
            if isinstance(body, bytes) and body == each.copy.payload
        ]
        if len(good) < len(ready):
            bad = [each.name for each in ready if each not in good]
            log.error("copy_not_verified", device=port.name, count=len(bad))
            with self._engine.lock:
                if self._engine.closed is None:
                    self._engine.keeping.copies_failed(port.name, bad)
        self._copied(port, work, good)

    def _copied(self, port: Port, work: _Work, ready: list[_Ready]) -> None:
        with self._engine.lock:
            work.under_way -= 1
            work.copied += len(ready)
            if self._engine.closed is None:
                self._engine.keeping.copies_made(port.name, [each.name for each in ready])
        self._wake.set()

    def _failed(self, port: Port, work: _Work, ready: list[_Ready], error: BaseException) -> None:
        code = error.code if isinstance(error, EbbError) else type(error).__name__
        log.warning("copy_failed", device=port.name, code=code, count=len(ready))
        with self._engine.lock:
            work.under_way -= 1
            work.failed += len(ready)
            if self._engine.closed is None:
                self._engine.keeping.refuse_for_now(port.name)
                self._engine.keeping.copies_failed(port.name, [each.name for each in ready])
        self._wake.set()

    def _delete_done(
        self, port: Port, work: _Work, some: list[_Delete], future: Future[None]
    ) -> None:
        error = future.exception()
        with self._engine.lock:
            work.under_way -= 1
            if error is not None:
                work.deletes.extendleft(reversed(some))
            elif self._engine.closed is None:
                work.deleted += len(some)
                self._engine.keeping.copies_deleted(
                    port.name,
                    [each.name for each in some if not each.forget],
                    [each.name for each in some if each.forget],
                )
        if error is None:
            self._wake.set()


def _take(queues: Sequence[deque[Name]], count: int) -> list[Name]:
    out: list[Name] = []
    for queue in queues:
        while queue and len(out) < count:
            out.append(queue.popleft())
    return out


def _properties(shard: Shard, row: Row) -> Properties:
    return Properties(
        shard.queue.spec.name,
        row[2],
        row[5] & LOW48,
        row[6] & LOW48 or None,
        row[4] / RATE_UNIT,
        row[7] >> HIGH,
    )
