"""`ebbmq consume`: take messages, print them or run a command on each, and settle them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Final, TypedDict

import click

from ebbmq.cli import messages
from ebbmq.cli.session import Session, anywhere_options, pass_session
from ebbmq.cli.values import duration_ms, show_count
from ebbmq.errors import ClientError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from ebbmq.cli.session import Verbs
    from ebbmq.model import Lease, Peeked, QueueSpec

PRINT_BATCH: Final = 100
#: How long one wait for messages lasts while following; short enough for Ctrl-C to feel prompt.
FOLLOW_WAIT_MS: Final = 500


class ConsumeOptions(TypedDict):
    """The options of `ebbmq consume`."""

    count: int | None
    ack: bool
    follow: bool
    wait_ms: int
    command: str | None


@click.command(short_help="Take messages: print them or run a command on each.")
@click.argument("queue")
@click.option(
    "--count",
    type=click.IntRange(min=0),
    help="How many; 0 is all that is there. [1, or no end with --follow]",
)
@click.option(
    "--ack/--peek", default=True, show_default=True, help="Take them for good, or only look."
)
@click.option("--follow", is_flag=True, help="Go on with messages as they come, until Ctrl-C.")
@click.option("--wait", "wait_ms", type=duration_ms, default="0ms", help="Wait for the first.")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run CMD for each message with the body on its stdin; exit code 0 acks, others retry.",
)
@anywhere_options
@pass_session
def consume(session: Session, queue: str, **options: Unpack[ConsumeOptions]) -> None:
    """Take messages from QUEUE in order of decayed importance, print each body, then ack.

    A message is acked only after it was printed, or after CMD succeeded; while CMD runs its lease
    is extended. CMD is not given to a shell (use: sh -c '..') and sees EBBMQ_ID, EBBMQ_QUEUE,
    EBBMQ_IMPORTANCE and EBBMQ_ATTEMPT. With --json each message is one object on one line.

    \b
    Examples:
      ebbmq consume orders --count 10
      ebbmq consume orders --follow --exec './handle-order'
    """
    with session.open() as broker:
        spec = session.require_queue(broker, queue)
        if not options["ack"]:
            _look(session, broker, queue, options)
            return
        settle = _Settle(session, broker, spec, options["command"])
        with _stop_on_signal() as stop:
            for leases in _batches(broker, queue, options, stop):
                settle(leases)
        _conclude(session, broker, queue, settle)


def _look(session: Session, broker: Verbs, queue: str, options: ConsumeOptions) -> None:
    if options["follow"] or options["command"]:
        raise click.UsageError("--peek only looks: it goes with neither --follow nor --exec")
    count = options["count"]
    everything = broker.stats(queue)["depth"]["ready"]
    for message in broker.peek(queue, 1 if count is None else count or max(1, everything)):
        _show(session, message)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Ctrl-C ends the work between two messages, what was handled acked; a second one at once."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _batches(
    broker: Verbs, queue: str, options: ConsumeOptions, stop: threading.Event
) -> Iterator[list[Lease]]:
    """Leases until told to stop, the count is reached, or nothing is left and nobody follows."""
    count = options["count"]
    if count is None:
        count = 0 if options["follow"] else 1
    size = 1 if options["command"] else PRINT_BATCH
    taken = 0
    wait_ms = options["wait_ms"]
    while not stop.is_set() and (count == 0 or taken < count):
        leases = broker.lease(
            queue,
            count=min(size, count - taken) if count else size,
            wait_ms=FOLLOW_WAIT_MS if options["follow"] else wait_ms,
        )
        if leases:
            yield leases
            taken += len(leases)
        elif not options["follow"]:
            return
        wait_ms = 0


def _show(session: Session, message: Lease | Peeked) -> None:
    if session.as_json:
        session.show_json_line(messages.as_json(message))
    else:
        messages.write_body(message)


class _Settle:
    """Works through leases: acks what was handled, gives back what was not."""

    def __init__(
        self, session: Session, broker: Verbs, spec: QueueSpec, command: str | None
    ) -> None:
        self.session = session
        self.broker = broker
        self.spec = spec
        self.command = _split(command) if command is not None else None
        self.acked = 0
        self.retried = 0
        #: Failures after which no other attempt is made.
        self.last = 0

    def __call__(self, leases: list[Lease]) -> None:
        waiting = [lease.token for lease in leases]
        handled: list[str] = []
        try:
            for lease in leases:
                if self.command is None:
                    _show(self.session, lease)
                    handled.append(lease.token)
                elif self._run(self.command, lease):
                    handled.append(lease.token)
                else:
                    lost = self._quietly(self.broker.retry, [lease.token])
                    self._count_failed(lease, is_lost=bool(lost))
                waiting.remove(lease.token)
        finally:
            if handled:
                self.acked += len(handled) - self._quietly(self.broker.ack, handled)
            if waiting:
                self._quietly(self.broker.release, waiting)

    def _count_failed(self, lease: Lease, *, is_lost: bool) -> None:
        if self._is_last(lease) and not is_lost:
            self.last += 1
        else:
            self.retried += 1

    def _is_last(self, lease: Lease) -> bool:
        return 0 < self.spec.failures_max <= lease.failures + 1

    def _what_follows(self, lease: Lease) -> str:
        if not self._is_last(lease):
            return "will be retried"
        where = f"goes to {self.spec.dead_queue}" if self.spec.dead_queue else "is removed"
        return f"that was the last of {show_count(self.spec.failures_max, 'attempt')}: it {where}"

    def _quietly(self, verb: Callable[[str, list[str]], object], tokens: list[str]) -> int:
        """Apply the verb; leases lost meanwhile are said, not fatal. Returns how many."""
        try:
            verb(self.spec.name, tokens)
        except LeaseLost as lost:
            self.session.note(
                f"{show_count(len(lost.tokens), 'lease')} ran out before the work was done; "
                "delivered again"
            )
            return len(lost.tokens)
        return 0

    def _run(self, command: list[str], lease: Lease) -> bool:
        """Run the command on one message, extending the lease as long as it takes."""
        environment = {
            "EBBMQ_ID": lease.id,
            "EBBMQ_QUEUE": self.spec.name,
            "EBBMQ_IMPORTANCE": str(lease.importance),
            "EBBMQ_ATTEMPT": str(lease.attempt),
        }
        try:
            process = subprocess.Popen(  # noqa: S603  # the user's own command, no shell
                command, stdin=subprocess.PIPE, env={**os.environ, **environment}
            )
        except OSError as error:
            raise ClientError(
                f"cannot run {command[0]}: {error.strerror}",
                "check the path and that it is executable; for shell syntax: --exec \"sh -c '..'\"",
                code="command_failed",
            ) from error
        extend_every_s = self.spec.lease_timeout_ms / 3_000
        body: bytes | None = lease.body
        with process:
            try:
                while True:
                    try:
                        process.communicate(body, timeout=extend_every_s)
                        break
                    except subprocess.TimeoutExpired:
                        body = None
                        self._quietly(self._extend, [lease.token])
            except BaseException:
                process.terminate()
                raise
        if process.returncode != 0:
            follows = self._what_follows(lease)
            self.session.note(f"{lease.id}: exit code {process.returncode}, {follows}")
        return process.returncode == 0

    def _extend(self, queue: str, tokens: list[str]) -> None:
        self.broker.extend(queue, tokens, self.spec.lease_timeout_ms)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--exec {command!r}: {error}") from error
    if not words:
        raise click.UsageError("--exec needs a command")
    return words


def _conclude(session: Session, broker: Verbs, queue: str, settle: _Settle) -> None:
    stats = broker.stats(queue)
    depth = {state: n for state, n in stats["depth"].items() if n}
    left = ", ".join(f"{n:,} {state}" for state, n in depth.items()) or "empty"
    if settle.acked or settle.retried or settle.last:
        failed = f", {settle.retried:,} to be retried" if settle.retried else ""
        failed += f", {settle.last:,} failed for the last time" if settle.last else ""
        session.note(f"{show_count(settle.acked, 'message')} acked{failed}; {queue} is now: {left}")
    elif stats["paused"]:
        resume = f"ebbmq queues resume {shlex.quote(queue)}{session.flags()}"
        session.note(f"{queue} is paused and delivers nothing ({left}); {resume}")
    else:
        session.note(f"nothing ready in {queue} ({left})")
