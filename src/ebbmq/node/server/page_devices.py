"""The devices on the start page: how full, how fast, how well each is doing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ebbmq.node.server.html import Markup, joined, tag
from ebbmq.node.server.page_moves import moves_list
from ebbmq.node.server.words import duration, latency, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.model import DeviceStatus

_COLUMNS: Final = ("device", "tier", "space", "latency", "status", "copies", "moves", "circuit")
_ROW: Final = (
    '<tr><td title="{where}">{name}<span class="note">{kind}</span></td><td>{tier}</td>'
    '<td class="space">{space}</td><td>{latency}</td><td title="{why}">{status}</td>'
    "<td>{copies}</td><td>{moves}</td><td>{circuit}</td></tr>"
)


def devices_table(devices: Sequence[DeviceStatus]) -> Markup:
    """All of them, where there are others beside the node's own log."""
    if len(devices) <= 1:
        return Markup("")
    head = joined([tag("<th>{name}</th>", name=name) for name in _COLUMNS])
    return tag(
        '<h2>Devices</h2><div class="card scroll"><table><thead><tr>{head}</tr></thead>'
        "<tbody>{rows}</tbody></table></div>{moves}",
        head=head,
        rows=joined([_row(device) for device in devices]),
        moves=moves_list(devices),
    )


def _row(device: DeviceStatus) -> Markup:
    return tag(
        _ROW,
        where=device.where,
        name=device.name,
        kind=device.kind if device.durable else f"{device.kind}, volatile",
        tier=device.tier,
        space=_space(device),
        latency=latency(device.latency_ms) if device.usable else "-",
        why=_why(device),
        status=f"{round(device.status)}",
        copies=f"{device.copies:,}",
        moves=f"{device.moves:,}",
        circuit=_circuit(device),
    )


def _space(device: DeviceStatus) -> Markup:
    if not device.usable and not device.used_bytes:
        return Markup("-")
    share = min(1.0, device.used_bytes / device.capacity_bytes)
    return tag(
        '{used} of {all}<svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img">'
        '<rect class="floor" width="100" height="6"/>'
        '<rect class="bar" width="{wide}" height="6"/><title>{percent} % used</title></svg>',
        used=size(device.used_bytes),
        all=size(device.capacity_bytes),
        wide=round(100 * share, 1),
        percent=round(100 * share, 1),
    )


def _why(device: DeviceStatus) -> str:
    """What takes of the status, most first."""
    if not device.usable:
        return device.last_error
    parts = sorted((points, name) for name, points in device.parts.items() if points)
    return ", ".join(f"{name} {points:.0f}" for points, name in parts) or "nothing strains it"


def _circuit(device: DeviceStatus) -> Markup:
    if device.standing == "draining":
        return tag("draining, {left} left", left=f"{device.undrained:,}")
    if device.usable:
        return Markup('<span class="good">closed</span>')
    since_ms = device.evicted_at_ms or device.since_ms
    ago = duration(max(0.0, time.time() - since_ms / 1_000))
    state = "evicted" if device.standing == "evicted" else "open"
    return tag('<span class="bad">{state} for {ago}</span>', state=state, ago=ago)
