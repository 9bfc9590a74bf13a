"""`ebbmq queues`: list, declare and look after queues."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from ebbmq.cli.session import Session, anywhere_options, did_you_mean, pass_session
from ebbmq.cli.values import (
    duration_ms,
    pair,
    show_bytes,
    show_count,
    show_duration,
)
from ebbmq.errors import Forbidden
from ebbmq.model import QueueSpec, Scored

if TYPE_CHECKING:
    from ebbmq.cli.session import F, Verbs

PRESETS: Final = ("fifo", "fresh-first", "deadline")
_ADAPT: Final = '{"raise_above_ms": 1000, "lower_below_ms": 500}'
#: States a queue is in only now and then; shown when somebody is in them.
RARE_STATES: Final = ("replicating", "dying", "in_doubt")


@click.group(invoke_without_command=True, short_help="List, declare and look after queues.")
@anywhere_options
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List the queues with their depth by state, oldest age, bytes and rates per second.

    \b
    Examples:
      ebbmq queues
      ebbmq queues declare orders --preset deadline --ttl 60s
      ebbmq queues show orders
    """
    session = ctx.ensure_object(Session)
    if ctx.invoked_subcommand is None:
        list_queues(session)


def list_queues(session: Session) -> None:
    """Every queue with its numbers."""
    with session.open() as broker:
        everything = [broker.stats(spec.name) for spec in broker.queues()]
    if session.as_json:
        session.show_json(everything)
    elif everything:
        _show_stats(session, everything)
    else:
        session.note(f"no queues in {session.place}; ebbmq queues declare NAME makes one")


def _show_stats(session: Session, everything: list[dict[str, Any]]) -> None:
    rare = [s for s in RARE_STATES if any(stats["depth"].get(s) for stats in everything)]
    states = ["ready", "leased", "scheduled", *rare]
    columns = ["QUEUE", *(f">{state.upper()}" for state in states), ">OLDEST", ">BYTES"]
    session.show_table(
        [*columns, ">PUBLISH/S", ">ACK/S", "PAUSED"],
        (
            (
                stats["queue"],
                *(f"{stats['depth'].get(state, 0):,}" for state in states),
                show_duration(stats["oldest_age_ms"] if any(stats["depth"].values()) else None),
                show_bytes(stats["bytes"]),
                f"{stats['rates']['publish']:.1f}",
                f"{stats['rates']['ack']:.1f}",
                "paused" if stats.get("paused") else "",
            )
            for stats in everything
        ),
    )


@queues.command(short_help="Make a queue.")
@click.argument("name")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    help="A plain queue unless given, first in, first out. All presets bring a dead queue "
    "NAME.dead. fresh-first: newest and most important first, stale within the hour. "
    "deadline: worth nothing at the end of its TTL.",
)
@click.option("--ttl", "ttl_ms", type=duration_ms, help="Default TTL of its messages.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    type=pair,
    metavar="FIELD=VALUE",
    help="Any field of the queue; repeat for more. Durations may have units.",
)
@anywhere_options
@pass_session
def declare(
    session: Session,
    name: str,
    preset: str | None,
    ttl_ms: int | None,
    changes: tuple[tuple[str, str], ...],
) -> None:
    """Make the queue NAME; the same again changes nothing, see `ebbmq queues change`.

    \b
    Examples:
      ebbmq queues declare orders --set dead_queue=orders.dead --set max_attempts=5
      ebbmq queues declare prices --preset deadline --ttl 30s
      ebbmq queues declare feed --preset fresh-first --set lease_timeout_ms=2m
    """
    spec = _spec(name, preset, ttl_ms, dict(parse_field(*change) for change in changes))
    with session.open(create=True) as broker:
        is_new = all(known.name != name for known in broker.queues())
        broker.declare(spec)
        _note_tiers(session, broker, spec)
    if session.as_json:
        session.show_json(spec)
    else:
        outcome = "declared" if is_new else "unchanged"
        session.say(f"queue {name} is {outcome} in {session.place} ({describe(spec)})")


def field_options(command: F) -> F:
    """An option for each field of a queue, such as `--max-attempts`."""
    for field in sorted(set(QueueSpec.__struct_fields__) - {"name"}, reverse=True):
        flag = f"--{field.replace('_', '-')}"
        command = click.option(flag, field, metavar="VALUE")(command)
    return command


