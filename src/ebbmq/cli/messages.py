"""Messages at the command line: the options that make them, and how they are shown."""

from __future__ import annotations

import base64
import sys
from typing import IO, TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import click
import msgspec

from ebbmq import limits
from ebbmq.cli.values import duration_ms, pair, show_count, show_duration
from ebbmq.errors import InvalidMessage
from ebbmq.model import LEVELS, Level, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ebbmq.cli.session import Session
    from ebbmq.model import Lease, Peeked, Receipt

BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 4 * limits.MIB
IDS_SHOWN: Final = 10

F = TypeVar("F", bound="Callable[..., Any]")


class MessageOptions(TypedDict):
    """What `message_options` adds to a command."""

    texts: tuple[str, ...]
    files: tuple[IO[bytes], ...]
    importance: int | None
    ttl_ms: int | None
    decay_rate: float | None
    delay_ms: int
    headers: tuple[tuple[str, str], ...]
    message_id: str | None
    kind: str
    key: str | None
    store: str | None
    replicas: int | None
    durable: bool
    confirm: Level


_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.argument("texts", nargs=-1, metavar="[TEXT... | -]"),
    click.option(
        "--file",
        "files",
        multiple=True,
        type=click.File("rb"),
        help="A file whose whole content is one message; repeat for more, - is stdin.",
    ),
    click.option(
        "--importance", type=int, metavar="1..10", help="10 is most important [queue's default]."
    ),
    click.option(
        "--ttl", "ttl_ms", type=duration_ms, help="How long it is of use: 500ms, 30s, 5m, 2h, 7d."
    ),
    click.option(
        "--decay-rate",
        type=float,
        metavar="0..1",
        help="Share of its importance lost over the TTL (or the queue's decay unit).",
    ),
    click.option(
        "--delay",
        "delay_ms",
        type=duration_ms,
        default="0ms",
        help="Deliver no sooner than after this.",
    ),
    click.option(
        "--header", "headers", multiple=True, type=pair, help="A header; repeat for more."
    ),
    click.option(
        "--id",
        "message_id",
        metavar="ID",
        help="Your own id: publishing it again within 5 minutes stores nothing new.",
    ),
    click.option(
        "--type",
        "kind",
        metavar="TYPE",
        default="BYTE",
        show_default=True,
        help="What the body is, such as TEXT: rules know it as TYPE.",
    ),
    click.option(
        "--key",
        metavar="KEY",
        help="Messages of one key go to one partition; rules know it as ROUTING_KEY.",
    ),
    click.option(
        "--store",
        metavar="DEVICE",
        help="The device you would like it on; rules know it as STORE.",
    ),
    click.option(
        "--replicas",
        type=int,
        metavar=f"1..{limits.REPLICAS_MAX}",
        help="How many copies to keep, on distinct failure domains.",
    ),
    click.option(
        "--durable/--not-durable",
        default=True,
        show_default=True,
        help="Whether it is to survive a restart.",
    ),
    click.option(
        "--confirm",
        type=click.Choice(LEVELS),
        default="synced",
        show_default=True,
        help="Return when the message is in memory, written (survives a crash of the process) "
        "or synced (survives a power cut).",
    ),
)


