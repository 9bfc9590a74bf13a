"""The endpoints of devices: how each is doing, have one tried, give one up, take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from litestar import get, post

from ebbmq.node.devices import describing
from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    Turns,
    answer,
    body_of,
    caller_of,
    name_of,
    query_of,
)
from ebbmq.wire.http import managing

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.context import Context

_DEVICE: Final = "/v1/devices/{device:str}"


class Devices:
    """Endpoints below /v1/devices; they take the scope manage for everything."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._probes = Turns("probes of a device", 4)
        self._evictions = Turns("evictions of a device", 1)

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/devices")(self.list_all),
            get(_DEVICE)(self.show),
            post(f"{_DEVICE}/probe", status_code=200)(self.probe),
            post(f"{_DEVICE}/evict", status_code=200)(self.evict),
            post(f"{_DEVICE}/admit", status_code=200)(self.admit),
        ]

    async def list_all(self, request: Asking) -> Answer:
        """All devices."""
        self._check(request)
        return answer(managing.DevicesForm(await self._context.broker.devices()))

    async def show(self, request: Asking) -> Answer:
        """One device."""
        self._check(request)
        name = name_of(request, "device")
        found = {each.name: each for each in await self._context.broker.devices()}
        if name not in found:
            raise describing.unknown(name, found)
        return answer(found[name])

    async def probe(self, request: Asking) -> Answer:
        """Try a device now, and tell how it is."""
        self._check(request)
        await body_of(request, NoFields)
        with self._probes:
            return answer(await self._context.broker.probe_device(name_of(request, "device")))

    async def evict(self, request: Asking) -> Answer:
        """Give up a device that is lost for good, or, by force, one that works."""
        self._check(request)
        form = await body_of(request, managing.EvictForm)
        with self._evictions:
            name, broker = name_of(request, "device"), self._context.broker
            return answer(await broker.evict_device(name, force=form.force, drain=form.drain))

    async def admit(self, request: Asking) -> Answer:
        """Take back a device that was given up."""
        self._check(request)
        await body_of(request, NoFields)
        with self._probes:
            return answer(await self._context.broker.admit_device(name_of(request, "device")))

    def _check(self, request: Asking) -> None:
        self._context.access.check(caller_of(self._context, request), "manage", None)
        query_of(request, NoFields)
