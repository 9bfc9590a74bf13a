"""What rules are asked about: the properties of a message and the state of the devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ebbmq.model import NO_HEADERS, Headers
from ebbmq.policy.status import STATUS_WORST


class Properties(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as rules see it; the last three change while it is stored."""

    size: float = 0.0  # KiB
    type: str = "BYTE"
    headers: Headers = NO_HEADERS
    destination: str = "QUEUE"
    client_id: str | None = None  # of the authenticated client, never taken from a header
    importance: float = 5.0
    queue: str | None = None
    routing_key: str | None = None
    producer: str | None = None
    consumer: str | None = None
    qos: str | None = None
    store: str | None = None
    decay_score: float = 0.0
    age: float = 0.0  # days
    access_rate: float = 0.0  # a day


#: How slow an archive is, beside other kinds.
ARCHIVE: Final = 9


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A device as rules and placement see it at one moment."""

    status: float = 0.0
    latency_ms: float = 0.0
    free_percent: float = 100.0
    durable: bool = True
    #: False while its circuit is open: it is not chosen, whatever the rules say.
    usable: bool = True
    tier: str = ""
    failure_domain: str = ""
    #: By its kind, 0 the fastest; an archive is the slowest.
    slowness: int = 0
    cost_per_gib_month: float = 0.0


States = Mapping[str, DeviceState]

#: What a rule sees of a device nobody knows.
UNKNOWN: Final = DeviceState(
    status=STATUS_WORST,
    latency_ms=float("inf"),
    free_percent=0.0,
    durable=False,
    usable=False,
)
