"""Moves under way, as `ebbmq devices` shows them: how far, how fast, how long yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from ebbmq.cli.session import empty_table
from ebbmq.cli.values import show_bytes, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from ebbmq.model import DeviceStatus, Moving

_COLUMNS: Final = ("MOVES UNDER WAY", ">DONE", ">OF", "", ">COPIES/S", ">BYTES/S", ">LEFT", ">TIME")
_BAR: Final = 12


def moves(found: Sequence[DeviceStatus]) -> Iterator[tuple[str, Moving]]:
    """What is under way on all devices, in words."""
    for device in found:
        if device.arriving is not None:
            yield f"to {device.name}", device.arriving
        if device.leaving is not None:
            yield f"from {device.name}", device.leaving


def moves_table(found: Sequence[DeviceStatus]) -> Table | None:
    """Moves, one a row; None while there are none."""
    under_way = list(moves(found))
    if not under_way:
        return None
    shown = empty_table(_COLUMNS)
    for name, moving in under_way:
        full = min(_BAR, _BAR * moving.done // (moving.done + moving.left))
        shown.add_row(
            Text(name),
            Text(f"{moving.done:,}"),
            Text(f"{moving.done + moving.left:,}"),
            Text.assemble(("\u2588" * full, "cyan"), ("\u2591" * (_BAR - full), "dim")),
            Text(f"{moving.per_s:,.0f}" if moving.per_s else "-"),
            Text(show_bytes(moving.bytes_per_s) if moving.bytes_per_s else "-"),
            Text(show_bytes(moving.bytes_left) if moving.bytes_left else f"{moving.left:,}"),
            Text(show_duration(moving.left_ms)),
        )
    return shown


def told(moving: Moving | None) -> str:
    """How far a move is, in a line."""
    if moving is None:
        return "-"
    parts = [f"{moving.done:,} of {moving.done + moving.left:,}"]
    if moving.bytes:
        parts.append(show_bytes(moving.bytes))
    if moving.per_s:
        rate = f"{moving.per_s:,.0f} copies/s"
        if moving.bytes_per_s:
            rate += f", {show_bytes(moving.bytes_per_s)}/s"
        parts += [rate, f"{show_duration(moving.left_ms)} left"]
    return ", ".join(parts)
