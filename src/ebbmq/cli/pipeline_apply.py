"""`ebbmq pipeline apply`: have a broker take plans and rates from its lake."""

from __future__ import annotations

from collections import Counter

import click
import msgspec

from ebbmq.cli.session import Session, anywhere_options, pass_session
from ebbmq.cli.values import show_count
from ebbmq.errors import ClientError
from ebbmq.feed.advice import REFUSALS, Applied
from ebbmq.feed.plans import PLANS


@click.command("apply", short_help="Have a broker take plans and rates from its lake.")
@click.option("--run", "name", metavar="ID", help="Only this run; else all that are new.")
@anywhere_options
@pass_session
def apply(session: Session, /, *, name: str | None) -> None:
    """Have a broker do what the pipeline planned, and use the decay factors it recommends.

    The broker reads them from the lake of its configuration, now instead of by and by. It checks
    each action against the present: what is outdated is refused and counted. Twice is as once.

    \b
    Examples:
      ebbmq pipeline apply --url http://127.0.0.1:8080
      ebbmq pipeline apply --data data --config ebbmq.toml --run 20261116T030000123Z
    """
    with session.open() as broker, session.progress() as progress:
        task = progress.add_task("applying", total=None)

        def tell(now: Applied) -> None:
            progress.update(task, completed=now.rows, total=now.rows)

        done = broker.apply_plans(name, progress=tell)
    if session.as_json:
        session.show_json([msgspec.to_builtins(each) for each in done])
    else:
        _show(session, done)
    if any(each.state == "failed" for each in done):
        raise ClientError(
            next(each.detail for each in done if each.state == "failed"),
            "run the pipeline again; what was applied stays applied",
            code="unknown_feed",
        )


def _show(session: Session, done: list[Applied]) -> None:
    if not done:
        session.say("Nothing new: the last runs of the lake were gone through.")
        return
    session.show_table(
        ("RUN", "OF", ">ROWS", ">APPLIED", ">IN FORCE", ">REFUSED"),
        (
            (each.run, each.table, each.rows, each.applied, each.in_force, each.refusals)
            for each in done
        ),
    )
    refused: Counter[str] = Counter()
    for each in done:
        refused.update(each.refused)
    if refused:
        session.say("")
        session.show_table(
            ("REFUSED BECAUSE", ">ROWS", "WHICH MEANS"),
            ((why, count, REFUSALS.get(why, "")) for why, count in refused.most_common()),
        )
    moving = sum(each.applied for each in done if each.table == PLANS.name)
    if moving:
        session.say(f"\n{show_count(moving, 'message')} move in the background.")
