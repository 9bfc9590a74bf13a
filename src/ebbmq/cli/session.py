"""What every command shares: the data directory or the server, and the way to print."""

from __future__ import annotations

import difflib
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ebbmq.cli.server import Server
from ebbmq.errors import ClientError, DirectoryInUse, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ebbmq.client.client import Client
    from ebbmq.model import QueueSpec
    from ebbmq.node.broker import Broker

    #: What a command works on: the verbs are the same.
    Verbs = Broker | Client

DATA_DEFAULT: Final = Path("ebbmq-data")
#: Piped tables are read by tools and editors: wide enough that no cell is cut.
PIPED_WIDTH: Final = 200

F = TypeVar("F", bound="Callable[..., Any]")


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


@dataclass
class Session:
    """One run of the command line."""

    chosen_data: Path | None = None
    #: Settings of the store: its devices and rules count wherever it is opened.
    config: Path | None = None
    server: Server = field(default_factory=Server)
    as_json: bool = False
    out: Console = field(default_factory=lambda: _console(stderr=False))
    err: Console = field(default_factory=lambda: _console(stderr=True))

    @property
    def data(self) -> Path:
        """The data directory: what `--data` said, else `./ebbmq-data`.

        Raises:
            click.UsageError: the command line names a server instead.
        """
        if self.server.url is not None:
            raise click.UsageError("this works on a data directory: give --data, not --url")
        return self.chosen_data or DATA_DEFAULT

    @property
    def place(self) -> str:
        """What to call the directory or the server in a sentence."""
        return str(self.data) if self.server.url is None else self.server.url

    def open(self, *, create: bool = False) -> Verbs:
        """The broker on the data directory, or a client of the server; only declaring makes one.

        Raises:
            click.UsageError: both were named.
            ClientError: there is nothing at the directory and the command would not make it.
        """
        if self.server.url is not None:
            if self.chosen_data is not None:
                raise click.UsageError("--data and --url exclude each other: name one of them")
            if self.config is not None:
                raise click.UsageError("--config goes with --data: a server has its own settings")
            return self.server.connect(self.note)
        self.server.check_unused()
        return self._open_directory(create=create)

    def _open_directory(self, *, create: bool) -> Broker:
        if not create and not is_store(self.data):
            what = "not a data directory" if self.data.exists() else "no such directory"
            raise ClientError(
                f"no queues in {self.data}: {what}",
                f"declare a queue first: ebbmq queues declare NAME{self.flags()}, "
                "or name the right directory with --data, or a server with --url",
                code="unknown_directory",
            )
        # A server is asked without a broker, which takes long to load.
        from ebbmq.node.broker import Broker  # noqa: PLC0415

        try:
            broker = Broker.open(self.data, self.config)
        except DirectoryInUse as error:
            raise DirectoryInUse(
                error.detail,
                "if that is ebbmq serve, name its address instead: --url http://127.0.0.1:8080; "
                "else stop it",
            ) from error
        # A command is over before the broker's first tick: what fell due meanwhile is due now.
        broker.engine.run_due()
        health = broker.health()
        for kind in ("problems", "damage", "devices", "feed"):
            for problem in health[kind]:
                self.note(f"attention: {problem}")
        self._note_missing(broker)
        return broker

    def _note_missing(self, broker: Broker) -> None:
        """Say which devices the store was used with and is not now."""
        from ebbmq.node.devices.identities import known_devices  # noqa: PLC0415  # as the broker

        if self.config is None and (known := known_devices(broker.engine.directory.path)):
            self.note(
                f"attention: this store has the devices {', '.join(known)}; "
                "name the file that declares them with --config"
            )

    def flags(self) -> str:
        """The options that name the directory or the server, as a hint must repeat them."""
        return self.data_flag() if self.server.url is None else self.server.flags()

    def data_flag(self) -> str:
        """` --data DIR` as a hint must repeat it, and `--config FILE`; nothing for a default."""
        told = (("data", self.chosen_data), ("config", self.config))
        return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in told if value)

    def require_queue(self, broker: Verbs, name: str) -> QueueSpec:
        """The queue's spec.

        Raises:
            UnknownQueue: no such queue; the action names the nearest one and how to declare it.
        """
        specs = {spec.name: spec for spec in broker.queues()}
        if name not in specs:
            raise UnknownQueue(
                f"no queue {name!r} in {self.place}",
                f"{did_you_mean(name, specs)}to make it: "
                f"ebbmq queues declare {shlex.quote(name)}{self.flags()}",
            )
        return specs[name]

    def say(self, text: str) -> None:
        """One line for people on stdout; nothing under `--json`."""
        if not self.as_json:
            self.out.print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        """One line beside the result, on stderr, so that pipes stay clean."""
        self.err.print(text, soft_wrap=True, style="dim")

    def show_json(self, value: object) -> None:
        """One JSON document on stdout."""
        click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2))

    def show_json_line(self, value: object) -> None:
        """One JSON object on a line of its own, for streams."""
        click.echo(msgspec.json.encode(value, enc_hook=str))

    def show_table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table; a column whose name starts with `>` is aligned to the right."""
        table = empty_table(columns)
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self.out.print(table)

    def show_fields(self, fields: dict[str, object]) -> None:
        """Names and values, one a line."""
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in fields.items():
            table.add_row(Text(name), Text(str(value)))
        self.out.print(table)

    def progress(self, *, counted: bool = True) -> Progress:
        """A progress bar on stderr that leaves no trace; silent where nobody watches."""
        columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
        if counted:
            columns.insert(2, MofNCompleteColumn())
        return Progress(
            *columns, console=self.err, transient=True, disable=not self.err.is_terminal
        )

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before destroying, where somebody sits there to answer."""
        if not yes and sys.stdin.isatty() and not self.as_json:
            click.confirm(question, abort=True, err=True)