def message_options(command: F) -> F:
    """The arguments and options that describe messages to publish."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def batches(options: MessageOptions) -> Iterator[list[Message]]:
    """The messages the options describe, in batches of a publish call's size.

    Raises:
        click.UsageError: nothing to publish, or one id for several messages.
        InvalidMessage: a value is outside its limits.
    """
    texts, files = options["texts"], options["files"]
    if not texts and not files:
        raise click.UsageError(
            "nothing to publish: give the TEXT of each message, - for one message per line of "
            "stdin, or --file PATH"
        )
    if options["message_id"] is not None and (len(texts) + len(files) > 1 or "-" in texts):
        raise click.UsageError("--id names one message: publish the others without it")
    headers = dict(options["headers"]) or None
    batch: list[Message] = []
    batch_bytes = 0
    for body in _bodies(texts, files):
        batch.append(
            Message(
                body,
                importance=options["importance"],
                ttl_ms=options["ttl_ms"],
                decay_rate=options["decay_rate"],
                delay_ms=options["delay_ms"],
                headers=headers,
                id=options["message_id"],
                type=options["kind"],
                key=options["key"],
                store=options["store"],
                replicas=options["replicas"],
                durable=options["durable"],
            )
        )
        batch_bytes += len(body)
        if len(batch) >= BATCH_MESSAGES or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _bodies(texts: Sequence[str], files: Sequence[IO[bytes]]) -> Iterator[bytes]:
    for text in texts:
        if text == "-":
            yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        else:
            yield text.encode("utf-8", "surrogateescape")
    yield from map(_body_of, files)


def _body_of(file: IO[bytes]) -> bytes:
    # One byte above the limit is enough to be refused; a device file must not fill the RAM.
    body = file.read(limits.BODY_BYTES_MAX + 1)
    if len(body) > limits.BODY_BYTES_MAX:
        raise InvalidMessage(
            f"{file.name} is larger than a body may be: {limits.BODY_BYTES_MAX:,} bytes",
            "store it elsewhere and publish a reference",
        )
    return body


def publish_all(
    session: Session,
    target: str,
    options: MessageOptions,
    publish: Callable[[list[Message]], dict[str, list[Receipt]]],
) -> dict[str, list[Receipt]]:
    """Publish what the options describe, with a progress bar; the receipts by queue."""
    receipts: dict[str, list[Receipt]] = {}
    with session.progress() as progress:
        task = progress.add_task(f"publishing to {target}", total=None)
        for batch in batches(options):
            for queue, confirmed in publish(batch).items():
                receipts.setdefault(queue, []).extend(confirmed)
            progress.advance(task, len(batch))
    return receipts


def show_receipts(session: Session, queue: str, receipts: list[Receipt], confirm: str) -> None:
    """The ids, as many as one can take in, and how many there are."""
    for receipt in receipts[:IDS_SHOWN]:
        note = " (published before; nothing new is stored)" if receipt.duplicate else ""
        session.say(f"{receipt.id}{note}")
    hidden = len(receipts) - IDS_SHOWN
    if hidden > 0:
        session.say(f".. and {hidden:,} more, the last is {receipts[-1].id}")
    session.note(f"{show_count(len(receipts), 'message')} to {queue}, {confirm}")


def as_json(message: Lease | Peeked) -> dict[str, Any]:
    """A message as one JSON object: `text` where the body is text, else `body_b64`."""
    fields: dict[str, Any] = msgspec.structs.asdict(message) | {"kept": message.as_kept}
    body, fields["headers"] = fields.pop("body"), dict(message.headers)
    try:
        return {"id": fields.pop("id"), "text": body.decode(), **fields}
    except UnicodeDecodeError:
        return {"id": message.id, "body_b64": base64.b64encode(body).decode(), **fields}


def write_body(message: Lease | Peeked) -> None:
    """The body as it is, and a line end if it has none."""
    sys.stdout.flush()
    stdout = sys.stdout.buffer
    stdout.write(message.body)
    if not message.body.endswith(b"\n"):
        stdout.write(b"\n")
    stdout.flush()


def show_messages(session: Session, messages: Iterable[Peeked], now_ms: int) -> None:
    """A table of messages, head of the queue first."""
    session.show_table(
        ("ID", "STATE", ">IMPORTANCE", ">NOW", ">AGE", ">TTL", ">ATTEMPT", ">BYTES", "BODY"),
        (
            (
                message.id,
                message.state,
                message.importance,
                f"{message.current_importance:.1f}",
                show_duration(max(0, now_ms - message.enqueued_at_ms)),
                show_duration(message.ttl_ms),
                message.attempt,
                len(message.body),
                excerpt(message.body),
            )
            for message in messages
        ),
    )


def excerpt(body: bytes, length: int = 48) -> str:
    """The beginning of a body on one printable line."""
    text = body[: length * 4].decode("utf-8", "replace")
    line = "".join(char if char.isprintable() else "·" for char in text)
    return line if len(line) <= length and len(body) <= length * 4 else line[: length - 2] + ".."
