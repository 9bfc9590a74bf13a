"""`ebbmq pipeline report | history`: what the runs found, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.spark import lake_option, open_lake, require_spark, spark_options, spark_settings
from ebbmq.cli.values import show_duration, show_instant

if TYPE_CHECKING:
    from ebbmq.feed.runs import Record


@click.command(short_help="A page with charts of the whole fleet.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the page; reports/latest.html of the lake unless given.",
)
@spark_options
@lake_option
@common_options
@pass_session
def report(session: Session, /, **options: Any) -> None:
    """Draw the report anew: one HTML page that needs nothing else.

    Backlog by age and importance, bytes and cost by tier, stale and dead letters by reason,
    latencies, what the last run plans, and what brokers made of the last plan.

    \b
    Example:
      ebbmq pipeline report --lake /var/lib/ebbmq-lake --out report.html
    """
    require_spark("the pipeline")
    from ebbmq_spark.jobs import page, reporting, running  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import spark_session  # noqa: PLC0415

    lake = open_lake(options)
    lake.require()
    with session.progress(counted=False) as bar:
        bar.add_task("drawing", total=None)
        with spark_session(spark_settings(options), "ebbmq report") as spark:
            told = running.figures(spark, lake)
    drawn = page.html(told).encode()
    if options["out"] is None:
        lake.replace(reporting.LATEST, drawn)
        out = f"{options['lake'].rstrip('/')}/{reporting.LATEST}"
    else:
        out = str(options["out"])
        options["out"].write_bytes(drawn)
    if session.as_json:
        session.show_json({"report": out})
    else:
        session.say(f"The report: {out}")


@click.command(short_help="The runs that were begun, and what came of them.")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@lake_option
@common_options
@pass_session
def history(session: Session, /, *, last: int, **options: Any) -> None:
    """Show the last runs of the pipeline on a lake, the newest last; needs neither Spark nor Java.

    One that has not ended is at work, or was killed and has no effect.

    \b
    Example:
      ebbmq pipeline history --lake /var/lib/ebbmq-lake
    """
    from ebbmq_spark.jobs import history as runs  # noqa: PLC0415  # of its own package

    found = runs.read(open_lake(options))
    for error in found.refused.values():
        session.note(f"attention: {error.detail}; {error.action}")
    every = [*found.records, *found.begun]
    records = sorted(every, key=lambda each: each.started_at_ms)[-last:]
    if session.as_json:
        session.show_json([msgspec.to_builtins(each) for each in records])
        return
    if not records:
        session.say(f"no run yet; the first one: ebbmq pipeline run --lake {options['lake']}")
        return
    lacking = [name for name in ("room", "money") if any(_left_out(each, name) for each in records)]
    session.show_table(
        ("RUN", "WHAT", "WHEN", ">TOOK", ">EVENTS", ">REJECTED", ">LOOKED AT", ">OF", ">ACTIONS",
         *(f">NO {each.upper()}" for each in lacking), ">REFUSED"),
        (
            (
                each.run,
                f"{each.kind}, full" if each.full else each.kind,
                show_instant(each.started_at_ms),
                show_duration(each.ended_at_ms - each.started_at_ms)
                if each.ended_at_ms
                else "not ended",
                f"{each.events:,}",
                f"{each.rejected:,}",
                f"{each.looked_at:,}",
                f"{each.messages:,}",
                f"{sum(action.count for action in each.actions.values()):,}",
                *(f"{_left_out(each, name):,}" for name in lacking),
                f"{len(each.refused):,}",
            )
            for each in records
        ),
    )  # fmt: skip


def _left_out(record: Record, lacking: str) -> int:
    found = record.left_out.get(lacking)
    return 0 if found is None else found.count
