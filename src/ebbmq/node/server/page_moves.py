"""Moves under way on the start page: how far, how fast, how long yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.node.server.html import Markup, joined, tag
from ebbmq.node.server.words import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.model import DeviceStatus, Moving

_MOVE: Final = (
    '<div class="move"><b>{way}</b><svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img">'
    '<rect class="floor" width="100" height="6" rx="1"/>'
    '<rect class="bar" width="{wide}" height="6" rx="1"/><title>{percent} %</title></svg>'
    '<span>{done} of {all} copies</span><span class="soft">{rest}</span></div>'
)


def moves_list(devices: Sequence[DeviceStatus]) -> Markup:
    """What is under way on all devices; where nothing moves, that."""
    shown: list[Markup] = []
    for device in devices:
        if device.arriving is not None:
            shown.append(_move(f"to {device.name}", device.arriving))
        if device.leaving is not None:
            shown.append(_move(f"from {device.name}", device.leaving))
    if not shown:
        return Markup('<p class="soft">Nothing is being moved.</p>')
    return tag('<h3>Moves under way</h3><div class="card moves">{moves}</div>', moves=joined(shown))


def _move(way: str, moving: Moving) -> Markup:
    share = moving.done / (moving.done + moving.left)
    parts: list[str] = []
    if moving.bytes_left:
        parts.append(f"{size(moving.bytes_left)} left")
    if moving.per_s:
        parts.append(f"{moving.per_s:,.0f} copies/s")
        if moving.bytes_per_s:
            parts.append(f"{size(moving.bytes_per_s)}/s")
    else:
        parts.append("waiting")
    if moving.left_ms is not None:
        parts.append(f"{duration(moving.left_ms / 1_000)} to go")
    return tag(
        _MOVE,
        way=way,
        wide=round(100 * share, 1),
        percent=round(100 * share),
        done=f"{moving.done:,}",
        all=f"{moving.done + moving.left:,}",
        rest=", ".join(parts),
    )
