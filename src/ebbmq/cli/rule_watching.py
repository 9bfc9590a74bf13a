"""`ebbmq rules --watch`: every rule with its weight as it counts now, with its device's status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec
from rich.live import Live
from rich.text import Text

from ebbmq.cli.session import empty_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from ebbmq.cli.session import Session, Verbs
    from ebbmq.model import DeviceStatus
    from ebbmq.policy.rules.spec import RuleView

_COLUMNS: Final = ("RULE", ">WEIGHT", ">STATUS", ">NOW", "DEVICE", "", ">PLACED", "WHEN")
_AGAIN_S: Final = 1.0


class WatchedRule(msgspec.Struct, frozen=True):
    """A rule, and what it weighs now; None: it does not count, or its device cannot be used."""

    id: str
    weight: float
    status: float | None
    weight_now: float | None
    device: str
    enabled: bool
    when: str
    #: Messages whose device it chose as they came, since the broker was opened.
    placed: int = 0


class WatchedRules(msgspec.Struct, frozen=True):
    """Every rule at one time."""

    version: int
    strategy: str
    rules: list[WatchedRule]


def watch(session: Session, broker: Verbs) -> None:
    """Go on until Ctrl-C."""
    if session.as_json or not session.out.is_terminal:
        while True:
            session.show_json_line(look(broker))
            time.sleep(_AGAIN_S)
    with Live(console=session.out, auto_refresh=False) as live:
        while True:
            live.update(table(look(broker)), refresh=True)
            time.sleep(_AGAIN_S)


def look(broker: Verbs) -> WatchedRules:
    """The rules and the devices as they are now."""
    found = broker.rules()
    devices = {device.name: device for device in broker.devices()}
    return WatchedRules(
        found.version,
        found.strategy,
        [_watched(rule, devices, found.placed.get(rule.id, 0)) for rule in found.rules],
    )


def _watched(rule: RuleView, devices: Mapping[str, DeviceStatus], placed: int) -> WatchedRule:
    device = devices.get(rule.device)
    status = device.status if device is not None and device.usable else None
    now = rule.weight + status if status is not None and rule.enabled else None
    return WatchedRule(
        rule.id, rule.weight, status, now, rule.device, rule.enabled, rule.when, placed
    )


def table(found: WatchedRules) -> Table:
    """The rules, one a row."""
    shown = empty_table(_COLUMNS, f"version {found.version}, {found.strategy}")
    for rule in found.rules:
        cells = (
            rule.id,
            f"{rule.weight:g}",
            _number(rule.status),
            _number(rule.weight_now),
            rule.device,
            "" if rule.enabled else "off",
            f"{rule.placed:,}",
            rule.when,
        )
        shown.add_row(*map(Text, cells))
    return shown


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")
