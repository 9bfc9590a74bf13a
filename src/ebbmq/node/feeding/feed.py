"""The feed of a node: a thread that writes what happens into the lake, in batches, when it can.

Theory of operation. Partitions tell the buffer what happens, with the engine's lock held; that
costs a copy of a batch's rows. The thread takes what is there every `every_ms`, or sooner when the
buffer is half full, makes columns of it and writes a file for each hour, then the manifest. Every
now and then it takes a snapshot, in small steps with long rests, in which events are written as
always. A lake that fails is tried again with growing pauses; meanwhile the buffer fills up, and
then events are left out and counted. Nothing here ever makes the broker wait, and no message
depends on it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq.core.copies import name_of
from ebbmq.errors import ClosedBroker, EbbError
from ebbmq.feed import layout
from ebbmq.feed.events import EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.node.feeding import arrays, needs
from ebbmq.node.feeding.buffer import Buffer, Decided
from ebbmq.node.feeding.event_files import EventFile, by_hour, room_for_events
from ebbmq.node.feeding.expanding import Texts, expand
from ebbmq.node.feeding.files import Files, NoRoom
from ebbmq.node.feeding.joining import EVENTS_MAX
from ebbmq.node.feeding.judging import settings_of
from ebbmq.node.feeding.lake import open_lake
from ebbmq.node.feeding.needs import Needs
from ebbmq.node.feeding.pacing import Pace
from ebbmq.node.feeding.parting import Parting
from ebbmq.node.feeding.snapshots import Snapshot, Workroom
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyarrow import Table

    from ebbmq.feed.manifests import Part
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.feeding.expanding import Columns
    from ebbmq.node.feeding.files import Making
    from ebbmq.node.feeding.joining import Joined
    from ebbmq.node.keeping.decisions import Decision

#: That a message leaves because it faded is told as its removal.
_TOLD_OTHERWISE: Final = ("faded",)
#: Names of messages of a partition are so far from those of the next.
_NAMES: Final = np.uint64(name_of(1, 0))
#: Events of one file, about.
_EVENTS_AT_ONCE: Final = 256 * 1024
_PAUSE_MS: Final = 1_000
_PAUSE_MS_MAX: Final = 30_000
#: A lake that takes longer for one file does not answer.
_STUCK_MS: Final = 30_000
#: How long the end of a broker waits for the last file.
_CLOSE_S: Final = 10.0


class Feed:
    """Everything a node does for its feed."""

    def __init__(self, engine: Engine) -> None:
        config = engine.config.feed
        assert config.lake is not None
        lake = open_lake(config.lake, config.options or {}, engine.directory.path)
        self._engine = engine
        self._node = engine.config.node
        self._every_ms = config.every_ms
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.buffer = Buffer(config.buffer_bytes, self._wake.set)
        self.files = Files(lake, self._node, engine.directory.identity.uuid, config.bytes_max)
        self._needs = Needs(lake.where, config.bytes_max)
        self._is_open = self._is_started = False
        self._places: dict[int, tuple[str, int]] = {}
        self._room = room_for_events()
        self._workroom = Workroom()
        self._pace = Pace()
        self._next_ms = self._events_ms = self._snapshot_ms = 0
        self._snapshot_every_ms = config.snapshot_every_ms
        self._snapshot_asked = False
        self._working_since_ms: int | None = None
        self._failed_in_a_row = 0
        #: Why nothing is written; None while all is well.
        self.problem: str | None = None
        self.events_written = 0
        self.failures = 0
        self.snapshots = 0
        self.snapshots_given_up = 0
        #: Events of which no file could be made, and why the last of them could not.
        self.spoiled = 0
        self._spoiled_by = ""

    # What others call

    def attach(self, shard: Shard) -> None:
        """Listen to a partition (the lock is held, or nobody else is there yet)."""
        pid = shard.partition.pid
        self._places[pid] = shard.queue.spec.name, shard.queue.shards.index(shard)
        shard.partition.tell = self.buffer.tell

    def decided(self, told: Decision) -> None:
        """Something was decided about copies, or came of it (the lock is held)."""
        if told.event in _TOLD_OTHERWISE:
            return
        names = np.array(told.names, dtype=np.uint64)
        pids = (names // _NAMES).astype(np.uint32)
        for pid in np.unique(pids).tolist():
            shard = self._engine.catalog.shards.get(pid)
            if shard is None:
                continue
            seqs = names[pids == pid] % _NAMES
            known = shard.partition.index.words_of(seqs)
            about = told.event, pid, told.at_ms, len(seqs), seqs, known
            self.buffer.tell(Decided(*about, told.device, told.reason, told.score))

    def start(self, *, threaded: bool) -> None:
        """Begin to write; without a thread `run_due` does."""
        self._next_ms = self._engine.clock.elapsed_ms() + self._every_ms
        self._is_started = True
        if threaded:
            self._thread = threading.Thread(target=self._run, name="ebbmq-feed", daemon=True)
            self._thread.start()

    def run_due(self) -> None:
        """Write if it is time to; for a clock that is moved by hand."""
        if self._thread is None and self._engine.clock.elapsed_ms() >= self._next_ms:
            self._work()

    def stop(self) -> None:
        """Write what is left, unless the lake does not take it in time."""
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            if self._is_started:
                self._work()
            return
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive() or self.problem is not None:
            log.warning("feed_not_finished", lake=self.files.lake.where, detail=self.problem)

    def ask_snapshot(self) -> None:
        """Have all messages that are there written down as soon as the lake takes them."""
        self._snapshot_asked = True
        self._wake.set()

    def troubles(self) -> list[str]:
        """What is wrong with the feed, for people."""
        where, problem = self.files.lake.where, self._failing()
        known = [
            f"in the feed in {where} {each}; files that they may name stay, and are not counted"
            for each in self.files.refused
        ]
        if self.spoiled:
            known.append(
                f"{self.spoiled} events are left out of the feed in {where} as no file can be made "
                f"of them: {self._spoiled_by}; messages are safe, please report it"
            )
        known += self._needs.troubles()
        if problem is not None:
            left_out = f"messages are safe, {self.buffer.missed} events are left out so far"
            known.append(f"the feed cannot be written to {where}: {problem}; {left_out}")
        return known

    def _failing(self) -> str | None:
        """Why nothing can be written, for people."""
        since_ms = self._working_since_ms
        if since_ms is not None and self._engine.clock.elapsed_ms() - since_ms > _STUCK_MS:
            return "it does not answer"
        return self.problem

    def figures(self) -> dict[str, int]:
        """What was done since the start, and what is there."""
        return {
            "ok": int(self._failing() is None),
            "pending_bytes": self.buffer.pending_bytes,
            "lake_bytes": self.files.bytes,
            "events": self.events_written,
            "events_missed": self.buffer.missed,
            "files": self.files.written,
            "files_removed": self.files.removed,
            "lacking_bytes": self._needs.lacking_bytes,
            "snapshots": self.snapshots,
            "snapshots_given_up": self.snapshots_given_up,
            "failures": self.failures,
        }

    # The thread

    def _run(self) -> None:
        while not self._stop.is_set():
            pause_ms = self._next_ms - self._engine.clock.elapsed_ms()
            if self._wake.wait(max(0, pause_ms) / 1_000) and self._failed_in_a_row:
                # More of the same does not mend a lake.
                self._stop.wait(max(0, pause_ms) / 1_000)
            self._wake.clear()
            if not self._stop.is_set():
                self._work()
        self._work()  # what happened up to the end

    def _work(self) -> None:
        clock = self._engine.clock
        self._working_since_ms = clock.elapsed_ms()
        self._try(self._write_all)
        self._working_since_ms = None
        # One that was asked for while another was taken is taken at once.
        pause_ms = 0 if self._snapshot_asked else self._every_ms
        self._next_ms = clock.elapsed_ms() + (self._pause_ms() or pause_ms)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._well_again()
        except Exception as error:  # a feed that fails harms nothing else
            self._fail(error)

    def _pause_ms(self) -> int:
        """How long a lake that fails is left alone; 0 while it does not."""
        if not self._failed_in_a_row:
            return 0
        return min(_PAUSE_MS << min(self._failed_in_a_row - 1, 10), _PAUSE_MS_MAX)

    def _well_again(self) -> None:
        if self.problem is not None:
            log.info("feed_well_again", lake=self.files.lake.where, missed=self.buffer.missed)
        self.problem, self._failed_in_a_row = None, 0

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, OSError | EbbError)
        told = str(error)
        self.failures += 1
        self._failed_in_a_row += 1
        if self.problem is None:
            log.warning("feed_failed", lake=self.files.lake.where, detail=told)
        if not known:
            log.error("feed_bug", error=repr(error))
        self.problem = told

    def _write_all(self) -> None:
        if not self._is_open:
            with self._engine.lock:
                epoch = self._engine.catalog.epoch
            self.files.open(epoch)
            self._is_open = True
        self._write_events()
        due = self._snapshot_every_ms and self._engine.clock.elapsed_ms() >= self._snapshot_ms
        if (due or self._snapshot_asked) and self._engine.closed is None:
            asked, self._snapshot_asked = self._snapshot_asked, False
            try:
                self.files.claim()
                self._snapshot()
            except BaseException:
                self._snapshot_asked |= asked
                raise

    def _write_events(self) -> None:
        # What could not be deleted the last time is deleted before there is more.
        self.files.keep_within_bounds()
        # What could not be written before is written by itself, and what came since then after it.
        is_late = self.buffer.is_taken
        # What comes meanwhile waits for its turn: small files are dear.
        while self._write_some() >= _EVENTS_AT_ONCE or is_late:
            is_late = self.buffer.is_taken
            self._is_alive()
        with self._engine.lock:
            self.buffer.tell_gap()
        self._events_ms = self._engine.clock.elapsed_ms() + self._every_ms
        self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        self.files.keep_within_bounds()
        if self.files.events_need:
            so = "the last file of events is all there is of what happened"
            self._needs.lack(needs.EVENTS, self.files.events_need, so)
        else:
            self._needs.suffice(needs.EVENTS)

    def _is_alive(self) -> None:
        """The lake answers."""
        self._working_since_ms = self._engine.clock.elapsed_ms()

    def _snapshot(self) -> None:
        """Write down all messages that are there; events go on meanwhile."""
        if self.files.settle(CATALOG) is not None:
            self._count_snapshot()
            return
        snapshot = Snapshot(self._engine, self.files.boot, self._workroom)
        making = self.files.begin_snapshot()
        try:
            self._write_snapshot(snapshot, making)
        except NoRoom:
            self.files.give_up_snapshot()
            self._gave_up(snapshot, making)
        except ClosedBroker:
            self.files.give_up_snapshot()
        except BaseException:
            self.files.give_up_snapshot()
            raise

    def _write_snapshot(self, snapshot: Snapshot, making: Making) -> None:
        for whole in self._at_ease(snapshot.tables(), Parting(snapshot.at_ms)):
            self._write_part(snapshot.at_ms, whole)
        settings = msgspec.structs.replace(settings_of(self._engine), faulty=snapshot.faulty)
        # Who closes a broker says so first, then stops the feed: all of it may not be there.
        self._engine.check_open()
        self.files.publish(
            CATALOG,
            making.parts,
            self._engine.clock.wall_ms(),
            # From when it is, and to when it took: what happened in between may be in it or not.
            instants=(snapshot.at_ms, self._engine.now_ms()),
            settings=settings,
        )
        self._count_snapshot()

    def _count_snapshot(self) -> None:
        """A snapshot is in the lake."""
        self.snapshots += 1
        self._snapshot_ms = self._engine.clock.elapsed_ms() + self._snapshot_every_ms
        self._needs.suffice(needs.SNAPSHOTS)
        self._keep_within_bounds()

    def _gave_up(self, snapshot: Snapshot, making: Making) -> None:
        """A snapshot does not fit; the next one is tried when its time comes."""
        self.snapshots_given_up += 1
        self._snapshot_ms = self._engine.clock.elapsed_ms() + self._snapshot_every_ms
        self._needs.lack(
            needs.SNAPSHOTS,
            self.files.snapshot_need(making, snapshot.messages),
            f"a snapshot of {snapshot.messages} messages, about "
            f"{making.bytes_of(snapshot.messages)} bytes, was given up",
        )

    def _at_ease(self, tables: Iterator[Table], parting: Parting) -> Iterator[Table]:
        """What goes into files, with pauses in between."""
        self._pace.begin()
        while not self._stop.is_set():
            began = time.monotonic()
            table = next(tables, None)
            if table is None:
                yield from parting.rest()
                return
            wholes = list(parting.take(table))
            step_s = time.monotonic() - began
            # Of writing only what the processor does: how long a lake takes keeps nobody waiting.
            began = time.thread_time()
            yield from wholes
            written_s = time.thread_time() - began
            if self._thread is not None:
                written = sum(map(len, wholes))
                self._rest(self._pace.rest_s(step_s, len(table), written_s, written))

    def _rest(self, seconds: float) -> None:
        """Leave the interpreter to who publishes, but for events whose time has come."""
        clock, until = self._engine.clock, time.monotonic() + seconds
        while not self._stop.is_set():
            left_s = until - time.monotonic()
            due_s = (self._events_ms - clock.elapsed_ms()) / 1_000
            if left_s <= 0:
                break
            self._working_since_ms = None
            self._wake.wait(max(0.0, min(left_s, due_s)))
            self._wake.clear()
            self._is_alive()
            is_half_full = self.buffer.is_half_full and not self._failed_in_a_row
            if is_half_full or clock.elapsed_ms() >= self._events_ms:
                # The snapshot goes on: what cannot be written now is written later.
                self._try(self._write_events)
                self._events_ms = clock.elapsed_ms() + (self._pause_ms() or self._every_ms)

    def _write_part(self, at_ms: int, whole: Table) -> None:
        path = layout.catalog_file(at_ms, self._node, self.files.boot, self.files.number())
        self.files.add(path, arrays.encode(whole, is_by_review=True), len(whole))
        self._is_alive()

    def _write_some(self) -> int:
        """Write what is there, up to one file an hour of it; returns how many events."""
        with self._engine.lock:
            told = self.buffer.take(_EVENTS_AT_ONCE)
        if not told:
            self._room = room_for_events()
            return 0
        rows = self.files.settle(EVENTS)
        if rows is not None:
            return self._written(rows)
        try:
            made = self._made_of(told)
        except (OSError, EbbError, MemoryError):  # the same may do another time
            raise
        except Exception as error:  # nor may what comes after it depend on it
            self._spoil(error)
            return _EVENTS_AT_ONCE  # there may be more
        parts: list[Part] = []
        try:
            for hour_ms, (data, rows) in made.files.items():
                path = layout.events_file(hour_ms, self._node, self.files.boot, self.files.number())
                parts.append(self.files.write(path, data, rows))
        except BaseException:
            self.files.give_up(parts)
            raise
        self.files.publish(EVENTS, parts, self._engine.clock.wall_ms(), made.seqs, made.instants)
        return self._written(sum(part.rows for part in parts))

    def _written(self, rows: int) -> int:
        """What was taken is in the lake."""
        self.buffer.let_go()
        if rows < EVENTS_MAX // 2:
            self._room = room_for_events()
        self.events_written += rows
        return rows

    def _made_of(self, told: Sequence[Joined]) -> _Made:
        """The files of some events; no lake is needed for it."""
        texts, spans = Texts(), []
        files: dict[int, EventFile] = {}
        for joined in told:
            columns = expand(joined, texts, self._places, self._room)
            spans.append(_Span.of(columns.columns))
            for hour_ms, chosen in by_hour(columns):
                if hour_ms not in files:
                    files[hour_ms] = EventFile(texts, self._node, self.files.boot)
                files[hour_ms].add(chosen)
        return _Made(
            {hour_ms: (file.encoded(), file.rows) for hour_ms, file in files.items()},
            (spans[0].first, spans[-1].last),
            (min(span.from_ms for span in spans), max(span.to_ms for span in spans)),
        )

    def _spoil(self, error: Exception) -> None:
        """Of what was taken no file can be made: it is a gap, by itself if there is more of it."""
        with self._engine.lock:
            events = self.buffer.spoil(self._engine.now_ms())
        if not events:
            return
        if not self.spoiled:
            log.defect("feed_bug", error, events=events)
        else:
            log.error("feed_bug", error=repr(error), events=events)
        self.spoiled += events
        self._spoiled_by = repr(error)


class _Made(NamedTuple):
    """Files of events by the hour they are of, each with its rows, and what is in them."""

    files: dict[int, tuple[bytes | pa.Buffer, int]]
    seqs: tuple[int, int]
    instants: tuple[int, int]


class _Span(NamedTuple):
    """Numbers and instants of some events."""

    first: int
    last: int
    from_ms: int
    to_ms: int

    @classmethod
    def of(cls, told: Columns) -> Self:
        """Those of the events of some columns."""
        numbers, instants = told["number"], told["at_ms"]
        return cls(int(numbers[0]), int(numbers[-1]), int(instants.min()), int(instants.max()))