@queues.command(short_help="Change fields of a queue.")
@click.argument("name")
@field_options
@anywhere_options
@pass_session
def change(session: Session, /, name: str, **texts: str | None) -> None:
    """Change the fields of the queue NAME that are given; `none` takes a value away.

    \b
    Examples:
      ebbmq queues change orders --max-attempts 5 --dead-queue orders.dead
      ebbmq queues change feed --lease-timeout-ms 2m
    """
    given = dict(parse_field(field, text) for field, text in texts.items() if text is not None)
    if not given:
        raise click.UsageError("name what is to change, such as --max-attempts 5; see --help")
    spec = QueueSpec(name, **given)
    with session.open() as broker:
        session.require_queue(broker, name)
        broker.declare(spec, change=True, fields=given)
        _note_tiers(session, broker, spec)
    _done(session, name, "changed")


def _note_tiers(session: Session, broker: Verbs, spec: QueueSpec) -> None:
    """Say which tiers of a queue no device is of: a slip, or a device that is yet to be added."""
    there: list[str] = []
    # Who may declare a queue need not be allowed to see the devices.
    with contextlib.suppress(Forbidden):
        there = sorted({device.tier for device in broker.devices()}) if spec.tiers else []
    for tier in spec.tiers if there else ():
        if tier not in there:
            session.note(
                f"attention: no device is of the tier {tier!r} (there are: {', '.join(there)}); "
                "what should be on it stays where it is"
            )


def _spec(name: str, preset: str | None, ttl_ms: int | None, changes: dict[str, Any]) -> QueueSpec:
    if ttl_ms is not None:
        changes.setdefault("default_ttl_ms", ttl_ms)
    if preset == "fresh-first":
        return QueueSpec.fresh_first(name, **changes)
    if preset == "deadline":
        ttl = changes.pop("default_ttl_ms", None)
        if ttl is None:
            raise click.UsageError(
                "--preset deadline needs --ttl: when is a message worth nothing?"
            )
        return QueueSpec.deadline(name, ttl_ms=ttl, **changes)
    return QueueSpec.fifo(name, **changes) if preset else QueueSpec(name, **changes)


def parse_field(field: str, text: str, kind: type[Scored] = QueueSpec) -> tuple[str, Any]:
    """Read one `field=value` of a queue spec, or of what is like one, as its type.

    Raises:
        click.UsageError: no such field, or not a value of its type.
    """
    types = {known.name: known.type for known in msgspec.structs.fields(kind)}
    if field not in types or field == "name":
        known = sorted(types.keys() - {"name"})
        near = did_you_mean(field, known) or f"it has {', '.join(known)}"
        raise click.UsageError(f"there is no field {field!r}; {near.strip()}")
    if text.lower() in {"none", "null"}:
        return field, None
    value: object = text
    if field.endswith("_ms") and text[-1:].isalpha():
        value = duration_ms(text)
    elif text.startswith(("{", "[")):
        value = _json(field, text)
    elif field in {"tiers", "privileged"}:
        value = tuple(filter(None, text.split(",")))
    try:
        return field, msgspec.convert(value, types[field], strict=False)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{field} cannot be {text!r}; {_such_as(field)}") from error


def _such_as(field: str) -> str:
    if field == "adapt":
        return f"write JSON, such as '{_ADAPT}', or {{}} for the usual values"
    usual = getattr(QueueSpec("any"), field)
    return f"a usual value is {'none' if usual is None else repr(usual)}"


