"""`ebbmq doctor`: every record and body checked, with the directory closed."""

from __future__ import annotations

from typing import Final

import click

from ebbmq.cli.session import Session, common_options, is_store, pass_session
from ebbmq.cli.values import show_count
from ebbmq.errors import EbbError
from ebbmq.node import doctor as node_doctor
from ebbmq.node.broker import Broker

CLEAN: Final = 0
DAMAGED: Final = 1
UNUSABLE: Final = 2
_CLOCK: Final = "the clock is accepted; removals by age go on"
_DAMAGE: Final = "the damage is accepted; what can be read is served"


@click.command(short_help="Check every record and body.")
@click.option(
    "--accept-clock",
    is_flag=True,
    help="Trust the wall clock after it jumped: removals by age go on.",
)
@click.option(
    "--accept-damage",
    is_flag=True,
    help="Give up what is in doubt, and what cannot be read of faulty partitions; serve the rest.",
)
@common_options
@pass_session
@click.pass_context
def doctor(ctx: click.Context, session: Session, accept_clock: bool, accept_damage: bool) -> None:
    """Read every record and body in the data directory's log and compare it with its checksum.

    Checkpoints and the removals log are read, too. Changes nothing (but see --accept-clock and
    --accept-damage). The directory must not be open elsewhere. Exit code: 0 clean, 1 damage found,
    2 unusable.

    \b
    Example:
      ebbmq doctor --data ebbmq-data
    """
    if not is_store(session.data):
        _unusable(session, f"{session.data} is not a data directory", "name the right one: --data")
        ctx.exit(UNUSABLE)
    try:
        report = _examine(session)
        accepted = [
            said
            for wanted, said in ((accept_clock, _CLOCK), (accept_damage, _DAMAGE))
            if wanted and not report.unusable
        ]
        if accepted:
            Broker.open(
                session.data, accept_clock=accept_clock, accept_damage=accept_damage
            ).close()
            if accept_clock:
                report.clock_doubt = None
    except EbbError as error:
        _unusable(session, error.detail, error.action)
        ctx.exit(UNUSABLE)
    if session.as_json:
        session.show_json(report.to_dict())
    else:
        _show(session, report, accepted)
    ctx.exit(UNUSABLE if report.unusable else CLEAN if report.clean else DAMAGED)


def _examine(session: Session) -> node_doctor.Report:
    with session.progress() as progress:
        task = progress.add_task(f"reading {session.data}", total=None)
        return node_doctor.examine(
            session.data,
            lambda done, total: progress.update(task, completed=done, total=total),
        )


def _unusable(session: Session, detail: str, action: str) -> None:
    if session.as_json:
        session.show_json({"clean": False, "unusable": True, "problems": [detail], "messages": 0})
    click.echo(f"error: {detail}", err=True)
    click.echo(f"hint: {action}", err=True)


def _show(session: Session, report: node_doctor.Report, accepted: list[str]) -> None:
    for problem in report.problems:
        session.say(f"- {problem}")
    if report.clock_doubt is not None:
        session.say(f"- {report.clock_doubt}")
    verdict = "unusable" if report.unusable else "clean" if report.clean else "damaged"
    session.say(f"{session.data} is {verdict}: {show_count(report.messages, 'message')}")
    if report.elsewhere:
        count = show_count(report.elsewhere, "message")
        session.say(f"{count} on devices only, which check bodies themselves: not read")
    for said in accepted:
        session.say(said)
