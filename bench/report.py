"""How figures are shown: a table for people, JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.row import Row


def table(rows: Iterable[Row]) -> Table:
    """All figures, those below their bar marked."""
    shown = Table(title="EbbMQ figures", title_justify="left", header_style="bold")
    shown.add_column("figure", overflow="fold")
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("bar", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("x calibration", justify="right", no_wrap=True)
    shown.add_column("settings", overflow="fold", style="dim")
    for row in rows:
        verdict = {None: "", True: "[green]ok[/]", False: "[bold red]missed[/]"}[row.ok]
        shown.add_row(
            row.name,
            f"{row.value:,g} {row.unit}",
            row.bar or "",
            verdict,
            "" if row.multiple is None else f"{row.multiple:,.3g}",
            ", ".join(f"{name}={value}" for name, value in row.settings.items()),
        )
    return shown


def as_json(rows: Sequence[Row]) -> bytes:
    """The figures as `[{"name", "value", "unit", "bar", "ok", ..}]`."""
    return msgspec.json.format(msgspec.json.encode(rows), indent=1)


def document(rows: Sequence[Row], machine: dict[str, Any]) -> bytes:
    """The figures with the machine they were measured on, for keeping."""
    return msgspec.json.format(msgspec.json.encode({"machine": machine, "rows": rows}), indent=1)
