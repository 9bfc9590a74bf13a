"""The broker's verbs over HTTP, for threads: the same arguments, the same results and errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from typing_extensions import override

from ebbmq.client import arguments, calls, scripts
from ebbmq.client.address import address
from ebbmq.client.connection import Pool
from ebbmq.client.consuming import consume
from ebbmq.client.exchange import NoAnswer, NotSent
from ebbmq.client.plan_verbs import PlanVerbs
from ebbmq.client.rule_verbs import RuleVerbs
from ebbmq.client.scripts import Ids
from ebbmq.client.tries import Tries
from ebbmq.errors import ClosedBroker, EbbError
from ebbmq.model import QueueSpec, TopicSpec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from ebbmq.client.calls import Call, Reply
    from ebbmq.client.scripts import Script
    from ebbmq.model import (
        DeviceStatus,
        Evicted,
        Fields,
        Lease,
        Level,
        Message,
        Peeked,
        Receipt,
        Removal,
    )

T = TypeVar("T")


class Client(RuleVerbs, PlanVerbs):
    """Queues of a server. Thread-safe; close it, or use `with`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca_file: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """Connects when it is first used.

        Args:
            url: where the server is, such as http://127.0.0.1:8080.
            token: what `ebbmq users add` printed, if the server has users.
            ca_file: the PEM certificate an https server's was signed with, if no public one.
            tls: TLS settings of your own instead.
            timeout_ms: how long a call may take with all its tries, beside what it is asked to
                wait for.

        Raises:
            InvalidSpec: the URL, the token, the certificate or the time cannot be used.
        """
        self._address = address(url, token, ca_file, tls)
        self._pool = Pool(self._address)
        self._timeout_ms = arguments.checked_timeout(timeout_ms)
        self._ids = Ids()
        self._was_answered = False
        self._closed = False

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._address.url

    def close(self) -> None:
        """Close the connections; leases stay until they are settled or end."""
        self._closed = True
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @override
    def _play(self, script: Script[T]) -> T:
        try:
            call = next(script)
            while True:
                try:
                    reply = self._run(call)
                except EbbError as error:
                    call = script.throw(error)
                else:
                    call = script.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value

    def _run(self, call: Call[Any]) -> Reply:
        tries = Tries(
            call,
            self._address,
            now_s=time.monotonic(),
            timeout_ms=self._timeout_ms,
            was_answered=self._was_answered,
        )
        while True:
            if self._closed:
                raise ClosedBroker("the client was closed", "make another one")
            try:
                answer = self._pool.exchange(call, tries.until_s)
            except (NotSent, NoAnswer) as failure:
                time.sleep(tries.after_failure(failure, time.monotonic()))
                continue
            self._was_answered = True
            pause_s = tries.after_answer(answer, time.monotonic())
            if pause_s is None:
                return tries.reply(answer)
            time.sleep(pause_s)

    def ask(self, call: Call[T]) -> T:
        """One request of your own making, tried again as any other is."""
        return self._play(scripts.one(call))

    def declare(self, spec: QueueSpec, *, change: bool = False, fields: Fields = None) -> None:
        """See Broker.declare."""
        self._play(scripts.declare(spec, QueueSpec, fields, change=change))

    def delete(self, queue: str) -> None:
        """See Broker.delete."""
        self._play(scripts.one(calls.delete(queue)))

    def declare_topic(
        self, spec: TopicSpec, *, change: bool = False, fields: Fields = None
    ) -> None:
        """See Broker.declare_topic."""
        self._play(scripts.declare(spec, TopicSpec, fields, change=change))

    def delete_topic(self, topic: str) -> None:
        """See Broker.delete_topic."""
        self._play(scripts.one(calls.delete_topic(topic)))

    def subscribe(self, topic: str, queue: str) -> None:
        """See Broker.subscribe."""
        self._play(scripts.one(calls.subscribe(topic, queue, subscribed=True)))

    def unsubscribe(self, topic: str, queue: str) -> None:
        """See Broker.unsubscribe."""
        self._play(scripts.one(calls.subscribe(topic, queue, subscribed=False)))

    def pause(self, queue: str) -> None:
        """See Broker.pause."""
        self._play(scripts.one(calls.pause(queue)))

    def resume(self, queue: str) -> None:
        """See Broker.resume."""
        self._play(scripts.one(calls.resume(queue)))

    def purge(self, queue: str) -> int:
        """See Broker.purge."""
        return self._play(scripts.one(calls.purge(queue)))

    def set_decay_factor(self, queue: str, factor: float, until_ms: int, run: str = "") -> None:
        """See Broker.set_decay_factor."""
        self._play(scripts.one(calls.set_decay_factor(queue, factor, until_ms, run)))

    def publish(
        self,
        queue: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
    ) -> list[Receipt]:
        """See Broker.publish; messages without an id get one, so that no try stores them twice.

        Raises:
            Unreachable: nobody answered in time; it may be stored.
        """
        return self._play(scripts.publish(self._ids, queue, messages, confirm, timeout_ms))

    def publish_topic(
        self,
        topic: str,
        messages: Message | Sequence[Message],
        confirm: Level | None = None,
        timeout_ms: int | None = None,
    ) -> dict[str, list[Receipt]]:
        """See Broker.publish_topic; not tried again after a lost answer."""
        return self._play(scripts.publish_topic(topic, messages, confirm, timeout_ms))

    def lease(
        self,
        queue: str,
        count: int = 1,
        wait_ms: int = 0,
        lease_timeout_ms: int | None = None,
        name: str | None = None,
    ) -> list[Lease]:
        """See Broker.lease; tried again after a lost answer only if it has a name.

        Raises:
            Unreachable: nobody answered; messages may be leased by it until their lease ends.
        """
        return self._play(scripts.lease(queue, count, wait_ms, lease_timeout_ms, name))

    def read_lease(
        self, queue: str, name: str, first: int = 0, last: int | None = None
    ) -> list[Lease]:
        """See Broker.read_lease."""
        return self._play(scripts.read_lease(queue, name, first, last))

    def ack(self, queue: str, tokens: Iterable[str], confirm: Level = "written") -> None:
        """See Broker.ack; after a lost answer, LeaseLost names only what was not acked."""
        self._play(scripts.ack(queue, tokens, confirm))

    def retry(self, queue: str, tokens: Iterable[str], *, delay_ms: int | None = None) -> None:
        """See Broker.retry."""
        self._play(scripts.retry(queue, tokens, delay_ms))

    def release(self, queue: str, tokens: Iterable[str]) -> None:
        """See Broker.release."""
        self._play(scripts.release(queue, tokens))

    def extend(self, queue: str, tokens: Iterable[str], timeout_ms: int) -> None:
        """See Broker.extend."""
        self._play(scripts.extend(queue, tokens, timeout_ms))

    def consume(
        self,
        queue: str,
        *,
        batch: int = 1,
        wait_ms: int = 1_000,
        lease_timeout_ms: int | None = None,
        stop_when_empty: bool = False,
    ) -> Iterator[Lease]:
        """See Broker.consume."""
        return consume(
            self,
            queue,
            batch=batch,
            wait_ms=wait_ms,
            lease_timeout_ms=lease_timeout_ms,
            stop_when_empty=stop_when_empty,
        )

    def peek(
        self,
        queue: str,
        count: int = 10,
        *,
        state: Literal["ready", "leased", "scheduled", "replicating", "dying"] = "ready",
        where: Callable[[Peeked], bool] | None = None,
        counted: bool = False,
    ) -> list[Peeked]:
        """See Broker.peek; `where` runs here, on messages that are fetched for it."""
        return self._play(scripts.peek(queue, count, state, where, counted=counted))

    def redrive(
        self,
        dead_queue: str,
        *,
        to: str | None = None,
        rate: float | None = None,
        where: Callable[[Peeked], bool] | None = None,
    ) -> int:
        """See Broker.redrive; `where` chooses here, then the server moves those."""
        return self._play(scripts.redrive(dead_queue, to, rate, where))

    def spec(self, queue: str) -> QueueSpec:
        """What a queue promises."""
        return self._play(scripts.one(calls.spec(queue)))

    def stats(self, queue: str) -> dict[str, Any]:
        """See Broker.stats."""
        return self._play(scripts.one(calls.stats(queue)))

    def queues(self) -> list[QueueSpec]:
        """Every queue you may see."""
        return self._play(scripts.one(calls.queues()))

    def topics(self) -> list[dict[str, Any]]:
        """Every topic you may see."""
        return self._play(scripts.one(calls.topics()))

    def removals(
        self, queue: str, *, reason: str | None = None, since_ms: int | None = None
    ) -> list[Removal]:
        """See Broker.removals."""
        return self._play(scripts.removals(queue, reason, since_ms))

    def why(self, message_id: str) -> dict[str, Any]:
        """See Broker.why."""
        return self._play(scripts.one(calls.why(message_id)))

    def devices(self) -> list[DeviceStatus]:
        """See Broker.devices."""
        return self._play(scripts.one(calls.devices()))

    def probe_device(self, name: str) -> DeviceStatus:
        """See Broker.probe_device."""
        return self._play(scripts.one(calls.probe_device(name)))

    def evict_device(self, name: str, *, force: bool = False, drain: bool = True) -> Evicted:
        """See Broker.evict_device."""
        return self._play(scripts.one(calls.evict_device(name, force=force, drain=drain)))

    def admit_device(self, name: str) -> DeviceStatus:
        """See Broker.admit_device."""
        return self._play(scripts.one(calls.admit_device(name)))

    def health(self) -> dict[str, Any]:
        """See Broker.health."""
        return self._play(scripts.one(calls.health()))

    def backup(self, target: str | Path, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy the store to a new or empty directory on the server's machine; bytes copied.

        The server tells no more than the end, so `progress` is called once.
        """
        copied = self._play(scripts.backup(target))
        if progress is not None:
            progress(copied, copied)
        return copied
