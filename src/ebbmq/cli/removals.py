"""`ebbmq removals` and `ebbmq why`: what left without an ack, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from ebbmq.cli.session import Session, anywhere_options, pass_session, wall_ms
from ebbmq.cli.values import duration_ms, show_bytes, show_count, show_duration, show_instant
from ebbmq.errors import InvalidMessage
from ebbmq.model import REASON_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ebbmq.model import Removal


@click.command(short_help="What left a queue without an ack, and why.")
@click.argument("queue")
@click.option("--reason", type=click.Choice(list(REASON_TEXT.values())), help="Only these.")
@click.option("--since", "since_ms", type=duration_ms, help="Only the last 1h, 7d, ..")
@click.option(
    "--count", type=click.IntRange(min=1), default=50, show_default=True, help="The newest so many."
)
@anywhere_options
@pass_session
def removals(
    session: Session, queue: str, reason: str | None, since_ms: int | None, count: int
) -> None:
    """Show the messages that left QUEUE other than by ack, newest last.

    \b
    Examples:
      ebbmq removals orders --since 1h
      ebbmq removals orders --reason stale --json
    """
    with session.open() as broker:
        session.require_queue(broker, queue)
        found = list(
            broker.removals(
                queue, reason=reason, since_ms=None if since_ms is None else wall_ms() - since_ms
            )
        )
    if session.as_json:
        session.show_json(found[-count:])
    elif found:
        _show_removals(session, found, count)
    else:
        session.note(f"nothing left {queue} other than by ack")


def _show_removals(session: Session, found: Sequence[Removal], count: int) -> None:
    session.show_table(
        ("ID", "REASON", "WHEN", ">AGE", ">IMPORTANCE", ">THEN", ">FAILURES", ">BYTES", "MOVED TO"),
        (
            (
                removal.id,
                removal.reason,
                show_instant(removal.at_ms),
                show_duration(max(0, removal.at_ms - removal.enqueued_at_ms)),
                removal.importance,
                f"{removal.current_importance:.1f}",
                removal.failures,
                show_bytes(removal.bytes),
                removal.moved_to or "-",
            )
            for removal in found[-count:]
        ),
    )
    by_reason = Counter(removal.reason for removal in found).most_common()
    hidden = f", the newest {count:,} shown" if len(found) > count else ""
    session.note(
        f"{show_count(len(found), 'removal')}{hidden}: "
        + ", ".join(f"{n:,} {reason}" for reason, n in by_reason)
    )


@click.command(short_help="Where a message is, or why it left.")
@click.argument("message_id", metavar="ID")
@anywhere_options
@pass_session
def why(session: Session, message_id: str) -> None:
    """Say where the message ID is, or why it left.

    \b
    Example:
      ebbmq why 1-2a
    """
    with session.open() as broker:
        answer = broker.why(message_id)
    if answer["state"] == "unknown":
        raise InvalidMessage(
            f"no message {message_id} was ever published to {session.place}",
            "check the id, and with --data that this is the right directory",
        )
    if session.as_json:
        session.show_json(answer)
    else:
        session.show_fields({name: _show_value(name, value) for name, value in answer.items()})


def _decision(told: dict[str, Any]) -> str:
    parts = (show_instant(told["at_ms"]), told["event"], told["device"], told["reason"])
    return " ".join(part for part in parts if part)


def _pinned(told: dict[str, Any]) -> str:
    place = f" on tier {told['tier']}" if told["tier"] else ""
    until = show_instant(told["until_ms"])
    return f"to {told['target']} copies{place} until {until}, by plan {told['run']}"


def _names(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "-"


#: What is told of a message in more than a word.
_SENTENCES: Final[dict[str, Callable[[Any], str]]] = {
    "copies": _names,
    "removals_waiting": _names,
    "decay_rate": "{:g}".format,
    "decisions": lambda told: "\n".join(map(_decision, told)) or "-",
    "pinned": _pinned,
    "moving": lambda told: f"to {_names(told['to'])}, from {_names(told['from'])}",
}


def _show_value(name: str, value: Any) -> object:
    if value is None:
        return "-"
    if name in _SENTENCES:
        return _SENTENCES[name](value)
    if name.endswith("_at_ms") or name in {"at_ms", "deadline_ms"}:
        return show_instant(value)
    if name.endswith("_ms"):
        return show_duration(value)
    return f"{value:.2f}" if isinstance(value, float) else value
