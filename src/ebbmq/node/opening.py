"""Opening and closing an engine on a data directory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ebbmq.errors import InvalidSpec, Overloaded
from ebbmq.journal import faults
from ebbmq.journal.disk import FileDisk
from ebbmq.node import declaring, noting, rule_changes
from ebbmq.node.checkpointing import Checkpointer
from ebbmq.node.clock import SystemClock, doubt_of
from ebbmq.node.compaction import Compactor
from ebbmq.node.config import load
from ebbmq.node.directory import Directory
from ebbmq.node.engine import Engine
from ebbmq.node.faulty import retry_faulty
from ebbmq.node.keeping import telling
from ebbmq.node.log import log
from ebbmq.node.recovery import Recovery
from ebbmq.node.removals import Removals, flush_in_parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from ebbmq.journal.disk import Disk
    from ebbmq.node.clock import Clock
    from ebbmq.node.config import Config
    from ebbmq.node.devices.registry import Devices
    from ebbmq.node.feeding.feed import Feed

#: Where journal and checkpoints are.
_RECORDS: Final = ("journal", "checkpoints")
_CLOCK_EVERY_MS: Final = 10_000
_RETRY_FAULTY_MS: Final = 30_000


def open_engine(  # noqa: PLR0913  # what a store may be opened with
    path: str | Path,
    config: Config | dict[str, Any] | str | Path | None = None,
    clock: Clock | None = None,
    *,
    disk: Disk | None = None,
    threaded: bool = True,
    accept_clock: bool = False,
    accept_damage: bool = False,
) -> Engine:
    """Take a data directory, put back what it holds, and let time pass.

    Raises:
        DirectoryInUse: another process has it.
        StorageFailed: it cannot be read or written, or is not what it was.
        Overloaded: code `disk_full`; there is no space to open it in.
    """
    settings = load(config)
    directory = Directory(path)
    try:
        with Opened() as opened:
            opened.add(directory.close)
            removals = Removals(disk or _own_disk(directory, "removals", opened))
            opened.add(removals.close)
            engine = Engine(settings, clock or SystemClock(), directory, removals)
            recovery = _restore(engine, opened, disk, threaded=threaded)
            removals.on_failure = engine.journal.stop
            _set_time(engine, recovery, accept=accept_clock)
            engine.catalog.epoch += 1
            recovery.finish(engine.now_ms(), accept_damage=accept_damage)
            _start(engine, recovery)
            opened.keep()
    except OSError as error:
        raise faults.cannot_open(str(directory.path), error) from error
    return engine


class Opened:
    """What was opened so far: let go of in reverse, unless all of it is to be kept."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, close: Callable[[], object]) -> None:
        """Have it closed; if that fails, too, it is logged: what happened first is what to tell."""
        self._stack.callback(_close_quietly, close)

    def keep(self) -> None:
        """All is open: whoever has it closes it."""
        self._stack.pop_all()


