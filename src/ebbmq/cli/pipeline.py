"""`ebbmq pipeline`: what Spark makes of a fleet's lake; one module per command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ebbmq.cli.pipeline_apply import apply
from ebbmq.cli.pipeline_report import history, report
from ebbmq.cli.pipeline_run import plan, run
from ebbmq.cli.pipeline_stream import stream
from ebbmq.cli.session import common_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click import Command

COMMANDS: Sequence[Command] = (run, stream, plan, apply, report, history)


@click.group(short_help="Plans, rates and reports of a lake, on Spark.")
@common_options
def pipeline() -> None:
    """Make decisions for a whole fleet from what its brokers wrote into a lake.

    Brokers whose configuration names a lake ([feed], lake = "..") write it; see docs/pipeline.md.

    \b
    Examples:
      ebbmq pipeline run --lake /var/lib/ebbmq/lake
      ebbmq pipeline apply --url http://127.0.0.1:8080
      ebbmq pipeline history --lake /var/lib/ebbmq/lake
    """


for command in COMMANDS:
    pipeline.add_command(command)
