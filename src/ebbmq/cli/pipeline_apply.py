"""`ebbmq pipeline apply`: hand plans and rates of a lake to a broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from ebbmq import limits
from ebbmq.cli.session import Session, anywhere_options, pass_session, wall_ms
from ebbmq.cli.spark import lake_settings_option
from ebbmq.cli.values import show_count
from ebbmq.errors import (
    ClientError,
    InvalidRequest,
    InvalidSpec,
    OutdatedAdvice,
    UnknownPath,
    UnknownQueue,
    UnknownRun,
)
from ebbmq.feed.advice import REFUSALS, Applied
from ebbmq.feed.claims import is_lake, no_lake
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.plans import PLANS, PlanRow
from ebbmq.feed.rates import RATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ebbmq.cli.session import Verbs
    from ebbmq.feed.table import Table
    from ebbmq.node.advising.reading import Found
    from ebbmq.node.feeding.lake import Lake

    Progress = Callable[[int, int], None]

#: Of the nodes that a plan is about, so many are named.
_NODES_SHOWN: Final = 10


@click.command("apply", short_help="Hand plans and rates of a lake to a broker.")
@click.option(
    "--lake",
    metavar="DIR|URL",
    help="The lake that the pipeline wrote to; without it the broker looks into its own.",
)
@lake_settings_option
@click.option("--run", "name", metavar="ID", help="Only this run; else all that are new.")
@anywhere_options
@pass_session
def apply(
    session: Session, /, *, lake: str | None, lake_options: list[tuple[str, str]], name: str | None
) -> None:
    """Have a broker do what the pipeline planned, and use the decay factors it recommends.

    The broker checks each action against the present: what is outdated is refused and counted.
    Twice is as once. A broker whose configuration names the lake does this by itself.

    \b
    Examples:
      ebbmq pipeline apply --lake /var/lib/ebbmq-lake --url http://127.0.0.1:8080
      ebbmq pipeline apply --lake lake --data data --config ebbmq.toml --run 20261116T030000123Z
    """
    with session.open() as broker, session.progress() as progress:
        task = progress.add_task("applying", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        if lake is None:
            done = broker.apply_plans(name, progress=lambda now: tell(now.rows, now.rows))
        else:
            done = _Handing(session, broker, lake, dict(lake_options)).hand_over(name, tell)
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


class _Handing:
    """Reads a lake here and hands what is in it to a broker that may be elsewhere."""

    def __init__(self, session: Session, broker: Verbs, lake: str, options: dict[str, str]) -> None:
        try:
            # Who has no lake does not load what it needs.
            from ebbmq.node.advising import rates, reading  # noqa: PLC0415
            from ebbmq.node.feeding.lake import open_lake  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ClientError(
                f"a lake is read with pyarrow, and {error.name} is not installed",
                "pip install 'ebbmq[feed]', or leave --lake out: the broker reads its own",
                code="missing_package",
            ) from error
        self._session, self._broker = session, broker
        self._reading, self._is_rate = reading, rates.is_one
        self._lake: Lake = open_lake(lake, options, Path.cwd())
        if not is_lake(self._lake.list):
            refusal = no_lake(self._lake.where)
            raise UnknownFeed(
                refusal.detail, f"{refusal.action}, or leave --lake out: the broker reads its own"
            )

    def hand_over(self, name: str | None, tell: Progress) -> list[Applied]:
        """All of a run, or of those that are new to the broker."""
        known = self._broker.plans()
        seen: dict[tuple[str, str], Applied] = {
            (each.table, each.run): each for each in known.runs if each.state == "applied"
        }
        last = -self._reading.RUNS_MAX if name is None else None
        found = [(each, table) for table in (RATES, PLANS) for each in self._found(table)[last:]]
        since_ms = max((each.written_at_ms for each, _ in found), default=0)
        since_ms -= limits.ADVICE_AGE_MS_MAX
        chosen = [
            (each, table)
            for each, table in found
            if each.run == name
            or (
                name is None
                # Factors are dated by the clock of their run, as other runs are.
                and (table is PLANS or each.written_at_ms >= since_ms)
                and not _is_taken(seen.get((table.name, each.run)), each)
            )
        ]
        if name is not None and not chosen:
            names = ", ".join(sorted({each.run for each, _ in found})[-5:]) or "none"
            raise UnknownRun(
                f"there is no run {name!r} in {self._lake.where}", f"the last ones are: {names}"
            )
        total, before = sum(each.rows for each, _ in chosen), 0
        out: list[Applied] = []
        for each, table in chosen:
            hand = self._plan if table is PLANS else self._rates
            steps = self._counted(each, table, hand(each, known.node))
            told = next(steps)
            for told in steps:
                tell(before + told.rows, total)
            if table is PLANS and each.rows and not told.rows and told.state == "applied":
                self._say_whose(each, known.node)
            out.append(told)
            before += each.rows
            tell(before, total)
        return out

    def _say_whose(self, found: Found, node: str) -> None:
        """No row of a plan was about the broker: it may have been meant for another one."""
        nodes = sorted(
            {
                str(each)
                for batch in self._reading.batches(self._lake, PLANS, found, ("node",), None)
                for each in batch["node"]
            }
        )
        more = len(nodes) - _NODES_SHOWN
        named = ", ".join(nodes[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        self._session.note(
            f"attention: no row of run {found.run} is about node {node}; it has rows for: {named}"
        )

    def _found(self, table: Table) -> list[Found]:
        found, refused = self._reading.find(self._lake, table)
        for error in refused:
            self._session.note(f"attention: {error.detail} ({error.action})")
        return found

    def _counted(self, found: Found, table: Table, parts: Iterable[Applied]) -> Iterator[Applied]:
        """What became of a run so far, after each part of it, and at its end."""
        began = wall_ms()
        told = Applied(
            run=found.run,
            table="plans" if table is PLANS else "rates",
            began_at_ms=began,
            rows_in_all=found.rows,
        )
        try:
            for part in parts:
                told = told.plus(msgspec.structs.replace(part, rows_in_all=found.rows))
                yield told
        except UnknownFeed as error:
            told = msgspec.structs.replace(told, state="failed", detail=error.detail)
        yield msgspec.structs.replace(told, began_at_ms=began, ended_at_ms=wall_ms())

    def _plan(self, found: Found, node: str) -> Iterable[Applied]:
        names = tuple(name for name in PlanRow.__struct_fields__ if name != "partition")
        too_old_ms = -1
        for batch in self._batches(found, names, node):
            read = [_row(names, values) for values in zip(*batch.values(), strict=True)]
            rows = [each for each in read if each is not None]
            if len(rows) < len(read):
                none = len(read) - len(rows)
                yield Applied(run=found.run, rows=none, refused={"invalid": none})
            # The broker may not have room for all of them.
            rows.sort(key=lambda row: -row.value)
            for first in range(0, len(rows), limits.PLAN_ROWS_MAX):
                some = rows[first : first + limits.PLAN_ROWS_MAX]
                if all(row.decided_at_ms <= too_old_ms for row in some):
                    yield Applied(run=found.run, rows=len(some), refused={"too_old": len(some)})
                    continue
                told = self._broker.apply_plan_rows(found.run, some)
                too_old_ms = max(too_old_ms, _too_old_ms(some, told))
                yield told
        # Until the broker knows that this was all, the plan is new to it.
        yield self._broker.apply_plan_rows(found.run, [])

    def _batches(
        self, found: Found, names: tuple[str, ...], node: str
    ) -> Iterator[dict[str, list[Any]]]:
        """Rows of a plan about a node: those of each batch are worth more than the next."""
        reading = self._reading
        try:
            worth = reading.worth(self._lake, found, node)
        except UnknownFeed:  # it is told once rows before it are handed over
            yield from reading.batches(self._lake, PLANS, found, names, node)
            return
        for band in reading.bands(worth.values()):
            read = reading.batches(self._lake, PLANS, found, names, node, band)
            yield from reading.joined(read)

    def _rates(self, found: Found, _node: str) -> Iterable[Applied]:
        columns = ("queue", "factor", "decided_at_ms", "until_ms")
        for batch in self._reading.batches(self._lake, RATES, found, columns, None):
            counts = Counter(
                self._rate(found.run, *values) for values in zip(*batch.values(), strict=True)
            )
            rows, applied, in_force = (
                counts.total(),
                counts.pop("applied", 0),
                counts.pop("in_force", 0),
            )
            yield Applied(
                run=found.run,
                table="rates",
                rows=rows,
                applied=applied,
                in_force=in_force,
                refused=dict(counts),
            )

    def _rate(self, run: str, queue: str, factor: float, decided_ms: int, until_ms: int) -> str:
        """Have one factor used, unless it is outdated; what became of it."""
        if not self._is_rate(queue, factor, decided_ms, until_ms):
            return "invalid"
        try:
            return self._broker.set_decay_factor(queue, factor, until_ms, run, decided_ms)
        except (UnknownQueue, OutdatedAdvice) as error:
            return error.code
        except (InvalidSpec, InvalidRequest, UnknownPath):
            # What one row says is no reason to leave the others out.
            return "run_out" if until_ms <= wall_ms() else "invalid"


def _is_taken(known: Applied | None, found: Found) -> bool:
    """Whether a broker went through a run, and not only through what it was handed of it."""
    return known is not None and known.is_whole(found.rows)


def _too_old_ms(rows: list[PlanRow], told: Applied) -> int:
    """An instant such that what was decided then is too old to the broker; -1 if none is known.

    Rows of a plan about one node were decided at one instant: where some of them are refused for
    their age, all of them would be.
    """
    instants = {row.decided_at_ms for row in rows}
    is_so = "too_old" in told.refused and not told.applied and not told.in_force
    return instants.pop() if is_so and len(instants) == 1 else -1


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> PlanRow | None:
    """A row as a broker takes it; None if it is none."""
    told = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    try:
        return msgspec.convert(told, PlanRow)
    except msgspec.ValidationError:
        return None


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
