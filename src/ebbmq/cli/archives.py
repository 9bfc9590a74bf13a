"""What `ebbmq pipeline upkeep` and `run` share: which archive, what to do, what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ebbmq.cli.session import Session, did_you_mean
from ebbmq.cli.spark import require_spark
from ebbmq.cli.values import duration_ms, pair, show_bytes, show_count
from ebbmq.errors import UnknownDevice
from ebbmq.node import config as configuration

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.model import Upkept
    from ebbmq.node.devices.settings import DeviceConfig
    from ebbmq_spark.upkeep.job import Asked, Told
    from ebbmq_spark.upkeep.packs import Place

F = TypeVar("F", bound="Callable[..., Any]")

#: Damaged messages that are shown; --json has all of them.
_SHOWN: Final = 20


def archive_options(command: F) -> F:
    """Which archive is looked after, and how."""
    for option in (
        click.option(
            "--no-apply", is_flag=True, help="Leave it to the broker to find what was made."
        ),
        click.option(
            "--verify", is_flag=True, help="Read all of the archive and compare every checksum."
        ),
        click.option(
            "--keep",
            "keep_ms",
            type=duration_ms,
            help="Archived messages first published longer ago leave, on the record: 90d.",
        ),
        click.option(
            "--dead",
            "dead_share",
            type=click.FloatRange(0.01, 1.0),
            default=0.3,
            show_default=True,
            help="From which share of dead messages on a pack is written anew.",
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            type=pair,
            help="For --archive, as obstore names it.",
        ),
        click.option(
            "--archive",
            help="Where it is, instead of --config: s3://bucket/prefix, file:///directory.",
        ),
        click.option(
            "--device", help="The object device, as the configuration (--config) names it."
        ),
    ):
        command = option(command)
    return command


def asked_of(options: dict[str, Any]) -> Asked:
    """What is to be done, by what `archive_options` took in."""
    from ebbmq_spark.upkeep.job import Asked  # noqa: PLC0415  # an extra

    return Asked(
        dead_share=options["dead_share"],
        keep_ms=options["keep_ms"],
        verify=options["verify"],
        compact=not options.get("look_only"),
    )


def place_of(session: Session, options: dict[str, Any]) -> Place:
    """Where the archive is: by its address, or by the configuration of its broker."""
    if options["archive"] is None and options["device"] is None:
        raise click.UsageError("name the archive: --device NAME with --config, or --archive")
    if options["device"] is None and _is_to_apply(session, options):
        raise click.UsageError("to apply it name the device, as its broker knows it: --device")
    require_spark("upkeep")
    from ebbmq_spark.upkeep.packs import Place  # noqa: PLC0415

    if options["archive"] is not None:
        return Place(options["archive"], dict(options["options"]))
    if session.config is None:
        raise click.UsageError("--device goes with --config FILE, which says where it is")
    devices = configuration.load(session.config).devices
    name = options["device"]
    known = {each: given for each, given in devices.items() if given.kind == "object"}
    if name not in known:
        raise UnknownDevice(
            f"there is no device {name!r} of kind object in {session.config}",
            f"{did_you_mean(name, known)}it has: {', '.join(known) or 'none'}",
        )
    return Place(_url(session, known[name]), known[name].options, known[name].timeout_ms)


def _url(session: Session, device: DeviceConfig) -> str:
    if device.url:
        return device.url
    path = Path(device.directory)
    if not path.is_absolute() and session.server.url is not None:
        raise click.UsageError(
            f"{device.directory} is in the server's data directory: say where that is, "
            f"too, with --archive file:///DIR/{device.directory}"
        )
    return (path if path.is_absolute() else session.data / path).resolve().as_uri()


def _is_to_apply(session: Session, options: dict[str, Any]) -> bool:
    """Whether a broker was named that is to take what was made."""
    named = session.server.url is not None or session.chosen_data is not None
    return named and not options["no_apply"] and not options.get("look_only")


def apply(session: Session, options: dict[str, Any], told: Told) -> Upkept | None:
    """Have the broker take what there is for it, if one was named."""
    if not _is_to_apply(session, options) or not (told.offered or told.waiting):
        return None
    if session.server.url is not None:
        with session.server.connect(session.note) as client:
            return client.tend_device(options["device"])
    with session.open() as broker:
        return broker.tend_device(options["device"])


def show(session: Session, told: Told, applied: Upkept | None) -> None:
    """What a run came to, for people."""
    session.say(
        f"{show_count(told.packs, 'pack')}, {show_bytes(told.bytes)}: "
        f"{show_count(told.messages, 'message')}, {told.dead:,} of them dead"
    )
    if told.made:
        session.say(
            f"{told.rewritten:,} written anew as {told.made:,}, {show_bytes(told.made_bytes)}: "
            f"{show_count(told.made_messages, 'message')}"
        )
    if told.expired:
        session.say(f"{show_count(told.expired, 'message')} to leave: too old for the archive")
    if told.verified:
        session.say(f"checksums verified: {show_count(len(told.damage), 'fault')}")
    for each in told.damage[:_SHOWN]:
        session.say(f"damaged: {each.message or 'the pack'} in {each.pack}: {each.detail}")
    if len(told.damage) > _SHOWN:
        session.say(f"and {len(told.damage) - _SHOWN:,} more; --json has all of them")
    for store in told.waiting:
        session.note(f"store {store} has yet to apply an earlier run; its packs were left alone")
    if applied is not None:
        session.say(
            f"applied: {show_count(applied.messages, 'message')} in "
            f"{show_count(applied.packs, 'new pack')}; {applied.stale:,} had left or moved since, "
            f"{show_count(applied.packs_refused, 'pack')} refused, {applied.expired:,} left for "
            f"their age, {applied.damaged:,} damaged copies given up"
        )
    elif told.offered:
        session.note("the broker applies it when it is told (--url, --data) or finds it")
