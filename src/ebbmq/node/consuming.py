"""The consume loop: leases ahead, extends while the caller works, acks or retries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ebbmq import limits
from ebbmq.errors import ClosedBroker, EbbError, LeaseLost
from ebbmq.node.leasing import check_lease
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ebbmq.model import Lease
    from ebbmq.node.broker import Broker


class _Extender:
    """Extends the leases at hand from a thread while their consumer works."""

    def __init__(self, broker: Broker, queue: str, timeout_ms: int) -> None:
        self._broker = broker
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
                self._broker.extend(self._queue, tokens, self._timeout_ms)
            except LeaseLost as error:
                with self._guard:
                    self._tokens.difference_update(error.tokens)
            except ClosedBroker:
                return
            except EbbError as error:
                log.warning("extend_failed", queue=self._queue, detail=error.detail)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def consume(
    broker: Broker,
    queue: str,
    *,
    batch: int,
    wait_ms: int,
    lease_timeout_ms: int | None,
    stop_when_empty: bool,
) -> Iterator[Lease]:
    """See Broker.consume."""
    check_lease(batch, wait_ms, lease_timeout_ms)
    wait_ms = wait_ms if stop_when_empty else max(wait_ms, limits.CONSUME_WAIT_MS_MIN)
    with broker.engine.lock:
        broker.engine.check_open()
        spec = broker.engine.catalog.queue(queue).spec
    timeout_ms = lease_timeout_ms or spec.lease_timeout_ms
    extender = _Extender(broker, queue, timeout_ms)
    ahead: list[Lease] = []
    try:
        while True:
            ahead = broker.lease(queue, batch, wait_ms, lease_timeout_ms)
            if not ahead and stop_when_empty:
                return
            extender.watch(ahead)
            while ahead:
                lease = ahead.pop(0)
                try:
                    yield lease
                except BaseException:
                    # The loop was left: an exception and a break look the same from here, and only
                    # giving the message back is right for both.
                    _finish(broker, queue, lease, extender, failed=True)
                    raise
                _finish(broker, queue, lease, extender, failed=False)
    finally:
        extender.close()
        if ahead:
            try:
                broker.release(queue, [lease.token for lease in ahead])
            except (LeaseLost, ClosedBroker) as error:
                log.info("release_ahead", queue=queue, detail=error.detail)


def _finish(broker: Broker, queue: str, lease: Lease, extender: _Extender, *, failed: bool) -> None:
    extender.forget(lease.token)
    try:
        if failed:
            broker.retry(queue, [lease.token])
        else:
            broker.ack(queue, [lease.token])
    except LeaseLost:
        log.warning("lease_lost_while_working", queue=queue, message=lease.id)
