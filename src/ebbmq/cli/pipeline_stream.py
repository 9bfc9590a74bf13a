"""`ebbmq pipeline stream`: what happens, counted while it happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.spark import lake_option, open_lake, require_spark, spark_options, spark_settings
from ebbmq.cli.values import duration_ms, show_count


@click.command(short_help="Keep profiles up to date while brokers write.")
@click.option("--once", is_flag=True, help="Read what is there, then end.")
@click.option(
    "--every",
    "every_ms",
    type=duration_ms,
    default="10s",
    show_default=True,
    help="How often to look for what is new.",
)
@click.option(
    "--files-per-batch",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="A bound of what one batch reads.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where it keeps its place; _state/stream of a lake that is a directory unless given.",
)
@spark_options
@lake_option
@common_options
@pass_session
def stream(session: Session, /, **options: Any) -> None:
    """Follow the events of a lake: counts, reads and latencies by queue, node and hour.

    Until Ctrl-C, unless --once is given. Every event is counted once, also after kill -9: the next
    stream goes on where this one was.

    \b
    Examples:
      ebbmq pipeline stream --lake /var/lib/ebbmq-lake
      ebbmq pipeline stream --lake /var/lib/ebbmq-lake --once
      ebbmq pipeline stream --lake s3://bucket/lake --state /var/lib/ebbmq-stream
    """
    require_spark("the pipeline")
    from ebbmq_spark.jobs import stream as job  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import spark_session  # noqa: PLC0415

    arguments = job.Arguments(
        open_lake(options),
        once=options["once"],
        every_ms=options["every_ms"],
        files_per_batch=options["files_per_batch"],
        state=options["state"],
    )
    with job.alone(arguments) as follow, session.progress(counted=False) as bar:
        task = bar.add_task("starting Spark", total=None)

        def told(batch: int, rows: int) -> None:
            bar.update(task, description=f"batch {batch}, {show_count(rows, 'event')}")

        with spark_session(spark_settings(options), "ebbmq stream") as spark:
            record = follow(spark, told)
    if session.as_json:
        session.show_json(msgspec.to_builtins(record))
    else:
        session.say(
            f"{show_count(record.events, 'event')} read, {record.rejected:,} rejected, "
            f"{record.duplicates:,} told before"
        )
