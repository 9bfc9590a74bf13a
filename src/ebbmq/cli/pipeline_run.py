"""`ebbmq pipeline run | plan`: decisions for the whole fleet."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.spark import lake_option, open_lake, require_spark, spark_options, spark_settings
from ebbmq.cli.values import duration_ms, money, show_bytes, show_count, show_duration
from ebbmq.feed import money as amounts
from ebbmq.feed.runs import not_read, nothing_planned

if TYPE_CHECKING:
    from ebbmq.feed.runs import Kind, Record


def _run_options(command: Any) -> Any:
    for option in (
        click.option("--full", is_flag=True, help="Look at everything, not only at what is due."),
        click.option(
            "--unbounded", is_flag=True, help="Plan as if every tier had room for everything."
        ),
        click.option(
            "--budget",
            type=money,
            help="What a month may cost with the plan, in the currency of cost_per_gib_month.",
        ),
        spark_options,
        lake_option,
    ):
        command = option(command)
    return command


@click.command(
    short_help="Check, count, recommend, plan and report.",
    context_settings={"auto_envvar_prefix": "EBBMQ_PIPELINE"},
)
@click.option(
    "--every",
    "every_ms",
    type=duration_ms,
    help="Run again so long after each run, until Ctrl-C or until one fails.",
)
@click.option("--parent", type=int, hidden=True, help="End with this process, which started it.")
@_run_options
@common_options
@pass_session
def run(session: Session, /, *, every_ms: int | None, parent: int | None, **options: Any) -> None:
    """Do everything from where the last run ended, once or every so often.

    Checks what brokers told since, counts it by queue and hour, recommends decay factors, plans
    copies and tiers within the room there is, and writes a report. Brokers take up plans and
    factors from the lake, or by `ebbmq pipeline apply`. A run that is killed changes nothing for
    the next one.

    \b
    Examples:
      ebbmq pipeline run --lake /var/lib/ebbmq-lake --every 10m
      ebbmq pipeline run --lake /mnt/lake --master spark://head:7077 --full
      ebbmq pipeline run --lake s3://bucket/lake --lake-option region=eu-central-1
    """
    if parent is not None:
        _end_with(parent)
    if every_ms is None:
        _run_once(session, options)
        return
    require_spark("the pipeline")
    from ebbmq_spark.lake import PipelineBusy  # noqa: PLC0415  # an extra

    while True:
        try:
            _run_once(session, options)
        except PipelineBusy as error:
            session.note(f"left to another: {error.detail}")
        time.sleep(every_ms / 1_000)


def _run_once(session: Session, options: dict[str, Any]) -> None:
    record = _carry_out(session, "run", options)
    if session.as_json:
        session.show_json_line(record)
    else:
        _show_run(session, record, options)


def _show_run(session: Session, record: Record, options: dict[str, Any]) -> None:
    after_all = f" ({record.recovered:,} came after all)" if record.recovered else ""
    session.say(
        f"run {record.run}: {show_count(record.events, 'event')} read, "
        f"{record.rejected:,} rejected, {record.missing:,} missing{after_all}, "
        f"{record.duplicates:,} told twice, {record.impossible:,} impossible"
    )
    _show_checks(session, record)
    _show_plan(session, record)
    session.say(f"The report: {options['lake'].rstrip('/')}/reports/latest.html")


def _show_checks(session: Session, record: Record) -> None:
    """What was wrong with events, by node, where something was."""
    wrong = {node: each for node, each in record.nodes.items() if not each.is_clean}
    if wrong:
        session.show_table(
            ("NODE", ">EVENTS", ">REJECTED", ">MISSING", ">CAME AFTER ALL", ">TWICE",
             ">IMPOSSIBLE"),
            (
                (
                    node or "not told", f"{each.events:,}", f"{each.rejected:,}",
                    f"{each.missing:,}", f"{each.recovered:,}", f"{each.duplicates:,}",
                    f"{each.impossible:,}",
                )
                for node, each in wrong.items()
            ),
        )  # fmt: skip


@click.command(short_help="Plan copies and tiers for the whole fleet.")
@_run_options
@common_options
@pass_session
def plan(session: Session, /, **options: Any) -> None:
    """Plan which copies to add, drop and move, from the last snapshot of each broker.

    Looks at messages that are due by their review, unless --full is given. Where room, or the
    money of --budget, is short, the most valuable come first.

    \b
    Examples:
      ebbmq pipeline plan --lake /var/lib/ebbmq-lake
      ebbmq pipeline plan --lake /var/lib/ebbmq-lake --budget 120
    """
    record = _carry_out(session, "plan", options)
    if session.as_json:
        session.show_json(msgspec.to_builtins(record))
        return
    _show_plan(session, record)


def _carry_out(session: Session, kind: Kind, options: dict[str, Any]) -> Record:
    require_spark("the pipeline")
    from ebbmq_spark.jobs import running  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import spark_session  # noqa: PLC0415

    arguments = running.Arguments(
        open_lake(options),
        full=options["full"],
        bounded=not options["unbounded"],
        budget=options["budget"],
    )
    settings = spark_settings(options)
    with running.alone(arguments, kind) as job, session.progress() as bar:
        task = bar.add_task("starting Spark", total=len(running.STAGES))

        def stage(doing: str) -> None:
            bar.update(task, description=doing, completed=running.STAGES.index(doing))

        with spark_session(settings, "ebbmq pipeline") as spark:
            record = job(spark, stage)
        _note(session, record)
        return record


def _note(session: Session, record: Record) -> None:
    for note in record.notes:
        session.note(f"attention: {note}")
    for refused, why in record.refused.items():
        session.note(f"attention: {not_read(refused, why)}")


def _end_with(parent: int) -> None:
    """End with the process that started this one, at once; Java is of one group with this."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def _show_plan(session: Session, record: Record) -> None:
    took = show_duration(record.ended_at_ms - record.started_at_ms)
    session.say(
        f"plan {record.run}: looked at {record.looked_at:,} of "
        f"{show_count(record.messages, 'message')} in {took}"
    )
    if record.actions:
        session.show_table(
            ("ACTION", ">MESSAGES", ">BYTES"),
            (
                (action.replace("_", " "), f"{each.count:,}", show_bytes(each.bytes))
                for action, each in sorted(record.actions.items())
            ),
        )
    elif not record.left_out:
        session.say(f"nothing to do: {nothing_planned(record)}")
    for lacking, each in sorted(record.left_out.items()):
        session.say(
            f"left out for want of {lacking}: {show_count(each.count, 'message')}, "
            f"{show_bytes(each.bytes)}"
        )
    of = "" if record.budget is None else f", of {amounts.show(record.budget)}"
    before, after = amounts.show(record.cost_before), amounts.show(record.cost_after)
    session.say(f"cost a month: {before} before, {after} after{of}")
