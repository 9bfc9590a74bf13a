"""`ebbmq pipeline upkeep`: packs of an archive written anew, its checksums verified, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ebbmq.cli.session import Session, anywhere_options, did_you_mean, pass_session
from ebbmq.cli.spark import require_spark, spark_options, spark_settings
from ebbmq.cli.values import duration_ms, pair, show_bytes, show_count
from ebbmq.errors import UnknownDevice
from ebbmq.node import config as configuration

if TYPE_CHECKING:
    from ebbmq.model import Upkept
    from ebbmq.node.devices.settings import DeviceConfig
    from ebbmq_spark.upkeep.job import Told
    from ebbmq_spark.upkeep.packs import Place

#: Damaged messages that are shown; --json has all of them.
_SHOWN: Final = 20


@click.command(short_help="Write thin packs of an archive anew, verify checksums.")
@click.option("--device", help="The object device, as the configuration (--config) names it.")
@click.option(
    "--archive", help="Where it is, instead of --config: s3://bucket/prefix, file:///directory."
)
@click.option(
    "--option", "options", multiple=True, type=pair, help="For --archive, as obstore names it."
)
@click.option(
    "--dead",
    "dead_share",
    type=click.FloatRange(0.01, 1.0),
    default=0.3,
    show_default=True,
    help="From which share of dead messages on a pack is written anew.",
)
@click.option(
    "--keep",
    "keep_ms",
    type=duration_ms,
    help="Archived messages first published longer ago leave, on the record: 90d.",
)
@click.option("--verify", is_flag=True, help="Read everything and compare every checksum.")
@click.option("--look-only", is_flag=True, help="Write nothing: count, and verify if asked.")
@click.option("--no-apply", is_flag=True, help="Leave it to the broker to find what was made.")
@spark_options
@anywhere_options
@pass_session
def upkeep(session: Session, /, **options: Any) -> None:
    """Look after the packs of an archive, on Spark, beside brokers that go on reading them.

    Packs with many dead messages, and small ones, are written anew. The broker takes the new ones,
    without messages that left or moved meanwhile, and only then deletes the old ones. It is told
    over --url, or opened with --data; else it finds them itself if the device has
    upkeep = "pipeline". Exit code 1 if something is damaged.

    \b
    Examples:
      ebbmq pipeline upkeep --config ebbmq.toml --device archive --url http://127.0.0.1:8080
      ebbmq pipeline upkeep --archive file:///srv/archive --look-only --verify
      ebbmq pipeline upkeep --config ebbmq.toml --device archive --data /var/lib/ebbmq --keep 90d
    """
    place = _place(session, options)
    require_spark("upkeep")
    from ebbmq_spark.session import spark_session  # noqa: PLC0415  # an extra
    from ebbmq_spark.upkeep.job import Asked, upkeep  # noqa: PLC0415

    asked = Asked(
        dead_share=options["dead_share"],
        keep_ms=options["keep_ms"],
        verify=options["verify"],
        compact=not options["look_only"],
    )
    with session.progress(counted=False) as bar:
        task = bar.add_task("starting Spark", total=None)
        with spark_session(spark_settings(options), "ebbmq pipeline upkeep") as spark:
            told = upkeep(spark, place, asked, lambda stage, _: bar.update(task, description=stage))
    applied = _apply(session, options, told)
    _show(session, told, applied)
    if told.damage:
        raise SystemExit(1)


def _place(session: Session, options: dict[str, Any]) -> Place:
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
    return named and not options["no_apply"] and not options["look_only"]


def _apply(session: Session, options: dict[str, Any], told: Told) -> Upkept | None:
    """Have the broker take what there is for it, if one was named."""
    if not _is_to_apply(session, options) or not (told.offered or told.waiting):
        return None
    if session.server.url is not None:
        with session.server.connect(session.note) as client:
            return client.tend_device(options["device"])
    with session.open() as broker:
        return broker.tend_device(options["device"])


def _show(session: Session, told: Told, applied: Upkept | None) -> None:
    if session.as_json:
        session.show_json({"run": told, "applied": applied})
        return
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
