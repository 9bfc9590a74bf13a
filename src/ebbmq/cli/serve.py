"""`ebbmq serve`: the broker on the network."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

import click

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.errors import ClientError
from ebbmq.feed import layout
from ebbmq.node import config as configuration
from ebbmq.node.server.example import FIRST_QUEUE

if TYPE_CHECKING:
    from typing import Unpack

    from ebbmq.node.config import Config
    from ebbmq.node.server.serving import Started


class HttpOptions(TypedDict):
    """Settings of [http] that the command line can set."""

    host: str | None
    port: int | None
    tls_certificate: str | None
    tls_key: str | None
    insecure_plain_http: bool | None


@click.command(short_help="Serve the queues over HTTP.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings, as TOML; deploy/ebbmq.toml shows all of them.",
)
@click.option("--host", help="Address to listen on; 127.0.0.1 unless set.")
@click.option("--http-port", "port", type=int, help="Port to listen on; 8080 unless set, 0: any.")
@click.option("--tls-certificate", metavar="FILE", help="PEM file, with the chain.")
@click.option("--tls-key", metavar="FILE", help="PEM file of the certificate's key.")
@click.option(
    "--insecure-plain-http",
    is_flag=True,
    default=None,
    help="Listen beyond this machine without TLS, where something in front encrypts.",
)
@click.option(
    "--example",
    "with_example",
    is_flag=True,
    help="Put an example into a new data directory; one that has it gets new photos to plan for.",
)
@common_options
@pass_session
def serve(
    session: Session, *, file: Path | None, with_example: bool, **options: Unpack[HttpOptions]
) -> None:
    """Serve the data directory until SIGTERM or Ctrl-C, which let running requests end.

    Prints a line that starts with `ready` once it takes connections. SIGHUP reads FILE again.

    \b
    Examples:
      ebbmq serve --example
      ebbmq serve --data /var/lib/ebbmq --config /etc/ebbmq.toml
    """
    set_here = {f"http.{name}": value for name, value in options.items() if value is not None}
    read = partial(_read, file or session.config, set_here)
    try:
        # Only this command needs what it brings in, and not every installation has it.
        from ebbmq.node.server.serving import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ClientError(
            f"the server is not installed: {error.name} is missing",
            "pip install 'ebbmq[server]'",
            code="not_installed",
        ) from error
    run(session.data, read, partial(_announce, session), with_example=with_example)


def _read(file: Path | None, options: dict[str, Any]) -> Config:
    """The settings of the file; what the command line said counts for more."""
    return configuration.changed(configuration.load(file), options)


def _announce(session: Session, started: Started) -> None:
    if session.as_json:
        session.show_json_line({"ready": started.urls})
        return
    click.echo(f"ready {' '.join(started.urls)}")
    for line in _first_steps(session, started):
        click.echo(line)


def _first_steps(session: Session, started: Started) -> list[str]:
    """What to do with the server, as commands that can be copied."""
    url, queues = started.urls[0], started.queues
    queue = FIRST_QUEUE if FIRST_QUEUE in queues or not queues else min(queues)
    token = '-H "Authorization: Bearer $TOKEN" ' if started.has_users else ""
    path = f"{url}/v1/queues/{quote(queue, safe='')}"
    message = '{"messages": [{"text": "hello", "importance": 9}]}'
    steps = {"look": f"{url}/"}
    if queue not in queues:
        steps["declare"] = f"curl -s {token}-X PUT {path} -d '{{}}'"
    steps["publish"] = f"curl -s {token}{path}/messages -d '{message}'"
    steps["lease"] = f"curl -s {token}{path}/leases -d '{{\"count\": 1}}'"
    let_in = " --token-file FILE" if started.has_users else ""
    steps["queues"] = f"{_ebbmq()} queues --url {url}{let_in}"
    if not started.has_users:
        steps["users"] = f"none, so this machine only; {_ebbmq()} users --help says how to add one"
    if started.lake is not None:
        lake = started.lake if "://" in started.lake else str(session.data / started.lake)
        steps["plans"] = f"made by Spark now and then: {_ebbmq()} pipeline history --lake {lake}"
        steps["report"] = f"{lake.rstrip('/')}/{layout.LATEST_REPORT}, once it has run"
    steps["data"] = f"{session.data}; stop with Ctrl-C"
    return [f"  {name:8} {step}" for name, step in steps.items()]


def _ebbmq() -> str:
    """This command as whoever started it would type it."""
    given = Path(sys.argv[0])
    return "ebbmq" if given.name != "ebbmq" or shutil.which("ebbmq") else str(given)
