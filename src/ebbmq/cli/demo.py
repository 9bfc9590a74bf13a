"""`ebbmq demo`: an overload, a FIFO queue beside one with decaying importance, and the numbers."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ebbmq.cli import demo_picture, demo_screen
from ebbmq.cli.backup import size_bytes
from ebbmq.cli.demo_report import QueueReport, report_all
from ebbmq.cli.demo_story import Plan, Story, calibrate, specs
from ebbmq.cli.session import Session, data_option, has_files, json_option, pass_session
from ebbmq.cli.values import show_bytes
from ebbmq.errors import ClientError
from ebbmq.node.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = 28.0
PICTURE: Final = Path("ebbmq-demo.png")
LOST: Final = 3


@click.command(short_help="See an overload: FIFO beside decaying importance.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=2, max=600),
    default=SECONDS,
    show_default=True,
    help="How long the story takes.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    default=PICTURE,
    show_default=True,
    help="Where to save the picture.",
)
@click.option("--no-picture", is_flag=True, help="Numbers only.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the traffic.")
@json_option
@data_option("A new data directory; a temporary one unless given.")
@pass_session
@click.pass_context
def demo(
    ctx: click.Context,
    session: Session,
    seconds: float,
    picture: Path,
    no_picture: bool,
    seed: int,
) -> None:
    """Run three times more work into two queues than their consumers can handle.

    The same messages go to a FIFO queue and to one whose messages lose importance as they age,
    with the same number of equally fast consumers. In the end: how much important work was on
    time in each, what was let go, and whether every confirmed message is accounted for. The
    comparison is with FIFO: here fixed importance (decay rate 0) is on time as often.
    Uses a temporary data directory unless --data names a new one.

    \b
    Examples:
      ebbmq demo
      ebbmq demo --seconds 10 --picture overload.png
    """
    drawable = not no_picture and demo_picture.is_available()
    if not no_picture and not drawable:
        session.note("no picture will be drawn: pip install 'ebbmq[demo]' adds matplotlib")
    with _directory(session) as directory:
        outcome = _tell(session, directory, seconds, seed)
    if drawable:
        demo_picture.draw(outcome.plan, outcome.reports, picture)
    _show(session, outcome, picture if drawable else None)
    if not all(report.account.holds for report in outcome.reports.values()):
        ctx.exit(LOST)


@dataclass(frozen=True)
class Outcome:
    """All that the demo has to show."""

    plan: Plan
    reports: dict[str, QueueReport]
    ram_before_bytes: int
    ram_peak_bytes: int
    disk_peak_bytes: int
    disk_bytes: int


@contextlib.contextmanager
def _directory(session: Session) -> Iterator[Path]:
    """The chosen data directory, if it is new, else a temporary one that is removed."""
    if session.chosen_data is not None:
        if has_files(session.chosen_data):
            raise ClientError(
                f"{session.chosen_data} is not empty",
                "the demo wants a new directory: name another one, or leave --data away",
                code="directory_not_empty",
            )
        yield session.chosen_data
        return
    path = Path(tempfile.mkdtemp(prefix="ebbmq-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _tell(session: Session, directory: Path, seconds: float, seed: int) -> Outcome:
    """Run the story, close the broker, open it again and check its account."""
    ram_before = ram_bytes()
    peaks = {"ram": ram_before, "disk": 0}
    with Broker.open(directory) as broker:
        plan = Plan(seconds, calibrate(broker), seed)
        for spec in specs(plan):
            broker.declare(spec)
        story = Story(broker, plan)
        with demo_screen.Screen(session, story) as screen:

            def watch(now_s: float) -> None:
                peaks["ram"] = max(peaks["ram"], ram_bytes())
                peaks["disk"] = max(peaks["disk"], size_bytes(directory))
                screen.update(now_s)

            story.run(watch)
    # What is checked is what a restart finds, not what the process remembers.
    with Broker.open(directory) as broker:
        reports = report_all(broker, plan, story.ledgers)
    return Outcome(plan, reports, ram_before, peaks["ram"], peaks["disk"], size_bytes(directory))


def ram_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _show(session: Session, outcome: Outcome, picture: Path | None) -> None:
    plan = outcome.plan
    if session.as_json:
        session.show_json(
            {
                "seconds": plan.seconds,
                "service_rate": plan.service_rate,
                "ttl_ms": plan.ttl_ms,
                "queues": {name: report.to_dict() for name, report in outcome.reports.items()},
                "ram_peak_bytes": outcome.ram_peak_bytes,
                "ram_growth_bytes": outcome.ram_peak_bytes - outcome.ram_before_bytes,
                "disk_peak_bytes": outcome.disk_peak_bytes,
                "disk_bytes": outcome.disk_bytes,
                "lost": sum(len(r.account.missing) for r in outcome.reports.values()),
                "picture": None if picture is None else str(picture),
            }
        )
        return
    session.out.print(demo_screen.results(plan, outcome.reports))
    grown = outcome.ram_peak_bytes - outcome.ram_before_bytes
    session.say(
        f"RAM at most {show_bytes(outcome.ram_peak_bytes)} for the whole process, "
        f"{show_bytes(grown)} more than at the start. "
        f"Disk at most {show_bytes(outcome.disk_peak_bytes)}."
    )
    for line in demo_screen.account_lines(outcome.reports):
        session.say(line)
    if picture is not None:
        session.say(f"The picture: {picture}")
