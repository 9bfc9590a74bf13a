"""`ebbmq`: the command line. One module per command; this one puts them together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

import click

from ebbmq.cli import fault
from ebbmq.cli.commands import Commands
from ebbmq.cli.session import Session, anywhere_options
from ebbmq.errors import EbbError
from ebbmq.speedups import is_compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES: Final = {
    "serve": "ebbmq.cli.serve",
    "demo": "ebbmq.cli.demo",
    "publish": "ebbmq.cli.publish",
    "consume": "ebbmq.cli.consume",
    "peek": "ebbmq.cli.peek",
    "queues": "ebbmq.cli.queues",
    "topics": "ebbmq.cli.topics",
    "users": "ebbmq.cli.users",
    "devices": "ebbmq.cli.devices",
    "rules": "ebbmq.cli.rules",
    "removals": "ebbmq.cli.removals",
    "why": "ebbmq.cli.removals",
    "pipeline": "ebbmq.cli.pipeline",
    "simulate": "ebbmq.cli.simulate",
    "backup": "ebbmq.cli.backup",
    "restore": "ebbmq.cli.backup",
    "doctor": "ebbmq.cli.doctor",
}


@click.group(
    commands=Commands(MODULES),
    invoke_without_command=True,
    context_settings={"max_content_width": 100},
)
@click.version_option(
    package_name="ebbmq",
    prog_name="ebbmq",
    message=f"%(prog)s, version %(version)s, {'partly in C' if is_compiled else 'all in Python'}",
)
@anywhere_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """EbbMQ: a message queue whose messages lose importance as they age.

    \b
    A first look:
      ebbmq demo
      ebbmq serve --example
      ebbmq queues declare orders
      ebbmq publish orders 'pay invoice 17' --importance 9
      ebbmq consume orders

    Exit codes: 0 done, 1 refused, 2 wrong usage, 3 storage failed, 4 the server does not answer
    (doctor has its own).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    session = Session()
    try:
        code = cli.main(given, prog_name="ebbmq", standalone_mode=False, obj=session)
    except (click.ClickException, click.Abort, EbbError, OSError) as error:
        # A command line that is wrong may not have been read as far as that.
        code = fault.report(error, as_json=session.as_json or "--json" in given)
    sys.exit(code)
