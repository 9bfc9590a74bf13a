"""The same broker, awaitable: verbs run in the loop's thread, waiting is the loop's."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ebbmq import limits
from ebbmq.errors import EbbError, LeaseLost, Overloaded
from ebbmq.node import (
    fetching,
    intake,
    leasing,
    moving_back,
    peeking,
    publishing,
    rereading,
    settling,
)
from ebbmq.node.async_plan_verbs import AsyncPlanVerbs
from ebbmq.node.async_rule_verbs import AsyncRuleVerbs
from ebbmq.node.broker import Broker
from ebbmq.node.outflow import Delivery, View

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from ebbmq.core.grants import Grants
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
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.clock import Clock
    from ebbmq.node.config import Config
    from ebbmq.node.engine import Engine
    from ebbmq.node.leasing import Consumer
    from ebbmq.node.peeking import Between

T = TypeVar("T")


class _Asked(NamedTuple):
    """A publish call that waits for its turn and then for its confirmation."""

    messages: Sequence[Message]
    future: asyncio.Future[list[Receipt]]


class _Intake:
    """Takes everything that was published in one turn of the loop into the engine at once.

    Callers that publish at the same time share one append and one flush; each gets its own
    receipts, or its own error.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: dict[tuple[str, Level, str | None], list[_Asked]] = {}

    def add(
        self, queue: str, level: Level, messages: Sequence[Message], client: str | None
    ) -> asyncio.Future[list[Receipt]]:
        """Publish in this turn of the loop; the future holds the receipts once they hold."""
        future: asyncio.Future[list[Receipt]] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._take_in)
        self._waiting.setdefault((queue, level, client), []).append(_Asked(messages, future))
        return future

    def _take_in(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (queue, level, client), asked in waiting.items():
            if sum(len(one.messages) for one in asked) > limits.BATCH_MESSAGES_MAX:
                for one in asked:
                    self._publish(queue, level, [one], client)
            else:
                self._publish(queue, level, asked, client)

    def _publish(self, queue: str, level: Level, asked: list[_Asked], client: str | None) -> None:
        messages = [message for one in asked for message in one.messages]
        try:
            receipts, _, position = publishing.publish(self._engine, queue, messages, level, client)
        except EbbError as error:
            if len(asked) > 1:
                # One of them may be at fault, or all together too many: let each have its own say.
                for one in asked:
                    self._publish(queue, level, [one], client)
            elif not asked[0].future.done():
                asked[0].future.set_exception(error)
            return
        keeping = self._engine.keeping

        def confirmed(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(self._confirm, asked, receipts, error)

        def stored(error: Exception | None) -> None:
            if error is not None or not keeping.confirming.when_copied(position, confirmed):
                confirmed(error)

        if level == "synced":
            self._engine.journal.when("synced", position, stored)
        elif level == "memory" or not keeping.confirming.when_copied(position, confirmed):
            self._confirm(asked, receipts, None)

    @staticmethod
    def _confirm(asked: list[_Asked], receipts: list[Receipt], error: Exception | None) -> None:
        at = 0
        for messages, future in asked:
            mine = receipts[at : at + len(messages)]
            at += len(messages)
            if future.done():
                continue
            if error is None:
                future.set_result(mine)
            else:
                future.set_exception(error)


class AsyncBroker(AsyncRuleVerbs, AsyncPlanVerbs):
    """Queues in a data directory, used from one event loop. Close it, or use `async with`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._loop = asyncio.get_running_loop()
        self._intake = _Intake(self._engine, self._loop)

    @classmethod
    async def open(
        cls,
        data: str | Path,
        config: Config | dict[str, Any] | str | Path | None = None,
        clock: Clock | None = None,
        *,
        accept_clock: bool = False,
        accept_damage: bool = False,
    ) -> AsyncBroker:
        """Open a data directory; see Broker.open."""
        opened = partial(
            Broker.open,
            data,
            config,
            clock,
            accept_clock=accept_clock,
            accept_damage=accept_damage,
        )
        return cls(await asyncio.to_thread(opened))

    @property
    def engine(self) -> Engine:
        """What is under it; its lock must not be held across an await."""
        return self._engine

    async def close(self) -> None:
        """Make everything durable and let go of the directory."""
        await asyncio.to_thread(self._broker.close)

    async def __aenter__(self) -> AsyncBroker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _synced(self, position: int, timeout_ms: int | None = None) -> None:
        if position <= self._engine.journal.synced_position:
            return
        future: asyncio.Future[None] = self._loop.create_future()

        def confirmed(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(_resolve, future, error)

        self._engine.journal.when("synced", position, confirmed)
        await _within(future, timeout_ms)

    async def _copied(self, position: int, timeout_ms: int | None) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def confirmed(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(_resolve, future, error)

        if self._engine.keeping.confirming.when_copied(position, confirmed):
            await _within(future, timeout_ms)

    async def _call(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return await asyncio.to_thread(partial(verb, *args, **kwargs))

    async def declare(
        self, spec: QueueSpec, *, change: bool = False, fields: Fields = None
    ) -> None:
        """See Broker.declare."""
        await self._call(self._broker.declare, spec, change=change, fields=fields)

    async def delete(self, queue: str) -> None:
        """See Broker.delete."""
        await self._call(self._broker.delete, queue)

    async def declare_topic(
        self, spec: TopicSpec, *, change: bool = False, fields: Fields = None
    ) -> None:
        """See Broker.declare_topic."""
        await self._call(self._broker.declare_topic, spec, change=change, fields=fields)

    async def delete_topic(self, topic: str) -> None:
        """See Broker.delete_topic."""
        await self._call(self._broker.delete_topic, topic)

    async def subscribe(self, topic: str, queue: str) -> None:
        """See Broker.subscribe."""
        await self._call(self._broker.subscribe, topic, queue)

    async def unsubscribe(self, topic: str, queue: str) -> None:
        """See Broker.unsubscribe."""
        await self._call(self._broker.unsubscribe, topic, queue)

    async def pause(self, queue: str) -> None:
        """See Broker.pause."""
        await self._call(self._broker.pause, queue)

    async def resume(self, queue: str) -> None:
        """See Broker.resume."""
        await self._call(self._broker.resume, queue)

    async def purge(self, queue: str) -> int:
        """See Broker.purge."""
        return await self._call(self._broker.purge, queue)

    async def set_decay_factor(
        self, queue: str, factor: float, until_ms: int, run: str = ""
    ) -> None:
        """See Broker.set_decay_factor."""
        await self._call(self._broker.set_decay_factor, queue, factor, until_ms, run)

    async def publish(
        self,
        queue: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
        client: str | None = None,
    ) -> list[Receipt]:
        """See Broker.publish; calls made in one turn of the loop are stored together.

        Args:
            queue: see Broker.publish.
            messages: see Broker.publish.
            confirm: see Broker.publish.
            timeout_ms: see Broker.publish.
            client: who publishes, as rules see it; None takes `client` of the configuration.
        """
        if timeout_ms is not None:
            settling.check_duration("timeout_ms", timeout_ms, 0)
        with self._engine.lock:
            self._engine.catalog.queue(queue)
        checked = intake.as_messages(messages)
        level = intake.level_of(confirm, checked)
        return await _within(self._intake.add(queue, level, checked, client), timeout_ms)

    async def publish_topic(
        self,
        topic: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
        client: str | None = None,
    ) -> dict[str, list[Receipt]]:
        """See Broker.publish_topic; `client` as with publish."""
        if timeout_ms is not None:
            settling.check_duration("timeout_ms", timeout_ms, 0)
        receipts, level, position = publishing.publish_topic(
            self._engine, topic, messages, confirm, client
        )
        if level == "synced":
            await self._synced(position, timeout_ms)
        if level != "memory":
            await self._copied(position, timeout_ms)
        return receipts

    async def lease(
        self,
        queue: str,
        count: int = 1,
        wait_ms: int = 0,
        lease_timeout_ms: int | None = None,
        name: str | None = None,
        bytes_max: int | None = None,
    ) -> list[Lease]:
        """See Broker.lease; a cancelled call leases nothing.

        Args:
            queue: see Broker.lease.
            count: see Broker.lease.
            wait_ms: see Broker.lease.
            lease_timeout_ms: see Broker.lease.
            name: see Broker.lease.
            bytes_max: most bytes of bodies to return together, but always one message.
        """
        taken = await self.take(queue, count, wait_ms, lease_timeout_ms, name, bytes_max)
        return [lease for one in taken for lease in one.leases()]

    async def take(  # noqa: PLR0913  # who leases what, how much of it, and for how long
        self,
        queue: str,
        count: int,
        wait_ms: int,
        lease_timeout_ms: int | None,
        name: str | None,
        bytes_max: int | None,
        *,
        consumer: Consumer = leasing.OWN,
        bodies: bool = True,
    ) -> list[Delivery]:
        """`lease` for who makes something else of the leases than objects, and for a client.

        Without `bodies`, which stay where they are, any number of bytes can be leased under a name.
        """
        leasing.check_lease(count, wait_ms, lease_timeout_ms)
        if name is not None:
            leasing.check_lease_name(name)
        until = self._loop.time() + wait_ms / 1_000
        while True:
            with self._engine.lock:
                self._engine.check_open()
                found = self._engine.catalog.queue(queue)
                granted = leasing.lease_now(
                    self._engine, found, count, lease_timeout_ms, name, bytes_max, consumer=consumer
                )
                if not bodies and granted:
                    return self._without_bodies(granted)
                taken = leasing.take_bodies(self._engine, granted)
                left = until - self._loop.time()
                if granted or left <= 0:
                    break
                arrived = self._loop.create_future()
                wake = partial(self._wake, arrived)
                found.waiters.append(wake)
            await self._wait(found, arrived, wake, left)
        return await self._deliver(granted, taken)

    def _without_bodies(self, granted: list[tuple[Shard, Grants]]) -> list[Delivery]:
        return [
            Delivery(View.for_tokens(shard.partition, grants), grants, [])
            for shard, grants in granted
        ]

    async def _wait(
        self, queue: Queue, arrived: asyncio.Future[None], wake: Callable[[], None], seconds: float
    ) -> None:
        """Wait for a message; whoever gives up passes the call that came meanwhile on."""
        given_up = True
        try:
            await asyncio.wait([arrived], timeout=seconds)
            given_up = False
        finally:
            with self._engine.lock:
                if wake in queue.waiters:
                    queue.waiters.remove(wake)
                elif given_up:
                    self._engine.announce(queue, 1)

    def _wake(self, arrived: asyncio.Future[None]) -> None:
        self._loop.call_soon_threadsafe(_resolve, arrived, None)

    async def _deliver(
        self, granted: list[tuple[Shard, Grants]], taken: list[Delivery]
    ) -> list[Delivery]:
        """Leases with their bodies, read by another thread where a device is to be waited for."""
        if fetching.fill_at_once(self._engine, granted, taken):
            return leasing.fetch(self._engine, granted, taken)
        try:
            return await self._call(leasing.fetch, self._engine, granted, taken)
        except asyncio.CancelledError:
            with self._engine.lock:
                for shard, grants in granted:
                    leasing.give_back(self._engine, shard, grants)
            raise

    async def read_lease(
        self, queue: str, name: str, first: int = 0, last: int | None = None
    ) -> list[Lease]:
        """See Broker.read_lease."""
        read, _ = await self.take_named(queue, name, first, last, None)
        return [lease for one in read for lease in one.leases()]

    async def take_named(
        self,
        queue: str,
        name: str,
        first: int,
        last: int | None,
        bytes_max: int | None,
        *,
        consumer: Consumer = leasing.OWN,
    ) -> tuple[list[Delivery], int | None]:
        """`read_lease` in parts: as many as fit, and the number of the first that did not."""
        leasing.check_lease_name(name)
        with self._engine.lock:
            held = rereading.read_name(self._engine, queue, name, first, last, bytes_max)
            granted = leasing.permitted(self._engine, held.granted, consumer)
            taken = leasing.take_bodies(self._engine, granted)
        return await self._reread(granted, taken), held.following

    async def take_held(
        self, queue: str, tokens: Sequence[str], bytes_max: int | None
    ) -> tuple[list[Delivery], int | None]:
        """Leases by their tokens: as many as fit, and the number of the first that did not."""
        with self._engine.lock:
            held = rereading.read_tokens(self._engine, queue, tokens, bytes_max)
            taken = leasing.take_bodies(self._engine, held.granted)
        return await self._reread(held.granted, taken), held.following

    async def _reread(
        self, granted: list[tuple[Shard, Grants]], taken: list[Delivery]
    ) -> list[Delivery]:
        if fetching.fill_at_once(self._engine, granted, taken):
            return leasing.fetch(self._engine, granted, taken)
        return await self._call(leasing.fetch, self._engine, granted, taken)

    async def ack(self, queue: str, tokens: Iterable[str], confirm: Level = "written") -> None:
        """See Broker.ack."""
        await self._settle(queue, tokens, confirm, settling.ack)

    async def retry(
        self, queue: str, tokens: Iterable[str], *, delay_ms: int | None = None
    ) -> None:
        """See Broker.retry."""
        if delay_ms is not None:
            settling.check_duration("delay_ms", delay_ms, 0)
        await self._settle(queue, tokens, "written", settling.retry(delay_ms))

    async def release(self, queue: str, tokens: Iterable[str]) -> None:
        """See Broker.release."""
        await self._settle(queue, tokens, "written", settling.release)

    async def extend(self, queue: str, tokens: Iterable[str], timeout_ms: int) -> None:
        """See Broker.extend."""
        settling.check_duration("timeout_ms", timeout_ms, 1)
        await self._settle(
            queue, tokens, "written", settling.extend(timeout_ms), settling.EXTENDED_BYTES
        )

    async def _settle(
        self,
        queue: str,
        tokens: Iterable[str],
        confirm: str,
        apply: settling.Apply,
        fact_bytes: int = 0,
    ) -> None:
        settling.check_level(confirm)
        checked = settling.as_tokens(tokens)
        refused, position = settling.settle(
            self._engine, queue, checked, confirm, apply, fact_bytes
        )
        if confirm == "synced":
            await self._synced(position)
        if refused:
            raise LeaseLost(refused)

    async def consume(
        self,
        queue: str,
        *,
        batch: int = 1,
        wait_ms: int = 1_000,
        lease_timeout_ms: int | None = None,
        stop_when_empty: bool = False,
    ) -> AsyncIterator[Lease]:
        """See Broker.consume."""
        leasing.check_lease(batch, wait_ms, lease_timeout_ms)
        wait_ms = wait_ms if stop_when_empty else max(wait_ms, limits.CONSUME_WAIT_MS_MIN)
        with self._engine.lock:
            self._engine.check_open()
            spec = self._engine.catalog.queue(queue).spec
        timeout_ms = lease_timeout_ms or spec.lease_timeout_ms
        held: set[str] = set()
        extender = self._loop.create_task(self._keep_extending(queue, held, timeout_ms))
        ahead: list[Lease] = []
        try:
            while True:
                ahead = await self.lease(queue, batch, wait_ms, lease_timeout_ms)
                if not ahead and stop_when_empty:
                    return
                held.update(lease.token for lease in ahead)
                while ahead:
                    lease = ahead.pop(0)
                    try:
                        yield lease
                    except BaseException:
                        await self._finish(queue, lease, held, failed=True)
                        raise
                    await self._finish(queue, lease, held, failed=False)
        finally:
            extender.cancel()
            if ahead:
                await self._give_back(queue, ahead)

    async def _finish(self, queue: str, lease: Lease, held: set[str], *, failed: bool) -> None:
        held.discard(lease.token)
        try:
            if failed:
                await self.retry(queue, [lease.token])
            else:
                await self.ack(queue, [lease.token])
        except LeaseLost:
            return

    async def _give_back(self, queue: str, leases: list[Lease]) -> None:
        try:
            await self.release(queue, [lease.token for lease in leases])
        except LeaseLost:
            return

    async def _keep_extending(self, queue: str, held: set[str], timeout_ms: int) -> None:
        while True:
            await asyncio.sleep(timeout_ms / 3_000)
            if held:
                try:
                    await self.extend(queue, list(held), timeout_ms)
                except LeaseLost as error:
                    held.difference_update(error.tokens)

    async def peek(  # noqa: PLR0913  # what a caller may say about what to show
        self,
        queue: str,
        count: int = 10,
        *,
        state: Literal["ready", "leased", "scheduled", "replicating", "dying"] = "ready",
        where: Callable[[Peeked], bool] | None = None,
        counted: bool = False,
        bytes_max: int | None = None,
        consumer: Consumer = leasing.OWN,
        between: Between | None = None,
    ) -> list[Peeked]:
        """See Broker.peek; bytes_max bounds the bodies returned together, but for the first."""
        return await self._call(
            peeking.peek,
            self._engine,
            queue,
            count,
            state,
            where,
            bytes_max,
            counted=counted,
            consumer=consumer,
            between=between,
        )

    async def redrive(
        self,
        dead_queue: str,
        *,
        to: str | None = None,
        rate: float | None = None,
        where: Callable[[Peeked], bool] | None = None,
    ) -> int:
        """See Broker.redrive; a cancelled call moves no more messages."""
        stop = threading.Event()
        try:
            return await self._call(
                moving_back.redrive,
                self._engine,
                dead_queue,
                to=to,
                rate=rate,
                where=where,
                stop=stop,
            )
        finally:
            stop.set()

    async def stats(self, queue: str) -> dict[str, Any]:
        """See Broker.stats."""
        return self._broker.stats(queue)

    async def queues(self) -> list[QueueSpec]:
        """See Broker.queues."""
        return self._broker.queues()

    async def topics(self) -> list[dict[str, Any]]:
        """See Broker.topics."""
        return self._broker.topics()

    async def removals(
        self,
        queue: str,
        *,
        reason: str | None = None,
        since_ms: int | None = None,
        after: str | None = None,
        count: int | None = None,
    ) -> list[Removal]:
        """See Broker.removals."""
        return await self._call(
            self._broker.removals,
            queue,
            reason=reason,
            since_ms=since_ms,
            after=after,
            count=count,
        )

    async def why(self, message_id: str) -> dict[str, Any]:
        """See Broker.why."""
        return await self._call(self._broker.why, message_id)

    async def devices(self) -> list[DeviceStatus]:
        """See Broker.devices."""
        return await self._call(self._broker.devices)

    async def probe_device(self, name: str) -> DeviceStatus:
        """See Broker.probe_device."""
        return await self._call(self._broker.probe_device, name)

    async def evict_device(self, name: str, *, force: bool = False, drain: bool = True) -> Evicted:
        """See Broker.evict_device."""
        return await self._call(self._broker.evict_device, name, force=force, drain=drain)

    async def admit_device(self, name: str) -> DeviceStatus:
        """See Broker.admit_device."""
        return await self._call(self._broker.admit_device, name)

    async def journal(self) -> dict[str, int]:
        """See Broker.journal."""
        return self._broker.journal()

    async def feed(self) -> dict[str, int] | None:
        """See Broker.feed."""
        return self._broker.feed()

    async def health(self) -> dict[str, Any]:
        """See Broker.health."""
        return self._broker.health()

    async def backup(
        self, target: str | Path, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """See Broker.backup."""
        return await self._call(self._broker.backup, target, progress)


def _resolve(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def _within(future: asyncio.Future[T], timeout_ms: int | None) -> T:
    if timeout_ms is None:
        return await future
    try:
        return await asyncio.wait_for(future, timeout_ms / 1_000)
    except TimeoutError as error:
        raise Overloaded(
            f"the publish was not confirmed within {timeout_ms} ms",
            "it may still be stored: publish again with the same message ids",
            code="confirm_timeout",
        ) from error
