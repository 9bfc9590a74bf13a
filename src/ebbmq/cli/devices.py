"""`ebbmq devices`: where copies of messages are kept, and how each device is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ebbmq.cli.device_moves import moves_table
from ebbmq.cli.device_moves import told as how_far
from ebbmq.cli.draining import watched
from ebbmq.cli.session import Session, anywhere_options, pass_session, wall_ms
from ebbmq.cli.values import (
    show_bytes,
    show_count,
    show_duration,
    show_instant,
    show_latency,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.cli.session import Verbs
    from ebbmq.model import DeviceStatus

_COLUMNS: Final = (
    "DEVICE",
    "KIND",
    "TIER",
    ">USED",
    ">OF",
    ">LATENCY",
    ">STATUS",
    ">COPIES",
    ">MOVES",
    "CIRCUIT",
)
_BAR: Final = 12
#: From this width on there is room to draw.
_WIDE: Final = 100
#: Where a status starts to keep further copies away, and where it is bad.
_STRAINED, _BAD = -20, -60
_UNTIL: Final = {"return": "it answers", "admit": "it is admitted"}


@click.group(invoke_without_command=True, short_help="Show how the storage devices are doing.")
@anywhere_options
@click.pass_context
def devices(ctx: click.Context) -> None:
    """List the devices with their space, latency, status, copies and circuit, and what moves.

    `log` is the node's own log, which takes every message first. The others are those of
    [devices.NAME] in the configuration. The status goes from 0, good, to -100, and is added to the
    weight of a device's rules. While the circuit is open a device is not used. Copies that are on
    their way to a device, or leave it, are listed below with how far they are, how fast it goes,
    and what is left.

    \b
    Examples:
      ebbmq devices --url http://127.0.0.1:8080
      ebbmq devices --data DIR --config ebbmq.toml
      ebbmq devices show hdd
      ebbmq devices probe hdd
    """
    session = ctx.ensure_object(Session)
    if ctx.invoked_subcommand is not None:
        return
    with session.open() as broker:
        _show(session, broker.devices())
        _note_unconfigured(session, broker)


def _show(session: Session, found: Sequence[DeviceStatus]) -> None:
    if session.as_json:
        session.show_json(found)
        return
    session.out.print(everything(found, session.out.width))
    for device in found:
        # What is wrong with a directory's devices was told when it was opened.
        if not device.usable and session.server.url is not None:
            since_ms = device.evicted_at_ms or device.since_ms
            ago = show_duration(max(0, wall_ms() - since_ms))
            session.note(f"{device.name} has not been used for {ago}: {_why(device)}")
        if device.unclaimed:
            count = f"{device.unclaimed:,} copies"
            session.note(
                f"{device.name} keeps {count} of which the log does not say that they may go"
            )
    if len(found) == 1:
        session.note("no other device is configured; docs/devices.md says how to add one")


def _note_unconfigured(session: Session, broker: Verbs) -> None:
    """Say which devices have copies and are none of those listed."""
    # Of a directory it was told when it was opened.
    if session.as_json or session.server.url is None:
        return
    for trouble in broker.health()["devices"]:
        if "is not configured" in trouble:
            session.note(f"attention: {trouble}")


def _why(device: DeviceStatus) -> str:
    """Why a device is not used."""
    if device.standing != "evicted":
        return device.last_error
    if device.evicted_until == "return":
        return f"it is evicted until it answers: {device.last_error}"
    return f"it is evicted; `ebbmq devices admit {device.name}` takes it back"


def everything(found: Sequence[DeviceStatus], width: int) -> Group:
    """The devices, and below them what is under way."""
    moves = moves_table(found)
    return Group(table(found, width), *(() if moves is None else (Text(), moves)))


def table(found: Sequence[DeviceStatus], width: int) -> Table:
    """The devices, one a row; with a bar of the space where there is room for it."""
    shown = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    columns = [*_COLUMNS, "SPACE"] if width >= _WIDE else _COLUMNS
    for name in columns:
        right = name.startswith(">")
        shown.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=name != "DEVICE",
            overflow="fold",
        )
    for device in found:
        shown.add_row(*_cells(device)[: len(columns)])
    return shown


def _cells(device: DeviceStatus) -> list[Text]:
    has_space = device.usable or device.used_bytes
    share = min(1.0, device.used_bytes / device.capacity_bytes)
    full = round(share * _BAR)
    style = "red" if device.status <= _BAD else "yellow" if device.status < _STRAINED else "green"
    return [
        Text(device.name),
        Text(device.kind),
        Text(device.tier),
        Text(show_bytes(device.used_bytes) if has_space else "-"),
        Text(show_bytes(device.capacity_bytes) if has_space else "-"),
        Text(show_latency(device.latency_ms) if device.usable and device.latency_ms else "-"),
        Text(f"{round(device.status)}", style=style),
        Text(f"{device.copies:,}"),
        Text(f"{device.moves:,}"),
        _circuit(device),
        Text.assemble(("\u2588" * full, "cyan"), ("\u2591" * (_BAR - full), "dim"))
        if has_space
        else Text(""),
    ]


def _circuit(device: DeviceStatus) -> Text:
    """Whether a device is used; one that is given up has no circuit to speak of."""
    if device.standing == "evicted":
        return Text("evicted", style="bold red")
    if device.standing == "draining":
        return Text(f"draining, {device.undrained:,} left", style="yellow")
    return Text("closed", style="green") if device.usable else Text("open", style="bold red")


@devices.command(short_help="Show everything about one device.")
@click.argument("name")
@anywhere_options
@pass_session
def show(session: Session, name: str) -> None:
    """Show everything about the device NAME.

    \b
    Example:
      ebbmq devices show hdd --url http://127.0.0.1:8080
    """
    with session.open() as broker:
        found = {device.name: device for device in broker.devices()}
        # The broker knows how to say that there is none, with the name that was meant.
        device = found.get(name) or broker.probe_device(name)
    _show_one(session, device)


@devices.command(short_help="Try a device now.")
@click.argument("name")
@anywhere_options
@pass_session
def probe(session: Session, name: str) -> None:
    """Try the device NAME now; if it answers, its circuit closes sooner.

    \b
    Example:
      ebbmq devices probe hdd --url http://127.0.0.1:8080
    """
    with session.open() as broker:
        device = broker.probe_device(name)
    _show_one(session, device)


@devices.command(short_help="Give up a device that is lost, or take one out of use.")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also if it answers, and until it is admitted.")
@click.option(
    "--no-drain", is_flag=True, help="Copy nothing first: what only it has is lost, on the record."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@anywhere_options
@pass_session
def evict(session: Session, name: str, *, force: bool, no_drain: bool, yes: bool) -> None:
    """Give up the device NAME: its copies count no more, and others are made elsewhere.

    Messages of which a lost device had the only copy are gone, on the record (ebbmq removals). It
    is taken back by itself when it answers again; what it should not have any more is deleted
    there. Devices that are only away for a while need nothing of this: their messages get other
    copies meanwhile.

    With --force a device that answers is taken out of use, such as a disk that is to be replaced:
    everything is copied elsewhere first that only it has, then nothing is placed, read or deleted
    there until it is admitted.

    \b
    Examples:
      ebbmq devices evict hdd --url http://127.0.0.1:8080
      ebbmq devices evict hdd --force --url http://127.0.0.1:8080
    """
    with session.open() as broker:
        session.confirm(_question(name, force=force, drain=not no_drain), yes=yes)
        with watched(session, broker, name):
            told = broker.evict_device(name, force=force, drain=not no_drain)
    if session.as_json:
        session.show_json(told)
        return
    had = f"it had {told.copies:,} {'copy' if told.copies == 1 else 'copies'}"
    if told.drained:
        had += f", {show_count(told.drained, 'message')} of which only it had were copied first"
    session.say(
        f"{name} is given up: {had}; "
        f"{show_count(told.messages_lost, 'message')} had no other and left, on the record"
    )
    if told.until == "admit":
        session.note(f"`ebbmq devices admit {name}` takes it back")
    else:
        session.note(f"what answers in its place, a new disk too, is used as {name} at once")


def _question(name: str, *, force: bool, drain: bool) -> str:
    if force and drain:
        return f"Take {name} out of use, after what only it has was copied?"
    return f"Give up {name}, and what only it has?"


@devices.command(short_help="Take back a device that was evicted.")
@click.argument("name")
@anywhere_options
@pass_session
def admit(session: Session, name: str) -> None:
    """Use the device NAME again, which was evicted, or is being drained.

    It is asked what it has first: copies of messages that left, or are elsewhere, are deleted.

    \b
    Example:
      ebbmq devices admit hdd --url http://127.0.0.1:8080
    """
    with session.open() as broker:
        device = broker.admit_device(name)
    _show_one(session, device)


def _show_one(session: Session, device: DeviceStatus) -> None:
    if session.as_json:
        session.show_json(device)
        return
    parts = ", ".join(f"{name} {points:.0f}" for name, points in device.parts.items() if points)
    used, capacity = show_bytes(device.used_bytes), show_bytes(device.capacity_bytes)
    session.show_fields(
        {
            "device": device.name,
            "kind": device.kind,
            "where": device.where or "in RAM",
            "tier": device.tier,
            "durable": "yes" if device.durable else "no: gone with a restart",
            "failure domain": device.failure_domain,
            "cost": f"{device.cost_per_gib_month:g} per GiB and month",
            "space": f"{used} of {capacity} used, {device.free_percent:g} % free",
            "latency": show_latency(device.latency_ms),
            "status": f"{round(device.status)}" + (f" ({parts})" if parts else ""),
            "standing": device.standing
            + (f", {device.undrained:,} messages are only there" if device.undrained else "")
            + (f" until {_UNTIL[device.evicted_until]}" if device.evicted_until else ""),
            "circuit": f"{device.circuit} since {show_instant(device.since_ms)}",
            "calls": f"{device.calls:,}, of which {device.errors:,} failed",
            "last error": f"{device.last_error} ({show_instant(device.last_error_at_ms)})"
            if device.last_error
            else "-",
            "waiting": show_bytes(device.pending_bytes),
            "copies": f"{device.copies:,}",
            "arriving": how_far(device.arriving),
            "leaving": how_far(device.leaving),
        }
    )