def _close_quietly(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception as error:  # somebody is about to be told of an earlier one
        log.warning("not_closed", detail=str(error))


def _own_disk(directory: Directory, part: str, opened: Opened) -> FileDisk:
    disk = FileDisk(directory.path / part)
    opened.add(disk.close)
    return disk


def _restore(engine: Engine, opened: Opened, disk: Disk | None, *, threaded: bool) -> Recovery:
    """Open devices and journal, and put back what the journal tells."""
    engine.devices = _open_devices(engine)
    if engine.devices is not None:
        opened.add(engine.devices.close)
    disks = [disk or _own_disk(engine.directory, part, opened) for part in _RECORDS]
    recovery = Recovery(engine, *disks)
    engine.journal = recovery.run(threaded=threaded)
    opened.add(engine.journal.close)
    # From here on there may be threads, and one that dies stops the journal.
    opened.add(engine.stop)
    if engine.devices is not None:
        engine.devices.watch(engine.guarded)
    return recovery


def _start(engine: Engine, recovery: Recovery) -> None:
    """Put the start on record, and let time pass."""
    engine.rules.start(engine.clock.wall_ms())
    declaring.warn_of_default_devices(engine)
    for told in telling.unconfigured(engine):
        log.warning("device_not_configured", detail=told)
    engine.feed = _open_feed(engine)
    for shard in engine.catalog.shards.values():
        shard.totals_before = dict(shard.partition.totals)
    engine.written = engine.synced = engine.journal.position
    engine.journal.on_commit = engine.committed
    engine.journal.before_commit = engine.before_commit
    _note_start(engine, recovery)
    upkeep = Upkeep(engine, recovery)
    engine.upkeep = upkeep.run
    engine.checkpoint = upkeep.checkpoint
    engine.keeping.start()
    engine.start()


def _open_devices(engine: Engine) -> Devices | None:
    if not engine.config.devices:
        return None
    # Who has no devices does not load what they need.
    from ebbmq.node.devices.registry import Devices  # noqa: PLC0415

    return Devices.open(engine.config, engine.directory, engine.clock)


def _open_feed(engine: Engine) -> Feed | None:
    """The feed, listening to everything that is there: what was recovered is not told again."""
    if engine.config.feed.lake is None:
        return None
    # Who has no feed does not load what it needs.
    try:
        from ebbmq.node.feeding.feed import Feed  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSpec(
            f"a feed is configured, and it needs a package that is missing: {error.name}",
            "install pyarrow, or remove feed.lake from the configuration",
        ) from error
    feed = Feed(engine)
    for shard in engine.catalog.shards.values():
        feed.attach(shard)
    engine.keeping.decisions.tell = feed.decided
    return feed


def _note_start(engine: Engine, recovery: Recovery) -> None:
    """Put the start on record; on a full disk the store opens all the same, to be consumed."""
    try:
        recovery.give_homes()
        noting.note_catalog(engine)
        rule_changes.note_rules(engine)
        recovery.let_go_of_unread()
        # The epoch tells the tokens of this run from those of runs whose end was lost.
        engine.journal.wait("synced", engine.note_clock())
        engine.directory.note_log()
        engine.removals.flush(engine.journal.synced_position)
    except Overloaded as error:
        log.warning("start_not_on_record", detail=error.detail)
        engine.disk_full = True


def _set_time(engine: Engine, recovery: Recovery, *, accept: bool) -> None:
    """Go on with queue time where it was, plus the calendar time since, if that can be believed."""
    wall_ms = engine.clock.wall_ms()
    now_ms = wall_ms
    if recovery.queue_ms:
        since_ms = recovery.since_ms(wall_ms)
        now_ms = max(recovery.queue_ms, recovery.clock_ms + since_ms)
        doubt = doubt_of(since_ms)
        if doubt is not None:
            if not accept:
                engine.clock_doubt = doubt
                log.warning("clock_doubt", detail=engine.clock_doubt)
                now_ms = recovery.queue_ms
                # What is put on record goes on by the store's own count: the doubt outlives a
                # restart, and ends when the calendar is right again.
                believed_ms = recovery.wall_ms + recovery.queue_ms - recovery.clock_ms
                engine.calendar_base_ms = believed_ms - engine.clock.elapsed_ms()
            elif since_ms < 0:
                now_ms = recovery.queue_ms
    engine.time_base_ms = now_ms - engine.clock.elapsed_ms()


class Upkeep:
    """What keeps a store small and quick to open: checkpoints, compaction, the clock on record."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._disks = journal_disk, checkpoint_disk = recovery.disks
        self._retry_at_ms = 0
        self._checkpointer = Checkpointer(engine, checkpoint_disk, recovery.generation)
        self._checkpointer.is_held = recovery.keeps_checkpoint
        self._compactor = Compactor(engine, journal_disk)

    def run(self) -> None:
        """Do what is due of it."""
        engine = self._engine
        with engine.lock:
            if engine.closed is not None or not engine.owns_directory():
                return
            now_ms = engine.now_ms()
            for shard in engine.catalog.shards.values():
                shard.partition.refresh_factor(now_ms)
            if now_ms - engine.clock_noted_ms >= _CLOCK_EVERY_MS and engine.live:
                engine.note_clock()
            with contextlib.suppress(Overloaded):
                engine.admit(0)
        engine.departures.tell_if_due()
        with engine.in_turn.alone():
            self._keep_small(now_ms)

    def _keep_small(self, now_ms: int) -> None:
        engine = self._engine
        with contextlib.suppress(Overloaded):
            flush_in_parts(engine)
        with engine.lock:
            has_faulty = any(shard.faulty for shard in engine.catalog.shards.values())
        if has_faulty:
            # What is stored of a faulty partition is all there is to mend it from: keep it.
            self._retry_faulty(now_ms)
            return
        engine.adviser.let_run_out()
        if engine.devices is not None:
            engine.keeping.reviewer.run()
        if not self._checkpointer.run_if_due() and self._compactor.waits_for_checkpoint():
            self._checkpointer.run()
        self._compactor.run()

    def _retry_faulty(self, now_ms: int) -> None:
        if now_ms < self._retry_at_ms:
            return
        self._retry_at_ms = now_ms + _RETRY_FAULTY_MS
        retry_faulty(self._engine, self._disks)

    def checkpoint(self, *, closing: bool = False) -> None:
        """Write a checkpoint now."""
        self._checkpointer.run(closing=closing)


def _checkpoint_if_possible(engine: Engine) -> None:
    """Without it the next start reads more of the journal, which has everything."""
    try:
        engine.checkpoint(closing=True)
    except Overloaded as error:
        log.warning("no_checkpoint", detail=error.detail)


def close_engine(engine: Engine) -> None:
    """Make everything durable, leave a checkpoint for a quick start, let go of the directory."""

    def clean() -> None:
        engine.departures.tell()
        if engine.owns_directory() and engine.journal.failed is None:
            # The last numbers of messages, should their records be lost without the checkpoint.
            with contextlib.suppress(Overloaded):
                noting.note_catalog(engine)
            engine.note_clock()
            if not any(shard.faulty for shard in engine.catalog.shards.values()):
                _checkpoint_if_possible(engine)

    engine.close(clean=clean)
