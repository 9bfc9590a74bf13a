"""Devices as people see them; the node's own log is one also where no other is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ebbmq.errors import UnknownDevice
from ebbmq.model import DeviceStatus
from ebbmq.node.devices.health import Health
from ebbmq.node.devices.own_log import LogDevice
from ebbmq.node.devices.settings import LOG, DeviceConfig
from ebbmq.spelling import get_close_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.holding.contract import DeviceSpec
    from ebbmq.model import Moving
    from ebbmq.node.clock import Clock
    from ebbmq.node.directory import Directory


class Counts(NamedTuple):
    """What the node has on a device, and what is on its way there or from there."""

    copies: int = 0
    moves: int = 0
    arriving: Moving | None = None
    leaving: Moving | None = None
    unclaimed: int = 0


class Standing(NamedTuple):
    """Whether a device is used, and if not, since when and what takes it back."""

    name: Literal["used", "draining", "evicted"] = "used"
    undrained: int = 0
    since_ms: int | None = None
    until: Literal["return", "admit"] | None = None


USED: Final = Standing()


class Seen(NamedTuple):
    """What a port knows beside the health of its device."""

    kind: str
    where: str
    since_ms: int
    last_error_at_ms: int | None = None
    pending_bytes: int = 0


def told(
    spec: DeviceSpec,
    health: Health,
    seen: Seen,
    counts: Counts,
    now_ms: int,
    standing: Standing = USED,
) -> DeviceStatus:
    """Everything there is to say of a device."""
    state, reading = health.state(), health.reading
    return DeviceStatus(
        name=spec.name,
        kind=seen.kind,
        where=seen.where,
        tier=spec.tier,
        durable=spec.durable,
        failure_domain=spec.failure_domain,
        cost_per_gib_month=spec.cost_per_gib_month,
        used_bytes=reading.used_bytes,
        capacity_bytes=reading.capacity_bytes,
        free_percent=state.free_percent,
        latency_ms=state.latency_ms,
        status=state.status,
        parts=health.parts(),
        usable=state.usable,
        circuit=health.circuit.at(now_ms),
        since_ms=seen.since_ms,
        calls=health.calls,
        errors=health.errors,
        last_error=health.last_error,
        last_error_at_ms=seen.last_error_at_ms,
        pending_bytes=seen.pending_bytes,
        copies=counts.copies,
        unclaimed=counts.unclaimed,
        moves=counts.moves,
        standing=standing.name,
        undrained=standing.undrained,
        evicted_at_ms=standing.since_ms,
        evicted_until=standing.until,
        arriving=counts.arriving,
        leaving=counts.leaving,
    )


def lone_log(directory: Directory, clock: Clock, live: int, *, probe: bool = False) -> DeviceStatus:
    """The node's own log, which has all that is live, where nobody watches it.

    Its space is told, and only if asked for how fast it is.
    """
    config = DeviceConfig()
    spec = config.spec(LOG)
    device, health = LogDevice(spec, directory.path), Health(spec, config.status, trusted=True)
    found = device.probe(write=probe)
    now_ms = clock.elapsed_ms()
    if found.ok:
        health.measured(found)
        health.succeeded(now_ms)
        health.worked(found.latency_ms if probe else 0.0, 0, probe=True)
    else:
        health.failed(found.detail, now_ms)
    health.read(now_ms, 0, 0.0)
    return told(spec, health, Seen(LOG, device.where, clock.wall_ms()), Counts(live), now_ms)


def unknown(name: str, known: Iterable[str]) -> UnknownDevice:
    """The error about a device nobody has, with the one that was probably meant."""
    names = list(known)
    near = get_close_matches(str(name), names, 1)
    return UnknownDevice(
        f"no device {name!r:.80}",
        f"did you mean {near[0]!r}?" if near else f"devices are {', '.join(names)}",
    )
