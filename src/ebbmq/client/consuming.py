"""The consume loop over a network: leases ahead, extends while the caller works, acks or retries.

A loop leases under one name of its own. It asks again only when everything it held is settled, so
the name never stands for leases of before, and a lease whose answer was lost is found under it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.client import arguments
from ebbmq.errors import ClosedBroker, EbbError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ebbmq.client.async_client import AsyncClient
    from ebbmq.client.client import Client
    from ebbmq.model import Lease


class _Extender:
    """Extends the leases at hand from a thread while their consumer works."""

    def __init__(self, client: Client, queue: str, timeout_ms: int) -> None:
        self._client = client
        self._queue = queue
        self._timeout_ms = timeout_ms
        self._tokens: set[str] = set()
        self._guard = threading.Lock()  # guards _tokens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebbmq-extender", daemon=True)
        self._thread.start()

    def watch(self, leases: list[Lease]) -> None:
        with self._guard:
            self._tokens.update(lease.token for lease in leases)

    def forget(self, token: str) -> None:
        with self._guard:
            self._tokens.discard(token)

    def _run(self) -> None:
        while not self._stop.wait(self._timeout_ms / 3_000):
            with self._guard:
                tokens = list(self._tokens)
            if not tokens:
                continue
            try:
                self._client.extend(self._queue, tokens, self._timeout_ms)
            except LeaseLost as error:
                with self._guard:
                    self._tokens.difference_update(error.tokens)
            except ClosedBroker:
                return
            except EbbError:
                # Nobody to tell: settling the message will say what became of its lease.
                continue

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def consume(
    client: Client,
    queue: str,
    *,
    batch: int,
    wait_ms: int,
    lease_timeout_ms: int | None,
    stop_when_empty: bool,
) -> Iterator[Lease]:
    """See Broker.consume."""
    arguments.check_lease(batch, wait_ms, lease_timeout_ms)
    wait_ms = wait_ms if stop_when_empty else max(wait_ms, limits.CONSUME_WAIT_MS_MIN)
    timeout_ms = lease_timeout_ms or client.spec(queue).lease_timeout_ms
    extender = _Extender(client, queue, timeout_ms)
    name = loop_name()
    ahead: list[Lease] = []
    try:
        while True:
            ahead = client.lease(queue, batch, wait_ms, lease_timeout_ms, name)
            if not ahead and stop_when_empty:
                return
            extender.watch(ahead)
            while ahead:
                lease = ahead.pop(0)
                try:
                    yield lease
                except BaseException:
                    # The loop was left (ADR 0010), and why matters more than how this call ends.
                    extender.forget(lease.token)
                    with contextlib.suppress(EbbError):
                        client.retry(queue, [lease.token])
                    raise
                extender.forget(lease.token)
                with contextlib.suppress(LeaseLost):
                    client.ack(queue, [lease.token])
    finally:
        extender.close()
        if ahead:
            with contextlib.suppress(EbbError):
                client.release(queue, [lease.token for lease in ahead])


async def consume_async(
    client: AsyncClient,
    queue: str,
    *,
    batch: int,
    wait_ms: int,
    lease_timeout_ms: int | None,
    stop_when_empty: bool,
) -> AsyncIterator[Lease]:
    """See AsyncBroker.consume."""
    arguments.check_lease(batch, wait_ms, lease_timeout_ms)
    wait_ms = wait_ms if stop_when_empty else max(wait_ms, limits.CONSUME_WAIT_MS_MIN)
    timeout_ms = lease_timeout_ms or (await client.spec(queue)).lease_timeout_ms
    held: set[str] = set()
    extender = asyncio.create_task(_keep_extending(client, queue, held, timeout_ms))
    name = loop_name()
    ahead: list[Lease] = []
    try:
        while True:
            ahead = await client.lease(queue, batch, wait_ms, lease_timeout_ms, name)
            if not ahead and stop_when_empty:
                return
            held.update(lease.token for lease in ahead)
            while ahead:
                lease = ahead.pop(0)
                try:
                    yield lease
                except BaseException:
                    held.discard(lease.token)
                    with contextlib.suppress(EbbError):
                        await client.retry(queue, [lease.token])
                    raise
                held.discard(lease.token)
                with contextlib.suppress(LeaseLost):
                    await client.ack(queue, [lease.token])
    finally:
        extender.cancel()
        if ahead:
            with contextlib.suppress(EbbError):
                await client.release(queue, [lease.token for lease in ahead])


async def _keep_extending(client: AsyncClient, queue: str, held: set[str], timeout_ms: int) -> None:
    while True:
        await asyncio.sleep(timeout_ms / 3_000)
        if not held:
            continue
        try:
            await client.extend(queue, list(held), timeout_ms)
        except LeaseLost as error:
            held.difference_update(error.tokens)
        except ClosedBroker:
            return
        except EbbError:
            continue


def loop_name() -> str:
    """A name no other loop leases under."""
    return f"consume-{secrets.token_urlsafe(12)}"
