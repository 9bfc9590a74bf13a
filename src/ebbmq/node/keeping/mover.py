"""Making and deleting copies, by a thread of its own: what the holdings ask for becomes true.

Theory of operation. Work is a name and a device; bodies are read when their turn comes, so what
waits costs a few bytes whatever its size. Puts and deletes of one device are made many at a time,
and few calls are under way at once, so a slow device slows nobody else. What came of a call is told
to the keeper by the thread of the port.

What a publish waits for goes before what only tidies up: copies that review asks for are made at
the pace of `move_bytes_per_s`, and only when nothing urgent waits for that device. Where that takes
this process's own time, as on files, it is one call at a time, which gives way at each of its steps
to those who serve clients (`turns`).

A copy that lets another one go is read back first, by the device itself where it can. A copy is
deleted only when nobody reads any more who may still ask for it (`readers`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from functools import partial
from operator import ne
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from ebbmq import limits
from ebbmq.core.copies import LOG, seqs_of
from ebbmq.core.row import ELSEWHERE
from ebbmq.errors import EbbError
from ebbmq.holding.columns import Keys
from ebbmq.holding.contract import DeviceFull
from ebbmq.node.keeping.decisions import NOT_VERIFIED, UNUSABLE
from ebbmq.node.keeping.loading import load, load_of, published
from ebbmq.node.keeping.pacing import HandOver, Pace
from ebbmq.node.keeping.work import COUNT_MAX, OBJECT_COUNT_MAX, Call, Delete, Until, Work
from ebbmq.node.log import log
from ebbmq.node.relocating import relocate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from ebbmq.core.arrivals import Batch as Published
    from ebbmq.core.copies import Name
    from ebbmq.holding.contract import Lack
    from ebbmq.node.catalog import Shard
    from ebbmq.node.devices.port import Port
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.line import Line
    from ebbmq.node.keeping.loading import Load

#: Publishers wait for these, and a device flushes once for all of them.
_URGENT_COUNT_MAX: Final = 2_048
_CALLS_MAX: Final = 4
#: What nobody waits for is told of in slices that nobody notices.
_TOLD_AT_ONCE: Final = 512
#: Above so much that waits for a device, it is asked by the mover.
_AT_ONCE_BYTES_MAX: Final = 8 * limits.MIB
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 0.25
_AFTER_ERROR_S: Final = 1.0

_A = TypeVar("_A")


class Mover:
    """Carries out puts and deletes, which are asked for with the engine's lock held."""

    def __init__(self, engine: Engine, *, bytes_per_s: int) -> None:
        self._engine = engine
        self.readers = engine.keeping.readers
        self._work: dict[str, Work] = {}
        #: Of copies that publishers wait for, which go to their devices without a thread between.
        self._at_once: dict[str, Work] = {}
        #: What is to be done by the thread of the mover when a device has answered.
        self._answered: deque[Callable[[], None]] = deque()
        #: A call of ours, or somebody else in the background, computes.
        self._is_alone = self._is_held_up = False
        #: How many ask that nothing be deleted.
        self._keeping = 0
        #: Whether the log did not take what was last to come there.
        self.is_log_full = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._report_at_s = self._look_at_s = 0.0
        self._pace = Pace(bytes_per_s)
        self._hand_over = HandOver()
        self._thread = threading.Thread(
            target=engine.guarded(self._run), name="ebbmq-mover", daemon=True
        )

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
        self._of(device).add_puts(names, calm=calm)
        self._wake.set()

    def published(self, names: Sequence[Name], first: Name, batch: Published) -> Load:
        """Messages of a batch that was just published, for `put_at_once`."""
        return published(self._engine.directory.identity.uuid, names, first, batch)

    def put_at_once(self, loaded: Load, devices: Iterable[str]) -> None:
        """Have bodies that are at hand copied to devices, without a thread between if they can."""
        for device in devices:
            if not self._hand_over_now(loaded, device):
                self.put_many(loaded.names, device)

    def _hand_over_now(self, loaded: Load, device: str) -> bool:
        devices = self._engine.devices
        port = devices.ports.get(device) if devices is not None else None
        if (
            port is None
            or port.kind != "file"
            or not port.state.usable
            or port.pending_bytes > _AT_ONCE_BYTES_MAX
        ):
            return False
        work = self._at_once.get(device)
        if work is None:
            work = self._at_once[device] = Work()
        done = partial(
            self._put_at_once_done, threading.get_ident(), Call(port, work, apart=True), loaded
        )
        port.put(loaded.copies).add_done_callback(done)
        return True

    def _put_at_once_done(self, asker: int, call: Call, loaded: Load, future: Future[None]) -> None:
        """Go on by the thread of the port; who asked has the engine's lock."""
        if threading.get_ident() == asker:
            self._go_on(partial(self._put_done, call, loaded), future)
        else:
            self._put_done(call, loaded, future)

    def delete_many(
        self, names: Sequence[Name], device: str, position: int, *, forget: bool
    ) -> None:
        """Have copies deleted once the journal is on the device up to a position.

        Whoever looked up where they are before now is let read them first.
        """
        read = self.readers.next
        self._of(device).add_deletes(names, position, forget=forget, read=read)

    def forget(self, device: str) -> None:
        """Do nothing more that was asked for of a device."""
        if device in self._work:
            self._work[device].clear()

    @contextlib.contextmanager
    def keeping_all(self) -> Iterator[None]:
        """Delete nothing from devices for a while."""
        with self._engine.lock:
            self._keeping += 1
        try:
            yield
        finally:
            with self._engine.lock:
                self._keeping -= 1
            self._wake.set()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def waiting(self) -> dict[str, tuple[int, int]]:
        """By device: copies to be made, copies to be deleted."""
        return {
            device: (
                len(work.urgent) + len(work.calm),
                work.to_delete,
            )
            for device, work in list(self._work.items())
        }

    def counts(self, device: str) -> tuple[int, int, int]:
        """Copies made, deleted and failed on a device since the start."""
        both = [each[device] for each in (self._work, self._at_once) if device in each]
        return (
            sum(work.copied for work in both),
            sum(work.deleted for work in both),
            sum(work.failed for work in both),
        )

    def _of(self, device: str) -> Work:
        work = self._work.get(device)
        if work is None:
            work = self._work[device] = Work()
        return work

    # The thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._pause_s())
            self._wake.clear()
            try:
                while not self._stop.is_set() and self._round():
                    pass
            except EbbError as error:
                log.error("mover", code=error.code, detail=error.detail)
                self._stop.wait(_AFTER_ERROR_S)
                self._take_up_again()

        self._hand_over.be_quick(is_quick=False)

    def _pause_s(self) -> float:
        """How long to wait for more work, or until what waits may be moved."""
        calm = any(work.calm for work in list(self._work.values()))
        self._hand_over.be_quick(is_quick=calm)
        if self._is_held_up:
            return 0.0
        return min(_PAUSE_S, self._pace.wait_s() or _PAUSE_S) if calm else _PAUSE_S

    def _take_up_again(self) -> None:
        """Ask anew for every copy that was asked for: who was at work is not known any more."""
        with self._engine.in_turn:
            for work in self._work.values():
                work.urgent.clear()
                work.calm.clear()
            for name, holding in self._engine.holdings.items():
                for device in holding.pending:
                    self._of(device).urgent.append(name)

    def _round(self) -> bool:
        """Begin what can be begun; whether anything could."""
        begun = False
        self._report()
        while self._answered:
            self._answered.popleft()()
        self._is_held_up = False
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
            # In turn, as one may keep the other from being alone.
            steps = (self._delete_some, self._put_some)
            for step in steps if work.deletes_first else reversed(steps):
                begun |= step(port, work)
        return begun

    def _report(self) -> None:
        """Put on record what was decided and how far moves are, now and then."""
        now_s = time.monotonic()
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + _PAUSE_S
            self._engine.keeping.decisions.flush()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            with self._engine.in_turn:
                self._engine.keeping.progress.look()

    def _begin(self, port: Port, work: Work, *, calm: bool) -> Call | None:
        """Begin a call; None if it has to wait until others have computed."""
        alone = calm and port.kind == "file"
        if alone and self._is_alone:
            return None  # it wakes us when it is over
        if alone and not self._engine.in_turn.begin_alone():
            self._is_held_up = True
            return None
        self._is_alone = self._is_alone or alone
        work.under_way += 1
        call = Call(port, work, alone)
        self._give_way(call)
        return call

    def _when_done(
        self, call: Call, future: Future[_A], then: Callable[[Future[_A]], None]
    ) -> None:
        """Go on when a device has answered: at once by its thread, or by ours if nobody waits."""
        then = partial(self._then, call, then)
        future.add_done_callback(partial(self._go_on, then) if call.alone else then)

    def _go_on(self, then: Callable[[Future[_A]], None], future: Future[_A]) -> None:
        self._answered.append(partial(then, future))
        self._wake.set()

    def _then(self, call: Call, then: Callable[[Future[_A]], None], future: Future[_A]) -> None:
        try:
            then(future)
        except EbbError:
            self._end(call)
            raise

    def _give_way(self, call: Call) -> None:
        """Let those who serve clients go first, where nobody waits for a call."""
        if call.alone:
            self._engine.in_turn.give_way()

    def _end(self, call: Call, *, at_once: bool = True) -> None:
        """A call is over, one way or the other; what is next is begun at once, or after a pause."""
        if call.apart:
            return
        with self._engine.in_turn:
            call.work.under_way -= 1
        if call.alone:
            self._is_alone = False
            self._engine.in_turn.end_alone()
        if at_once:
            self._wake.set()

    def _bring_home(self, work: Work) -> bool:
        """Write bodies that other devices have into the log."""
        engine = self._engine
        with engine.in_turn:
            names = (work.urgent or work.calm).take(COUNT_MAX)
        if not names:
            return False
        loaded, rest = load(engine, names, LOG, LOG)
        by_shard: dict[Shard, list[tuple[int, bytes]]] = {}
        with engine.in_turn:
            work.urgent.put_back(rest)
            for name, copy in zip(loaded.names, loaded.copies, strict=True):
                known = engine.keeping.row_of(name)
                if known is not None and known[2][1] & ELSEWHERE:
                    by_shard.setdefault(known[0], []).append((known[1], copy.payload))
            self._relocate(by_shard)
        engine.journal.sync_old()
        with engine.in_turn:
            work.copied += len(loaded.names)
            engine.keeping.progress.took(LOG, loaded.nbytes)
            engine.keeping.copies_made(LOG, loaded.names)
        return True

    def _relocate(self, by_shard: Mapping[Shard, Sequence[tuple[int, bytes]]]) -> None:
        self.is_log_full = False
        for shard, some in by_shard.items():
            seqs, bodies = [seq for seq, _ in some], [body for _, body in some]
            try:
                relocate(self._engine, shard, seqs, bodies, home=True)
            except EbbError:
                self.is_log_full = True
                raise

    def _give_up(self, device: str, work: Work) -> bool:
        """The device cannot be used: what should go there goes elsewhere."""
        with self._engine.in_turn:
            names = (work.urgent or work.calm).take(COUNT_MAX)
            if names:
                work.failed += len(names)
                self._engine.keeping.copies_failed(device, names, UNUSABLE)
        return bool(names)

    def _put_some(self, port: Port, work: Work) -> bool:
        calm = not work.urgent
        if calm and (not work.calm or self._pace.wait_s()):
            return False
        is_archive = port.kind == "object"
        if calm and not work.has_company(is_archive=is_archive):
            return False
        call = self._begin(port, work, calm=calm)
        if call is None:
            return False
        queue, count_max = (work.calm, COUNT_MAX) if calm else (work.urgent, _URGENT_COUNT_MAX)
        try:
            most = OBJECT_COUNT_MAX if is_archive else count_max
            loaded = self._load(call, queue, most)
        except EbbError:
            self._end(call)
            raise
        if not loaded.names:
            self._end(call)
            return bool(queue)
        if calm:
            self._pace.took(loaded.nbytes)
            work.deletes_first = True
        self._when_done(call, port.put(loaded.copies), partial(self._put_done, call, loaded))
        return True

    def _load(self, call: Call, queue: Line, count_max: int) -> Load:
        """Bodies of messages that wait; those for which there is no room wait on."""
        with self._engine.in_turn:
            names = queue.take(count_max)
        device, kind = call.port.name, call.port.kind
        loaded, rest = load(self._engine, names, device, kind, giving_way=call.alone)
        if rest:
            with self._engine.in_turn:
                queue.put_back(rest)
        return loaded

    def _delete_some(self, port: Port, work: Work) -> bool:
        is_archive = port.kind == "object"
        until = Until(self._engine.journal.synced_position, self.readers.oldest(port.name))
        if not self._is_deleting() or not work.may_delete(until, is_archive=is_archive):
            return False
        call = self._begin(port, work, calm=True)
        if call is None:
            return False
        some: list[Delete] = []
        count, count_max = 0, OBJECT_COUNT_MAX if is_archive else COUNT_MAX
        while count < count_max:
            with self._engine.in_turn:
                # A copy that was taken for a stray may have been asked for since.
                unheld = partial(self._engine.holdings.unheld, port.name)
                more = work.take_deletes(until, unheld) if self._is_deleting() else []
            if not more:
                break
            some += more
            count += sum(len(delete.names) for delete in more)
        if not count:
            self._end(call)
            return bool(some)
        work.deletes_first = False
        future = port.delete(self._keys([name for each in some for name in each.names]))
        self._when_done(call, future, partial(self._delete_done, call, some))
        return True

    def _is_deleting(self) -> bool:
        """Whether nobody asks that nothing be deleted."""
        return not self._keeping

    def _keys(self, names: Sequence[Name]) -> Keys:
        uuid = self._engine.directory.identity.uuid
        parts = seqs_of(names).items()
        return Keys(uuid, [(pid, np.array(seqs, dtype=np.int64)) for pid, seqs in parts])

    # Results

    def _put_done(self, call: Call, loaded: Load, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(call, loaded, error)
            return
        self._engine.keeping.progress.took(call.port.name, loaded.nbytes)
        # An object store counts nothing that it has not read back.
        if loaded.is_verified or call.port.kind == "object":
            self._give_way(call)
            self._copied(call, loaded.names)
            return
        moved = self._confirm(call, loaded.names, unseen=True)
        if not moved:
            self._end(call)
            return
        check = load_of(loaded, moved)
        self._when_done(call, call.port.get(check.keys()), partial(self._checked, call, check))

    def _checked(self, call: Call, loaded: Load, future: Future[list[bytes | Lack]]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(call, loaded, error)
            return
        bodies = future.result()
        payloads = loaded.payloads()
        if bodies == payloads:
            self._copied(call, loaded.names)
            return
        bad = sum(map(ne, bodies, payloads))
        log.error("copy_not_verified", device=call.port.name, count=bad)
        # Who gives one wrong is not trusted with the only copy of the others either.
        self._engine.keeping.erred(
            call.port.name, f"{bad} of {len(payloads)} copies were read back not as they were put"
        )
        self._refused(call, loaded, NOT_VERIFIED)
        self._end(call)

    def _copied(self, call: Call, names: Sequence[Name]) -> None:
        self._confirm(call, names, unseen=False)
        self._end(call)

    def _confirm(self, call: Call, names: Sequence[Name], *, unseen: bool) -> list[Name]:
        """Tell of copies; but of those not read back that let another one go, which are returned.

        Asked and told under one lock: in between a review might have another copy leave.
        """
        moved: list[Name] = []
        at_once = _TOLD_AT_ONCE if call.alone else _URGENT_COUNT_MAX
        for at in range(0, len(names), at_once):
            some = names[at : at + at_once]
            if at:
                self._give_way(call)
            with self._engine.in_turn:
                if self._engine.closed is not None:
                    continue
                leaving = self._engine.holdings.that_move(some) if unseen else []
                if leaving:
                    aside = set(leaving)
                    some = [name for name in some if name not in aside]
                    moved += leaving
                if some:
                    self._engine.keeping.copies_made(call.port.name, some)
                call.work.copied += len(some)
        return moved

    def _failed(self, call: Call, loaded: Load, error: BaseException) -> None:
        code = error.code if isinstance(error, EbbError) else type(error).__name__
        device = call.port.name
        log.warning("copy_failed", device=device, code=code, count=len(loaded.names))
        self._refused(call, loaded, code, compare=not isinstance(error, DeviceFull))
        self._end(call)

    def _refused(self, call: Call, loaded: Load, reason: str, *, compare: bool = False) -> None:
        """A device did not take copies, and is asked for nothing new for a while."""
        device, keeper = call.port.name, self._engine.keeping
        with self._engine.in_turn:
            call.work.failed += len(loaded.names)
            if self._engine.closed is None:
                keeper.refuse_for_now(device)
                keeper.copies_failed(device, loaded.names, reason)
                if compare and keeper.reconciler is not None:
                    keeper.reconciler.compare_later(device)

    def _delete_done(self, call: Call, some: list[Delete], future: Future[None]) -> None:
        error = future.exception()
        self._give_way(call)
        if error is not None:
            with self._engine.in_turn:
                call.work.give_back(some)
        else:
            for forget in (False, True):
                names = [name for each in some if each.forget is forget for name in each.names]
                self._deleted(call, names, forget=forget)
        self._end(call, at_once=error is None)

    def _deleted(self, call: Call, names: Sequence[Name], *, forget: bool) -> None:
        for at in range(0, len(names), _TOLD_AT_ONCE):
            some = names[at : at + _TOLD_AT_ONCE]
            if at:
                self._give_way(call)
            with self._engine.in_turn:
                if self._engine.closed is None:
                    call.work.deleted += len(some)
                    dropped, forgotten = ((), some) if forget else (some, ())
                    self._engine.keeping.copies_deleted(call.port.name, dropped, forgotten)
