"""What a snapshot was judged by: the parameters of the node's queues, and the room on its devices.

Beside that, what became of the last plans there, for reports.

It stands in the manifest of the snapshot, so that a plan never mixes messages of one moment with
parameters of another. Fields may be added; a reader takes those it knows.
"""

from __future__ import annotations

import msgspec

from ebbmq.feed.advice import Applied
from ebbmq.model import AdaptSpec, OnFaded

# Fields of structs are looked up at run time, hence no names for type checkers only.
Faded = OnFaded
Adapt = AdaptSpec | None
Advised = tuple[Applied, ...]


class QueueParameters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What plans and rates need to know of a queue, by the names of `QueueSpec`."""

    name: str
    #: Of these parameters; advice for another version is outdated.
    version: int
    decay_unit_ms: int
    band_width: float
    stale_threshold: float
    score_base: float
    score_per_day: float
    score_access_bonus: float
    score_medium: float
    score_high: float
    evaluate_every_ms: int
    on_faded: Faded
    min_copies: int
    max_replicas: int | None = None
    tiers: tuple[str, ...] = ()
    adapt: Adapt = None


class DeviceRoom(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a device has, could take, and costs."""

    name: str
    kind: str
    tier: str
    durable: bool
    usable: bool
    used_bytes: int
    capacity_bytes: int
    cost_per_gib_month: float
    #: The server or store it is on, the same on all nodes that use it; empty for one of the node
    #: alone. None: who wrote this does not say.
    place: str | None = None

    @property
    def free_bytes(self) -> int:
        """What may still be written there; nothing while it cannot be used."""
        return max(0, self.capacity_bytes - self.used_bytes) if self.usable else 0


class FaultyPartition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A partition that cannot be read."""

    queue: str
    partition: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The queues and devices of a node at the instant of a snapshot."""

    queues: tuple[QueueParameters, ...] = ()
    devices: tuple[DeviceRoom, ...] = ()
    #: What the node made of the last plans with rows about it, newest last.
    advice: Advised = ()
    #: Messages of these are not in the snapshot. Who wrote an older one does not say.
    faulty: tuple[FaultyPartition, ...] = ()
