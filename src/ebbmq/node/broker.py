"""The embedded broker: a queue engine in this process, called from any thread."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any, Final, Literal

from ebbmq.errors import LeaseLost, Overloaded
from ebbmq.node import (
    declaring,
    intake,
    leasing,
    looking,
    moving_back,
    peeking,
    publishing,
    rereading,
    settling,
    single,
)
from ebbmq.node.backup import backup
from ebbmq.node.consuming import consume
from ebbmq.node.keeping import evicting
from ebbmq.node.opening import close_engine, open_engine
from ebbmq.node.plan_verbs import PlanVerbs
from ebbmq.node.rule_verbs import RuleVerbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from ebbmq.journal.disk import Disk
    from ebbmq.model import (
        DeviceStatus,
        Evicted,
        Fields,
        Lease,
        Level,
        Message,
        Peeked,
        QueueSpec,
        Receipt,
        Removal,
        TopicSpec,
    )
    from ebbmq.node.clock import Clock
    from ebbmq.node.config import Config
    from ebbmq.node.engine import Engine

#: Levels at which a call for one message takes a shorter way.
_UNSYNCED: Final = ("written", "memory")
#: What durable messages are published at.
_SYNCED: Final = (None, "synced")


class Broker(RuleVerbs, PlanVerbs):
    """Queues in a data directory, used in this process. Thread-safe; close it, or use `with`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def open(  # noqa: PLR0913  # what a store may be opened with
        cls,
        data: str | Path,
        config: Config | dict[str, Any] | str | Path | None = None,
        clock: Clock | None = None,
        *,
        disk: Disk | None = None,
        threaded: bool = True,
        accept_clock: bool = False,
        accept_damage: bool = False,
    ) -> Broker:
        """Open a data directory, making it if need be.

        Args:
            data: the directory.
            config: settings, as a Config, a dict or the path of a TOML file.
            clock: where time comes from; ManualClock in tests.
            disk: where journal and checkpoints are kept instead of in the directory.
            threaded: False commits in the caller's thread, so that a run can be repeated.
            accept_clock: believe the calendar although it jumped since the store was last open.
            accept_damage: give up what is in doubt, and what cannot be read of faulty partitions.

        Raises:
            DirectoryInUse: another process has it open.
            StorageFailed: it cannot be read or written.
            InvalidSpec: the configuration is not valid.
        """
        return cls(
            open_engine(
                data,
                config,
                clock,
                disk=disk,
                threaded=threaded,
                accept_clock=accept_clock,
                accept_damage=accept_damage,
            )
        )

    def close(self) -> None:
        """Make everything durable and let go of the directory; closing twice is fine."""
        close_engine(self.engine)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Declaring

    def declare(self, spec: QueueSpec, *, change: bool = False, fields: Fields = None) -> None:
        """Make a queue; the same specification again changes nothing.

        Args:
            spec: what it promises; a dead queue that is not there is made, too.
            change: have a queue that is there follow it.
            fields: those that count where it is there; all unless given.

        Raises:
            QueueDiffers: one of that name is declared otherwise; the detail names the fields.
            UnknownQueue: `fields` of a queue that is not there were to change.
        """
        position = declaring.declare(self.engine, spec, change=change, fields=fields)
        self.engine.journal.wait("synced", position)

    def delete(self, queue: str) -> None:
        """Remove a queue and everything in it, on the record."""
        self.engine.journal.wait("synced", declaring.delete(self.engine, queue))

    def declare_topic(
        self, spec: TopicSpec, *, change: bool = False, fields: Fields = None
    ) -> None:
        """Make a topic, or change one, as `declare` does a queue; subscriptions stay."""
        position = declaring.declare_topic(self.engine, spec, change=change, fields=fields)
        self.engine.journal.wait("synced", position)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its subscriptions; what queues got from it stays in them."""
        self.engine.journal.wait("synced", declaring.delete_topic(self.engine, topic))

    def subscribe(self, topic: str, queue: str) -> None:
        """Have a queue receive what is published to a topic from now on."""
        self.engine.journal.wait("synced", declaring.subscribe(self.engine, topic, queue))

    def unsubscribe(self, topic: str, queue: str) -> None:
        """Have a queue no longer receive what is published to a topic."""
        position = declaring.subscribe(self.engine, topic, queue, subscribed=False)
        self.engine.journal.wait("synced", position)

    def pause(self, queue: str) -> None:
        """Grant no more leases of a queue; publishing and settling go on."""
        self.engine.journal.wait("synced", declaring.set_paused(self.engine, queue, paused=True))

    def resume(self, queue: str) -> None:
        """Grant leases of a paused queue again."""
        self.engine.journal.wait("synced", declaring.set_paused(self.engine, queue, paused=False))

    def purge(self, queue: str) -> int:
        """Remove every message of a queue that is not leased, on the record; returns how many."""
        removed, position = declaring.purge(self.engine, queue)
        self.engine.journal.wait("synced", position)
        return removed

    def set_decay_factor(self, queue: str, factor: float, until_ms: int, run: str = "") -> None:
        """Multiply the rates of messages published until an instant (a fleet-wide advice).

        Args:
            queue: its name.
            factor: what rates are multiplied by; 1 for nothing.
            until_ms: the instant, of queue time.
            run: whose advice it is.

        Raises:
            InvalidSpec: a value cannot be, or `until_ms` is past.
            UnknownQueue: there is no such queue.
        """
        position = declaring.set_factor(self.engine, queue, factor, until_ms, run)
        self.engine.journal.wait("synced", position)

    # Publishing

    def publish(
        self,
        queue: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
    ) -> list[Receipt]:
        """Publish messages and return once they hold at `confirm`.

        Args:
            queue: the queue's name.
            messages: one batch; at most limits.BATCH_MESSAGES_MAX.
            confirm: `memory`, `written` (survives kill -9) or `synced` (survives a power cut;
                the default for durable messages).
            timeout_ms: how long to wait for the confirmation; None waits as long as it takes.

        Raises:
            UnknownQueue, InvalidMessage, QueueFull, Overloaded: nothing of the batch was stored.
            Overloaded: code `confirm_timeout`: stored or not is not known; publish again with the
                same message ids to be sure. Or `copy_timeout`: stored, but short of copies.
            StorageFailed: the journal has failed; open the broker again.
        """
        if timeout_ms is not None:
            settling.check_duration("timeout_ms", timeout_ms, 0)
        if confirm in _UNSYNCED:
            receipts = single.publish(self.engine, queue, messages, confirm)
            if receipts is not None:
                return receipts
        elif timeout_ms is None and confirm in _SYNCED:
            receipts = self.engine.gathering.publish_one(queue, messages)
            if receipts is not None:
                return receipts
        checked = intake.as_messages(messages)
        level = intake.level_of(confirm, checked)
        batch = intake.pack(checked, qos=level)
        if level == "synced" and timeout_ms is None:
            return self.engine.gathering.publish(queue, batch)
        receipts, position = publishing.store(self.engine, queue, batch, level)
        self._confirm(level, position, timeout_ms)
        return receipts

    def publish_topic(
        self,
        topic: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, list[Receipt]]:
        """Publish messages to every queue subscribed to a topic: all of them or none."""
        if timeout_ms is not None:
            settling.check_duration("timeout_ms", timeout_ms, 0)
        receipts, level, position = publishing.publish_topic(self.engine, topic, messages, confirm)
        self._confirm(level, position, timeout_ms)
        return receipts

    def _confirm(self, level: Level, position: int, timeout_ms: int | None) -> None:
        """Wait for the level of a publish, and for the copies its queue needs."""
        if level == "synced":
            self._wait(position, timeout_ms)
        if level != "memory":
            self.engine.keeping.confirming.wait(position, timeout_ms)

    def _wait(self, position: int, timeout_ms: int | None) -> None:
        if timeout_ms is None:
            self.engine.journal.wait("synced", position)
            return
        done = _thread.allocate_lock()
        done.acquire()
        errors: list[Any] = []

        def confirmed(error: object) -> None:
            errors.append(error)
            done.release()

        self.engine.journal.when("synced", position, confirmed)
        if not done.acquire(timeout=timeout_ms / 1_000):
            raise Overloaded(
                f"the publish was not confirmed within {timeout_ms} ms",
                "it may still be stored: publish again with the same message ids",
                code="confirm_timeout",
            )
        if errors[0] is not None:
            raise errors[0]

    # Consuming

    def lease(
        self,
        queue: str,
        count: int = 1,
        wait_ms: int = 0,
        lease_timeout_ms: int | None = None,
        name: str | None = None,
    ) -> list[Lease]:
        """Lease up to `count` messages, waiting up to `wait_ms` for the first.

        Args:
            queue: the queue's name.
            count: most leases to return.
            wait_ms: 0 returns at once.
            lease_timeout_ms: how long the leases last; None takes the queue's.
            name: a name under which the same leases can be read again while they are held.
        """
        if type(count) is not int or wait_ms != 0 or lease_timeout_ms is not None or count != 1:
            leasing.check_lease(count, wait_ms, lease_timeout_ms)
        if name is not None:
            leasing.check_lease_name(name)
        elif count == 1:
            one = single.lease(self.engine, queue, lease_timeout_ms)
            if one is not None:
                return one
        engine = self.engine
        with engine.lock:
            engine.check_open()
            found = engine.catalog.queue(queue)
            granted = leasing.lease_now(engine, found, count, lease_timeout_ms, name)
            if not granted and wait_ms:
                granted = leasing.wait_for(engine, found, count, wait_ms, lease_timeout_ms, name)
            taken = leasing.take_bodies(engine, granted)
        return leasing.deliver(engine, granted, taken)

    def read_lease(
        self, queue: str, name: str, first: int = 0, last: int | None = None
    ) -> list[Lease]:
        """Read leases again that are held under a name; nothing is leased by it.

        Args:
            queue: the queue's name.
            name: the name given to `lease`.
            first: the number of the first lease to return, from 0; settled ones keep theirs.
            last: the number after the last to return; None returns all that follow.
        """
        leasing.check_lease_name(name)
        with self.engine.lock:
            granted = rereading.read_name(self.engine, queue, name, first, last).granted
            taken = leasing.take_bodies(self.engine, granted)
        return leasing.deliver(self.engine, granted, taken)

    def ack(self, queue: str, tokens: Iterable[str], confirm: Level = "written") -> None:
        """Remove messages whose leases these tokens hold.

        Raises:
            LeaseLost: with the tokens that hold no lease; the others were acked.
        """
        if confirm == "written" and type(tokens) is list and len(tokens) == 1:
            token = tokens[0]
            if type(token) is str:
                if not single.ack(self.engine, queue, token):
                    raise LeaseLost(tokens)
                return
        self._settle(queue, tokens, confirm, settling.ack)

    def retry(self, queue: str, tokens: Iterable[str], *, delay_ms: int | None = None) -> None:
        """Count a failure against messages and give them back after a delay (default: backoff).

        Raises:
            LeaseLost: with the tokens that hold no lease; the others were given back.
        """
        if delay_ms is not None:
            settling.check_duration("delay_ms", delay_ms, 0)
        self._settle(queue, tokens, "written", settling.retry(delay_ms))

    def release(self, queue: str, tokens: Iterable[str]) -> None:
        """Give messages back unharmed: no failure is counted and they keep their place.

        Raises:
            LeaseLost: with the tokens that hold no lease; the others were given back.
        """
        self._settle(queue, tokens, "written", settling.release)

    def extend(self, queue: str, tokens: Iterable[str], timeout_ms: int) -> None:
        """Have leases end `timeout_ms` from now.

        Raises:
            LeaseLost: with the tokens that hold no lease; the others were extended.
        """
        settling.check_duration("timeout_ms", timeout_ms, 1)
        self._settle(queue, tokens, "written", settling.extend(timeout_ms), settling.EXTENDED_BYTES)

    def _settle(
        self,
        queue: str,
        tokens: Iterable[str],
        confirm: str,
        apply: settling.Apply,
        fact_bytes: int = 0,
    ) -> None:
        settling.check_level(confirm)
        checked = settling.as_tokens(tokens)
        refused, position = settling.settle(self.engine, queue, checked, confirm, apply, fact_bytes)
        if confirm == "synced":
            self.engine.journal.wait("synced", position)
        if refused:
            raise LeaseLost(refused)

    def consume(
        self,
        queue: str,
        *,
        batch: int = 1,
        wait_ms: int = 1_000,
        lease_timeout_ms: int | None = None,
        stop_when_empty: bool = False,
    ) -> Iterator[Lease]:
        """Yield messages one by one, extending their leases while you work.

        A message is acked when you come back for the next one. Leaving the loop in any other way,
        by an exception or by `break`, gives the message at hand back as a failure, unless you
        settled it yourself; what was leased ahead is released. The loop goes on when the queue is
        empty, waiting at least 100 ms at a time, unless it is to `stop_when_empty`.
        """
        return consume(
            self,
            queue,
            batch=batch,
            wait_ms=wait_ms,
            lease_timeout_ms=lease_timeout_ms,
            stop_when_empty=stop_when_empty,
        )

    # Looking

    def peek(
        self,
        queue: str,
        count: int = 10,
        *,
        state: Literal["ready", "leased", "scheduled", "replicating", "dying"] = "ready",
        where: Callable[[Peeked], bool] | None = None,
        counted: bool = False,
    ) -> list[Peeked]:
        """Look at messages without changing anything; ready ones in delivery order.

        With `counted` a look is an access, which the decay score of the queue may count.
        """
        return peeking.peek(self.engine, queue, count, state, where, counted=counted)

    def redrive(
        self,
        dead_queue: str,
        *,
        to: str | None = None,
        rate: float | None = None,
        where: Callable[[Peeked], bool] | None = None,
    ) -> int:
        """Move ready messages of a dead queue back to where they came from, or to `to`.

        Those that know no way back stay; it is an error only if there are no others.
        """
        return moving_back.redrive(self.engine, dead_queue, to=to, rate=rate, where=where)

    def stats(self, queue: str) -> dict[str, Any]:
        """Depth, ages, bytes, residency, rates and totals of a queue."""
        return looking.stats(self.engine, queue)

    def queues(self) -> list[QueueSpec]:
        """Every declared queue."""
        return looking.queues(self.engine)

    def topics(self) -> list[dict[str, Any]]:
        """Every declared topic with the queues subscribed to it."""
        return looking.topics(self.engine)

    def removals(
        self,
        queue: str,
        *,
        reason: str | None = None,
        since_ms: int | None = None,
        after: str | None = None,
        count: int | None = None,
    ) -> list[Removal]:
        """The record of messages that left a queue other than by ack, oldest first.

        Args:
            queue: the queue's name.
            reason: only those that left for this reason.
            since_ms: only those that left at this instant or later.
            after: only those that follow the removal of the message with this id.
            count: at most so many.
        """
        return looking.removals(
            self.engine, queue, reason=reason, since_ms=since_ms, after=after, count=count
        )

    def why(self, message_id: str) -> dict[str, Any]:
        """Where a message is, or why it left."""
        return looking.why(self.engine, message_id)

    def devices(self) -> list[DeviceStatus]:
        """Where copies of bodies are kept, and how each device is doing; the node's log first."""
        return looking.devices(self.engine)

    def probe_device(self, name: str) -> DeviceStatus:
        """Try a device now; a success counts also while its circuit is open.

        Raises:
            UnknownDevice: there is none of that name.
        """
        return looking.probe_device(self.engine, name)

    def evict_device(self, name: str, *, force: bool = False, drain: bool = True) -> Evicted:
        """Give up a device: its copies count no more and others are made.

        Messages of which a lost device had the only copy are gone, on the record. It is taken back
        by itself when it answers again, and what it should not have any more is deleted there.

        Args:
            name: the device; it need not be configured any more.
            force: give up a device that answers, too, and until it is admitted. Everything is
                copied first that only it has, which takes its time: `devices` tells how far it is.
            drain: False: nothing is copied first; what only it has is gone, on the record.

        Raises:
            UnknownDevice: there is none of that name.
            DeviceInUse: it answers, see `force`; or, code `not_drained`, no other device takes
                what only it has: it is used as before.
        """
        return evicting.evict(self.engine, name, force=force, drain=drain)

    def admit_device(self, name: str) -> DeviceStatus:
        """Take back a device that was evicted, or end its draining.

        It is compared first: what it has and should not have is deleted there.

        Raises:
            UnknownDevice: there is none of that name.
        """
        return evicting.admit(self.engine, name)

    def journal(self) -> dict[str, int]:
        """How often the journal was flushed and how much was written since the broker was opened.

        Also how large it is, and how much room its disk has.
        """
        return looking.journal(self.engine)

    def feed(self) -> dict[str, int] | None:
        """What the feed did since the broker was opened; None where there is none."""
        return looking.feed(self.engine)

    def health(self) -> dict[str, Any]:
        """Whether the broker is ready, and why not."""
        return looking.health(self.engine)

    def backup(self, target: str | Path, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy the store to an empty directory while it is in use; returns bytes copied."""
        return backup(self.engine, target, progress)
