"""The engine under every face of the broker: one lock; a commit, a timer and an upkeep thread.

Theory of operation. A caller's thread takes the lock, applies its command to a partition, appends
the facts it left to the journal's buffer, and lets the lock go; then it waits, outside the lock,
until the level it asked for holds. The order of effects is fixed: copy, append, reply. The commit
thread writes and flushes for all that wait and opens held batches; the timer thread runs what is
due, in slices, and reads ahead; the upkeep thread writes checkpoints and gives disk space back.

The lock guards the catalog, every partition, the copies, the residency and the appending to the
journal: what can change is read under it, and what is shown is copied under it. No thread waits for
the disk's flush while it holds it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from struct import Struct
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import lifecycle
from ebbmq.core.holdings import Holdings
from ebbmq.core.pins import Pins
from ebbmq.core.row import READY
from ebbmq.core.sharing import Sharing
from ebbmq.errors import ClosedBroker, EbbError, Overloaded, StorageFailed
from ebbmq.holding.residency import Residency
from ebbmq.node import leasing, moving
from ebbmq.node.advising.adviser import Adviser
from ebbmq.node.catalog import Catalog, Queue, Shard
from ebbmq.node.departures import Departures
from ebbmq.node.ending import end_all
from ebbmq.node.gathering import Gathering
from ebbmq.node.keeping.keeper import Keeper
from ebbmq.node.levels import MEMORY
from ebbmq.node.log import log
from ebbmq.node.ruling import Rules
from ebbmq.node.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ebbmq.core.arrivals import Run
    from ebbmq.journal.log import Log
    from ebbmq.model import Level
    from ebbmq.node.clock import Clock
    from ebbmq.node.config import Config
    from ebbmq.node.devices.registry import Devices
    from ebbmq.node.directory import Directory
    from ebbmq.node.feeding.feed import Feed
    from ebbmq.node.removals import NoRemovals, Removals

_EVERYTHING: Final = 1 << 63
#: What leases take in the journal at most: a head, and a run each.
_GRANT_BYTES: Final = fact.GRANT_HEAD.size
_GRANT_RUN_BYTES: Final = fact.GRANT_RUN.size
_TICK_MS: Final = 25
#: Facts that may be left out when the disk is full.
_SPARED: Final = (fact.STATE, fact.CLOCK)
_NONCES: Final = Struct("<1024I")
_REOPEN: Final = "open the data directory again with Broker.open"
_FORKED: Final = "this broker was opened by the parent of this process; a fork cannot share it"
_FORK: Final = "open it after forking, in one process; others reach it through `ebbmq serve`"

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Everything a node holds in memory, and the lock around it."""

    # Named: of so many attributes those of a plain object would be looked up by hash.
    __slots__ = (
        "__weakref__", "_ahead", "_stop", "_threads", "_wake", "adviser", "calendar_base_ms",
        "catalog", "catalog_position", "checkpoint", "checkpoint_position", "clock",
        "clock_doubt", "clock_noted_ms", "closed", "compacting", "config", "damage", "departures",
        "devices", "directory", "disk_full", "doubted", "facts_since_checkpoint", "feed",
        "gathering", "holding", "holdings", "in_turn", "journal", "keeping", "leaving", "live",
        "lock", "nonces", "pins", "ranges", "removals", "residency", "rules", "shared_bytes",
        "sharing", "simple", "synced", "time_base_ms", "torn_bytes", "unlisted", "upkeep",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        clock: Clock,
        directory: Directory,
        removals: Removals | NoRemovals,
    ) -> None:
        self.config = config
        self.clock = clock
        self.directory = directory
        self.removals = removals
        self.lock = threading.Lock()
        #: The lock, for work in the background.
        self.in_turn = Turns(self)
        self.catalog = Catalog()
        self.rules = Rules(config)
        self.residency = Residency(config.cache_bytes)
        self.holdings, self.pins = Holdings(), Pins()
        self.sharing = Sharing()
        self.gathering = Gathering(self)
        self.keeping = Keeper(self)
        self.journal: Log
        self.live = self.facts_since_checkpoint = self.clock_noted_ms = self.torn_bytes = 0
        #: Everything before it is in the last checkpoint.
        self.checkpoint_position = 0
        self.written = self.synced = self.catalog_position = 0
        #: Queue time = this + the clock's elapsed time.
        self.time_base_ms = self.calendar_base_ms = 0
        #: Why nothing is removed by age; None when the clock can be trusted.
        self.clock_doubt: str | None = None
        self.damage: list[str] = []
        #: (first, last) seq per partition in each segment: where a segment's messages are.
        self.ranges: dict[int, dict[int, tuple[int, int]]] = {}
        self.shared_bytes: dict[int, int] = {}
        #: Segments that are being given back: what is declared meanwhile does not list them.
        self.leaving: set[int] = set()
        #: Segments that should be there and are not, or not all of them, with what is wrong: they
        #: may be put back until a person gives them up.
        self.doubted: dict[int, str] = {}
        #: Old segments of which the log does not say which messages they have.
        self.unlisted: set[int] = set()
        self.closed: str | None = None
        #: Queues that `single` knows; forgotten when anything about them changes.
        self.simple: dict[str, Shard] = {}
        #: Partitions with batches that wait for their level.
        self.holding: set[Shard] = set()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._ahead: list[Shard] = []
        self.nonces: list[int] = []
        self.disk_full = False
        self.upkeep: Callable[[], None] = lambda: None
        self.checkpoint: Callable[..., None] = lambda **_: None
        #: Held while segments are deleted, so that a backup can keep them.
        self.compacting = threading.Lock()
        #: None while no device is configured beside the node's own log.
        self.devices: Devices | None = None
        #: None while there is no lake to tell.
        self.feed: Feed | None = None
        self.adviser, self.departures = Adviser(self), Departures(self)
        _engines.add(self)

    # Time

    def now_ms(self) -> int:
        """Queue time."""
        return self.time_base_ms + self.clock.elapsed_ms()

    def start(self) -> None:
        """Let time pass: by threads, or by the manual clock."""
        by_hand = self.clock.attach(self._run_by_hand)
        if self.feed is not None:
            self.feed.start(threaded=not by_hand)
        self.adviser.start(threaded=not by_hand)
        if by_hand:
            self.run_due()
            return
        self._run_slice()
        for target, name in ((self._run_timer, "timer"), (self._run_upkeep, "upkeep")):
            guarded = self.guarded(target)
            thread = threading.Thread(target=guarded, name=f"ebbmq-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """What a thread of ours is to do: if it ends in a way nobody foresaw, so does intake."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # whatever it did is not done any more: somebody must know
                name = threading.current_thread().name
                log.defect("thread_died", error, thread=name)
                detail = f"the thread {name} died of {type(error).__name__}: {error}"
                self.journal.stop(StorageFailed(detail, "see the log, then reopen the broker"))

        return run

    def _run_by_hand(self) -> None:
        self._due_and_ahead()
        self.upkeep()
        if self.feed is not None:
            self.feed.run_due()
        self.adviser.run_due()

    def _run_timer(self) -> None:
        self._keep_doing(self._due_and_ahead, self._wake, _TICK_MS / 1_000)

    def _run_upkeep(self) -> None:
        self._keep_doing(self.upkeep, self._stop, self.config.upkeep_every_ms / 1_000)

    def _keep_doing(self, work: Callable[[], None], event: threading.Event, pause: float) -> None:
        while self.closed is None:
            event.wait(pause)
            event.clear()
            try:
                if self.closed is None:
                    work()
            except EbbError as error:
                if self.closed is None:
                    log.error("background", code=error.code, detail=error.detail)
                    self._stop.wait(1.0)

    def _due_and_ahead(self) -> None:
        self.run_due()
        while self._ahead:
            shard = self._ahead.pop()
            try:
                leasing.read_ahead(self, shard)
            finally:
                shard.reading_ahead = False

    def ask_ahead_if_short(self, shard: Shard) -> None:
        """Have more bodies read if there are more messages than bodies in RAM."""
        if shard.partition.depth[READY] > shard.resident.entries:
            self.ask_ahead(shard)

    def ask_ahead(self, shard: Shard) -> None:
        """Have bodies that are delivered next read into RAM, by another thread."""
        if not shard.reading_ahead:
            shard.reading_ahead = True
            self._ahead.append(shard)
            self._wake.set()

    def run_due(self) -> None:
        """Do everything that is due, in slices with the lock free between them."""
        while self._run_slice():
            pass

    def _run_slice(self) -> bool:
        more = False
        with self.lock:
            if self.closed is not None:
                return False
            now_ms = self.now_ms()
            for shard in list(self.catalog.shards.values()):
                partition = shard.partition
                deadline_ms = lifecycle.next_deadline_ms(partition)
                if partition.moves or (deadline_ms is not None and deadline_ms <= now_ms):
                    ready = partition.depth[READY]
                    lifecycle.tick(partition, now_ms)
                    self.settle(shard)
                    if partition.depth[READY] > ready:
                        self.announce(shard.queue, partition.depth[READY] - ready)
                    deadline_ms = lifecycle.next_deadline_ms(partition)
                    more = more or (deadline_ms is not None and deadline_ms <= now_ms)
            with contextlib.suppress(Overloaded):
                self.journal.mark()
            if self.holding:
                self.write_now()
        if more:
            self.let_others_in()
        return more

    def let_others_in(self) -> None:
        """Give way to those who wait for the lock: whoever lets go and takes it again wins."""
        self.pause(0.0005)

    def pause(self, pause_s: float) -> None:
        """Do nothing for a while, where time passes by itself."""
        if self._threads:
            self._stop.wait(pause_s)

    # Effects

    def settle(self, shard: Shard, *, written: bool = False) -> None:
        """Carry out what a verb left behind: append its facts, let bodies go, move the dead.

        Who is about to `write_now` says so: one fact is then appended and written in one step.
        """
        partition = shard.partition
        facts = partition.facts
        if facts:
            self.append(facts, written=written and len(facts) == 1)
            facts.clear()
            for row, granted_at_ms in partition.unread:
                self.keeping.share_reads(shard, [row], granted_at_ms)
            partition.unread.clear()
        if partition.left or partition.let_go or partition.moves or partition.gone:
            self._settle_others(shard)

    def _settle_others(self, shard: Shard) -> None:
        partition = shard.partition
        if partition.left:
            if shard.resident.bytes:
                for seq, importance in partition.left:
                    shard.resident.drop(seq, importance)
            partition.left.clear()
        if partition.let_go:
            self.let_go(partition.let_go)
            partition.let_go.clear()
        if partition.gone:
            gone = list(partition.gone)
            partition.gone.clear()
            self.keeping.gone(partition.pid, gone)
        if partition.moves:
            moves = list(partition.moves)
            partition.moves.clear()
            moving.to_dead_queue(self, shard, moves)

    def append(self, facts: Iterable[fact.AnyFact], *, written: bool = False) -> int:
        """Append facts to the journal, in order, and write each at once if asked to."""
        journal = self.journal
        for kind, pid, count, first, parts in facts:
            if self.disk_full and kind in _SPARED and not self._fits(sum(map(len, parts))):
                continue
            if written:
                position = journal.append_written(kind, pid, count, first, b"".join(parts))
            else:
                position = journal.append(kind, pid, count, first, parts)
            self.facts_since_checkpoint += count
            if kind == fact.PUBLISH:
                self.live += count
                self.note_range(position >> 32, pid, first, count)
            elif kind == fact.ACK:
                self.live -= count
            elif kind == fact.REMOVE:
                self.live -= count
                self.removals.note(parts[0], position)
        return journal.position

    def admit(self, payload_bytes: int, leaving: int = 0) -> None:
        """Make room for a record beside what is reserved for leases and acks of all messages.

        Args:
            payload_bytes: what will be appended; 0 only keeps the reserve.
            leaving: messages whose reserve the record itself gives back.

        Raises:
            Overloaded: code `disk_full`.
        """
        reserve = (self.live - leaving) * limits.RESERVE_BYTES_PER_MESSAGE
        reserve += limits.HOUSEKEEPING_BYTES + self.rules.stored_bytes
        try:
            self.journal.admit(0, reserve + payload_bytes)
        except Overloaded as error:
            if not self.disk_full:
                log.warning("disk_full", detail=error.detail)
            self.disk_full = True
            self.simple.clear()
            raise
        self.disk_full = False

    def squeeze_in(self, payload_bytes: int, leaving: int = 0) -> None:
        """`admit`, if need be of what is reserved for leases: for what helps on a full disk.

        Raises:
            Overloaded: code `disk_full`; only acks have room.
        """
        try:
            self.admit(payload_bytes, leaving)
        except Overloaded:
            if not self._fits(payload_bytes, leaving):
                raise

    def check_space_for_leases(self, count: int, each_bytes: int = _GRANT_RUN_BYTES) -> None:
        """On a full disk, refuse leases that could not be written down: acks need what is left.

        What was reserved when the messages were accepted is enough to lease each of them once, and
        not to extend it.

        Raises:
            Overloaded: code `disk_full`.
        """
        if self.disk_full and not self._fits(_GRANT_BYTES + count * each_bytes):
            raise Overloaded(
                "the disk is full and the space reserved for leases is used up",
                "ack what is leased, or free space on the disk of the data directory",
                code="disk_full",
            )

    def _fits(self, payload_bytes: int, leaving: int = 0) -> bool:
        """Whether a fact about leases fits without touching what acks need."""
        acks = (self.live - leaving) * limits.ACK_BYTES_PER_MESSAGE + limits.HOUSEKEEPING_BYTES
        try:
            self.journal.admit(0, acks + payload_bytes + limits.RECORD_OVERHEAD_BYTES)
        except Overloaded:
            return False
        return True

    def calendar_ms(self) -> int:
        """The time of the calendar; where that is in doubt, what it should be by the store's."""
        if self.clock_doubt is None:
            return self.clock.wall_ms()
        return self.calendar_base_ms + self.clock.elapsed_ms()

    def note_clock(self) -> int:
        """Append what time it is, by the queue and by the calendar; returns the position after."""
        self.clock_noted_ms = now_ms = self.now_ms()
        packed = fact.CLOCK_FACT.pack(now_ms, self.calendar_ms())
        return self.append([fact.Fact(fact.CLOCK, 0, 0, 0, [packed])])

    def note_range(self, segment: int, pid: int, first: int, count: int) -> None:
        """Remember which messages of a partition have their record in a segment."""
        known = self.ranges.setdefault(segment, {})
        low, high = known.get(pid, (first, first))
        known[pid] = (min(low, first), max(high, first + count - 1))

    def let_go(self, bodies: Iterable[tuple[int, int, int]]) -> None:
        """One row less needs each of these shared (segment, offset, length) bodies."""
        for segment, offset, length in bodies:
            if length and self.sharing.let_go(segment << 32 | offset):
                self.shared_bytes[segment] = self.shared_bytes.get(segment, 0) - length

    def owns_directory(self) -> bool:
        """Whether the directory is the one that was opened; the journal ends where it is not."""
        lost = self.directory.lost()
        if lost is not None and self.journal.failed is None:
            log.error("directory_lost", detail=lost.detail)
            self.journal.stop(lost)
        return lost is None

    # Levels

    def before_commit(self) -> None:
        """Take in who waits for the commit, which fails if the directory is another one by now."""
        self.owns_directory()
        self.gathering.take_in()

    def open_or_hold(self, shard: Shard, level: int, position: int, runs: list[Run]) -> None:
        """Let a batch into the order if its level holds already, else hold it."""
        partition = shard.partition
        if level == MEMORY and not partition.held:
            self.announce(shard.queue, partition.open_runs(runs))
            return
        partition.hold(level, position, runs)
        self.holding.add(shard)

    def committed(self, written: int, synced: int) -> None:
        """Open what was held for these positions; called by the commit thread."""
        with self.lock:
            # A publish may have written more since the commit began: neither ever falls.
            self.written = max(self.written, written, self.journal.written_position)
            self.synced = max(self.synced, synced)
            self.open_held()

    def open_held(self) -> None:
        """Let in every batch whose level holds."""
        if not self.holding:
            return
        for shard in list(self.holding):
            reached = _EVERYTHING, self.written, self.synced
            copied = self.keeping.confirming.reached(shard, _EVERYTHING)
            opened = shard.partition.open_held((*reached, *(min(copied, at) for at in reached)))
            if not shard.partition.held:
                self.holding.discard(shard)
            if opened:
                self.announce(shard.queue, opened)
                self.trim(shard)

    def trim(self, shard: Shard) -> None:
        """Keep a queue within its bounds where its policy is to let the least go."""
        spec = shard.queue.spec
        if spec.overflow != "reject" and (spec.max_messages or spec.max_bytes):
            shard.partition.trim(self.now_ms())
            self.settle(shard)

    def write_now(self) -> None:
        """Bring everything appended to level written, here and now (the lock is held)."""
        self.journal.write()
        if self.holding:
            self.open_written()

    def open_written(self) -> None:
        """Let in what was held until it was written (the lock is held)."""
        self.written = self.journal.written_position
        self.open_held()

    def wait(self, level: Level, position: int) -> None:
        """Return once a position holds at a level; the lock must be free."""
        if level == "synced":
            self.journal.wait("synced", position)

    def announce(self, queue: Queue, count: int) -> None:
        """Wake those who wait for messages of a queue: no more of them than there are messages."""
        if count:
            queue.arrived.notify(count)
            waiters = queue.waiters
            if waiters and self._is_for_some(queue):
                count = len(waiters)
            while waiters and count > 0:
                waiters.popleft()()
                count -= 1

    def _is_for_some(self, queue: Queue) -> bool:
        """Whether who waits may not have what others may."""
        apart = any(shard.partition.aside is not None for shard in queue.shards)
        return apart or (self.devices is not None and self.devices.is_restricted)

    def wait_for_arrival(self, queue: Queue, wait_ms: int) -> None:
        """Wait until messages may have become ready; the lock is let go meanwhile.

        A manual clock is moved to the next due instant instead: nobody else would.
        """
        if self._threads:
            queue.arrived.wait(wait_ms / 1_000)
            return
        now_ms = self.now_ms()
        instants = [
            instant
            for shard in self.catalog.shards.values()
            if (instant := lifecycle.next_deadline_ms(shard.partition)) is not None
        ]
        step_ms = max(0, min([*instants, now_ms + wait_ms]) - now_ms)
        self.lock.release()
        try:
            self.clock.advance(max(1, min(step_ms, wait_ms)))
        finally:
            self.lock.acquire()

    # Life

    def check_open(self) -> None:
        """Refuse calls on a broker that was closed or forked."""
        if self.closed is not None:
            action = _FORK if self.closed == _FORKED else _REOPEN
            raise ClosedBroker(self.closed, action)

    def nonce(self) -> int:
        """A number nobody can guess, for the tokens of one grant (the lock is held)."""
        if not self.nonces:
            self.nonces = list(_NONCES.unpack(secrets.token_bytes(_NONCES.size)))
        return self.nonces.pop()

    def pages_for(self, shard: Shard) -> int:
        """Bytes the index of a partition takes."""
        return len(shard.partition.index.pages) * limits.PAGE_ROWS * limits.ROW_BYTES

    def close(self, *, clean: Callable[[], None] | None = None) -> None:
        """Stop the threads, make everything durable, let go of the directory.

        Whatever fails of that, the rest is done; the first error is raised. What `clean` does is
        left out where something still runs that should not.
        """
        if not self._refuse_calls():
            return

        def end_threads() -> None:
            self._end_threads()
            if clean is not None:
                clean()

        steps: list[Callable[[], object]] = [end_threads, self.journal.close]
        if self.devices is not None:
            steps.append(self.devices.close)
        steps.append(lambda: self.removals.close(self.journal.synced_position))
        end_all([*steps, self.directory.close])

    def stop(self) -> None:
        """Take no more calls and end all threads but those of journal and devices; once."""
        if self._refuse_calls():
            self._end_threads()

    def _refuse_calls(self) -> bool:
        """Whether calls were taken until this moment."""
        with self.lock:
            if self.closed is not None:
                return False
            self.closed = "this broker was closed"
            self.simple.clear()
            for queue in self.catalog.queues.values():
                self.announce(queue, 1 << 30)
        return True

    def _end_threads(self) -> None:
        this = threading.current_thread()
        steps: list[Callable[[], object]] = [
            lambda: self.clock.detach(self._run_by_hand),
            self._wake.set,
            self._stop.set,
            *(thread.join for thread in self._threads if thread is not this),
            self.adviser.stop,
            self.keeping.stop,
        ]
        end_all(steps if self.feed is None else [*steps, self.feed.stop])


def _forked() -> None:
    for engine in list(_engines):
        engine.closed = _FORKED
        engine.simple.clear()
        engine.lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
