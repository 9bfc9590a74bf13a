"""`ebbmq pipeline run | plan`: decisions for the whole fleet, once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.spark import lake_option, open_lake, require_spark, spark_options, spark_settings
from ebbmq.cli.values import duration_ms, money, show_bytes, show_count, show_duration
from ebbmq.feed import money as amounts
from ebbmq.feed.attended import Errand, Outcome
from ebbmq.feed.runs import not_read, nothing_planned

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ebbmq.feed.runs import Kind, Record
    from ebbmq_spark.jobs.running import Job

HOLD_DEFAULT = "1h"


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
        click.option(
            "--hold",
            "hold_ms",
            type=duration_ms,
            default=HOLD_DEFAULT,
            show_default=True,
            help="How long the advice holds, from the snapshot on.",
        ),
        click.option(
            "--attended",
            is_flag=True,
            help="For who starts this as a child: options of the lake and of Spark are the first "
            "line of standard input, as JSON, this ends when it does, and one line of JSON says "
            "what came of it.",
        ),
        spark_options,
        lake_option,
    ):
        command = option(command)
    return command


@click.command(short_help="Check, count, recommend, plan and report, once.")
@_run_options
@common_options
@pass_session
def run(session: Session, /, **options: Any) -> None:
    """Do everything once, from where the last run ended.

    Checks what brokers told since, counts it by queue and hour, recommends decay factors, plans
    copies and tiers within the room there is, and writes a report. Brokers take up plans and
    factors from the lake, or by `ebbmq pipeline apply`. A run that is killed changes nothing for
    the next one.

    \b
    Examples:
      ebbmq pipeline run --lake /var/lib/ebbmq-lake
      ebbmq pipeline run --lake /mnt/lake --master spark://head:7077 --full
      ebbmq pipeline run --lake s3://bucket/lake --lake-option region=eu-central-1
    """
    record = _carry_out(session, "run", options)
    if options["attended"]:
        session.show_json_line(Outcome() if record is None else Outcome.of(record))
        return
    assert record is not None, "only who is attended leaves a run to another"
    if session.as_json:
        session.show_json(msgspec.to_builtins(record))
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
    assert record is not None, "a plan is left to nobody"
    if session.as_json:
        session.show_json(msgspec.to_builtins(record))
        return
    _show_plan(session, record)


def _carry_out(session: Session, kind: Kind, options: dict[str, Any]) -> Record | None:
    if options["attended"]:
        errand = _told_by_parent()
        options["lake_options"] = [*options["lake_options"], *errand.lake_options.items()]
        options["conf"] = [*options["conf"], *map("=".join, errand.conf.items())]
        _end_with_parent()
    require_spark("the pipeline")
    from ebbmq_spark.jobs import running  # noqa: PLC0415  # an extra
    from ebbmq_spark.session import spark_session  # noqa: PLC0415

    arguments = running.Arguments(
        open_lake(options),
        full=options["full"],
        bounded=not options["unbounded"],
        budget=options["budget"],
        hold_ms=options["hold_ms"],
    )
    settings = spark_settings(options)
    with contextlib.ExitStack() as turn, session.progress() as bar:
        job = _entered(turn, running.alone(arguments, kind), may_leave=options["attended"])
        if job is None:
            return None
        task = bar.add_task("starting Spark", total=len(running.STAGES))

        def stage(doing: str) -> None:
            bar.update(task, description=doing, completed=running.STAGES.index(doing))

        with spark_session(settings, "ebbmq pipeline") as spark:
            record = job(spark, stage)
        _note(session, record)
        return record


def _entered(
    turn: contextlib.ExitStack, alone: AbstractContextManager[Job], *, may_leave: bool
) -> Job | None:
    """Begin with a run; None if another is at work on the lake, and it may be left to it."""
    from ebbmq_spark.lake import PipelineBusy  # noqa: PLC0415  # an extra

    try:
        return turn.enter_context(alone)
    except PipelineBusy:
        if not may_leave:
            raise
        return None


def _note(session: Session, record: Record) -> None:
    for note in record.notes:
        session.note(f"attention: {note}")
    for refused, why in record.refused.items():
        session.note(f"attention: {not_read(refused, why)}")


def _told_by_parent() -> Errand:
    """Options that may be secrets: on the command line everybody would see them."""
    line = b""
    while not line.endswith(b"\n"):
        if not (some := os.read(0, 1)):
            raise SystemExit(1)
        line += some
    return msgspec.json.decode(line, type=Errand)


def _end_with_parent() -> None:
    """End at once when whoever holds the other end of standard input is gone; Java follows."""

    def wait() -> None:
        while os.read(0, 4_096):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="attended").start()


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
