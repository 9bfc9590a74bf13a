"""The four ways to call a broker behind one blocking face: what runs on one runs on all."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any, Self

from ebbmq import AsyncBroker, AsyncClient, Broker, Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator
    from pathlib import Path

WAYS = ("Broker", "AsyncBroker", "Client", "AsyncClient")
OVER_HTTP = ("Client", "AsyncClient")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Blocking:
    """An awaitable broker or client, called from threads."""

    def __init__(self, loop: Loop, awaitable: Any) -> None:
        self._loop = loop
        self._awaitable = awaitable

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._awaitable, name)
        if name == "consume":
            return lambda *args, **kwargs: self._consume(verb(*args, **kwargs))
        if not inspect.iscoroutinefunction(verb):
            return verb

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._loop.run(verb(*args, **kwargs))

        return call

    def _consume(self, leases: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    lease = self._loop.run(anext(leases))
                except StopAsyncIteration:
                    return
                try:
                    yield lease
                except BaseException as error:
                    self._loop.run(self._throw(leases, error))
                    raise
        finally:
            self._loop.run(leases.aclose())  # type: ignore[attr-defined]  # it is a generator

    @staticmethod
    async def _throw(leases: Any, error: BaseException) -> None:
        try:
            await leases.athrow(error)
        except BaseException as same:
            if same is not error:
                raise


class Opened:
    """One of the WAYS to call a broker, to be closed again."""

    def __init__(self, way: str, data: Path, url: str | None = None, **options: Any) -> None:
        self._loop: Loop | None = None
        if way == "Broker":
            self.broker: Any = Broker.open(data)
        elif way == "Client":
            assert url is not None
            self.broker = Client(url, **options)
        else:
            self._loop = Loop()
            self.broker = Blocking(self._loop, self._loop.run(self._open(way, data, url, options)))

    @staticmethod
    async def _open(way: str, data: Path, url: str | None, options: dict[str, Any]) -> Any:
        if way == "AsyncBroker":
            return await AsyncBroker.open(data)
        assert url is not None
        return AsyncClient(url, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()
        if self._loop is not None:
            self._loop.close()