def _json(field: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{field}={text}: that is no JSON ({error})") from error


def describe(spec: QueueSpec) -> str:
    """What of the spec is not the default, in one line."""
    plain = QueueSpec(spec.name)
    changed = [
        f"{name}={getattr(spec, name)}"
        for name in QueueSpec.__struct_fields__
        if getattr(spec, name) != getattr(plain, name)
    ]
    return ", ".join(changed) if changed else "a plain durable FIFO"


@queues.command(short_help="Everything about one queue.")
@click.argument("name")
@anywhere_options
@pass_session
def show(session: Session, name: str) -> None:
    """Show what the queue NAME promises and how it stands.

    \b
    Example:
      ebbmq queues show orders
    """
    with session.open() as broker:
        spec = session.require_queue(broker, name)
        stats = broker.stats(name)
    if session.as_json:
        session.show_json({"spec": spec, "stats": stats})
        return
    _show_stats(session, [stats])
    session.say("")
    session.show_fields(
        {
            "declared as": describe(spec),
            "by importance": _line(stats["by_importance"]),
            "since it was made": _line(stats["totals"]),
            "bodies": stats["residency"],
            "cache": _line(stats["cache"]),
            "decay factor": stats["decay_factor"],
            "decay score": _score(stats["score"], acts=stats["score_acts"]),
            "partitions": len(stats["partitions"]),
        }
    )


def _score(score: dict[str, float], *, acts: bool) -> str:
    told = ", ".join(f"{name.removeprefix('score_')} {value:g}" for name, value in score.items())
    return told if acts else f"{told}; only shown, until score_per_day or score_high is given"


def _line(numbers: dict[Any, Any]) -> str:
    return ", ".join(f"{name}: {value:,}" for name, value in numbers.items() if value) or "-"


@queues.command(short_help="Remove all messages of a queue, on the record.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@anywhere_options
@pass_session
def purge(session: Session, name: str, yes: bool) -> None:
    """Remove every message of the queue NAME that is not leased, on the record as `purged`.

    \b
    Example:
      ebbmq queues purge orders --yes
    """
    with session.open() as broker:
        session.require_queue(broker, name)
        count = sum(broker.stats(name)["depth"].values())
        session.confirm(f"Remove {show_count(count, 'message')} from {name}?", yes=yes)
        purged = broker.purge(name)
    _done(session, name, "purged", purged)


@queues.command(short_help="Delete a queue and its messages.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@anywhere_options
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete the queue NAME; each message it held is recorded with the reason `deleted`.

    \b
    Examples:
      ebbmq queues delete orders --yes
      ebbmq removals orders --reason deleted
    """
    with session.open() as broker:
        session.require_queue(broker, name)
        count = sum(broker.stats(name)["depth"].values())
        session.confirm(f"Delete {name} with {show_count(count, 'message')}?", yes=yes)
        broker.delete(name)
    _done(session, name, "deleted", count)


@queues.command(short_help="Stop deliveries of a queue.")
@click.argument("name")
@anywhere_options
@pass_session
def pause(session: Session, name: str) -> None:
    """Stop deliveries of the queue NAME; it still takes messages.

    \b
    Example:
      ebbmq queues pause orders
    """
    with session.open() as broker:
        session.require_queue(broker, name)
        broker.pause(name)
    _done(session, name, "paused")


@queues.command(short_help="Deliver again after a pause.")
@click.argument("name")
@anywhere_options
@pass_session
def resume(session: Session, name: str) -> None:
    """Deliver messages of the queue NAME again after a pause.

    \b
    Example:
      ebbmq queues resume orders
    """
    with session.open() as broker:
        session.require_queue(broker, name)
        broker.resume(name)
    _done(session, name, "resumed")


@queues.command(short_help="Send dead messages back to work.")
@click.argument("name")
@click.option("--to", metavar="QUEUE", help="Where to; the queue each came from unless given.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second.")
@anywhere_options
@pass_session
def redrive(session: Session, name: str, to: str | None, rate: float | None) -> None:
    """Move the messages of the dead queue NAME back to where they came from.

    \b
    Example:
      ebbmq queues redrive orders.dead --rate 50
    """
    with session.open() as broker:
        session.require_queue(broker, name)
        if to is not None:
            session.require_queue(broker, to)
        with session.progress(counted=False) as progress:
            progress.add_task(f"redriving {name}", total=None)
            moved = broker.redrive(name, to=to, rate=rate)
        left = broker.stats(name)["depth"]["ready"]
    _done(session, name, "redriven", moved)
    if left and to is None:
        session.note(
            f"{name} still has {show_count(left, 'message')}; what does not say where it came from "
            "goes with --to"
        )


def _done(session: Session, name: str, outcome: str, count: int | None = None) -> None:
    if session.as_json:
        result: dict[str, object] = {"queue": name, "outcome": outcome}
        session.show_json(result if count is None else {**result, "messages": count})
    else:
        session.say(
            f"{name}: {outcome}" + ("" if count is None else f" {show_count(count, 'message')}")
        )
