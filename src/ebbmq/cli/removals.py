"""`ebbmq removals` and `ebbmq why`: what left without an ack, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from ebbmq.cli.session import Session, anywhere_options, pass_session, wall_ms
from ebbmq.cli.values import duration_ms, show_bytes, show_count, show_duration, show_instant
from ebbmq.errors import InvalidMessage, UnknownQueue
from ebbmq.model import REASON_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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

    A queue that was deleted can be asked about, too.

    \b
    Examples:
      ebbmq removals orders --since 1h
      ebbmq removals orders --reason stale --json
    """
    with session.open() as broker:
        since = None if since_ms is None else wall_ms() - since_ms
        try:
            found = list(broker.removals(queue, reason=reason, since_ms=since))
        except UnknownQueue:
            # It says how to make one; a queue that was deleted has removals all the same.
            session.require_queue(broker, queue)
            raise
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

    Of a message that is there: every copy, how many there should be, and each decision about them
    with its reason, also those before the last start. Of one that left: when and why, and which
    devices are yet to forget it. An id that was never given out is an error.

    \b
    Examples:
      ebbmq why 1-2a
      ebbmq why 1-2a --url http://127.0.0.1:8080 --json
    """
    with session.open() as broker:
        answer = broker.why(message_id)
    if session.as_json:
        session.show_json(answer)
    if answer["state"] == "unknown":
        raise InvalidMessage(
            f"no message {message_id} was ever published to {session.place}",
            "check the id, and with --data that this is the right directory",
        )
    if session.as_json:
        return
    hidden = set(_ABSENT).intersection(name for name, value in answer.items() if not value)
    session.show_fields(
        {
            name.replace("_", " ").removesuffix(" ms"): _show_value(name, value)
            for name, value in answer.items()
            if name not in hidden and name != "decisions_since_ms"
        }
    )
    _hint(session, answer)


def _hint(session: Session, answer: dict[str, Any]) -> None:
    """What to do next, where it is not plain."""
    if answer.get("moved_to"):
        moved = answer["moved_to"]
        session.note(f"it went on as {moved} in another queue: ebbmq why {moved}")
    if answer.get("damaged"):
        session.note("its body cannot be read: ebbmq doctor says what is wrong with the directory")
    since_ms = answer.get("decisions_since_ms")
    if since_ms is not None and answer.get("enqueued_at_ms", 0) < since_ms:
        session.note(f"decisions before {show_instant(since_ms)} are not on record any more")


def _decision(told: dict[str, Any]) -> str:
    return f"{show_instant(told['at_ms'])}  {told['text']}"


def _pinned(told: dict[str, Any]) -> str:
    place = f" on tier {told['tier']}" if told["tier"] else ""
    until = show_instant(told["until_ms"])
    target = "1 copy" if told["target"] == 1 else f"{told['target']} copies"
    return f"to {target}{place} until {until}, by plan {told['run']}"


def _names(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "-"


def _lines(told: Iterable[str], otherwise: str = "-") -> str:
    return "\n".join(told) or otherwise


def _timing(told: Any) -> str:
    node, attempt, duration_ms, outcome = msgspec.to_builtins(told)
    return f"attempt {attempt} on {node}: {outcome} after {show_duration(duration_ms)}"


#: Not worth a line where there is nothing to say of it.
_ABSENT: Final = ("headers", "latency_history", "privileged", "damaged", "moved_to", "pinned")
#: Nothing was decided, or it is so long ago that the record of it is gone.
_UNDECIDED: Final = "none on record: none is made where no rule is true and it stays in the log"
#: What is told of a message in more than a word.
_SENTENCES: Final[dict[str, Callable[[Any], str]]] = {
    "copies": _names,
    "removals_waiting": _names,
    "decay_rate": "{:g}".format,
    "bytes": show_bytes,
    "headers": lambda told: _lines(f"{name}: {value}" for name, value in told.items()),
    "latency_history": lambda told: _lines(map(_timing, told)),
    "privileged": lambda told: "yes" if told else "no",
    "damaged": lambda told: "yes" if told else "no",
    "decisions": lambda told: _lines(map(_decision, told), _UNDECIDED),
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