def is_store(directory: Path) -> bool:
    """Whether a broker made this directory; opening another one would leave files in it."""
    return (directory / "store.json").is_file()


def has_files(directory: Path) -> bool:
    """Whether the directory exists and holds anything."""
    return directory.is_dir() and any(directory.iterdir())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'orders'? ` when a known name is near, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def wall_ms() -> int:
    """The wall clock in whole milliseconds."""
    return time.time_ns() // 1_000_000


pass_session = click.make_pass_decorator(Session, ensure=True)


def _set_data(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).chosen_data = value


def _set_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).config = value


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).as_json = True


def _set_server(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        setattr(ctx.ensure_object(Session).server, str(option.name), value)


def common_options(command: F) -> F:
    """`--data` and `--json`, which every command and group takes in any place."""
    return data_option(f"The data directory; ./{DATA_DEFAULT} unless given.")(json_option(command))


def json_option(command: F) -> F:
    """`--json`, for the session."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print JSON for programs instead of text for people.",
    )(command)


def data_option(text: str) -> Callable[[F], F]:
    """`--data`, for the session; the text says what counts without it."""
    return click.option(
        "--data",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        expose_value=False,
        callback=_set_data,
        help=text,
    )


def anywhere_options(command: F) -> F:
    """`common_options` and, instead of a directory, a server: `--url` and what goes with it."""
    path = click.Path(path_type=Path, dir_okay=False)
    for name, kind, text in (
        ("--ca-file", path, "The certificate an https server's was signed with, if no public one."),
        ("--token-file", path, "A file with the token that `ebbmq users add` printed."),
        ("--url", str, "A server instead of a directory, such as http://127.0.0.1:8080."),
    ):
        command = click.option(
            name,
            metavar=name.removeprefix("--").rpartition("-")[2].upper(),
            type=kind,
            expose_value=False,
            callback=_set_server,
            help=text,
        )(command)
    command = click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=_set_config,
        help="Settings of the store with --data, as TOML: its devices and rules.",
    )(command)
    return common_options(command)


def empty_table(columns: Sequence[str]) -> Table:
    """A table without rows; a column whose name starts with `>` is aligned to the right."""
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        collapse_padding=True,
    )
    for name in columns:
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
        )
    return table
