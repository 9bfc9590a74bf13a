"""The demo on the screen: the story while it goes on, and its numbers in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ebbmq.cli.demo_report import QueueReport, share
from ebbmq.cli.demo_story import DECAYING, FIFO, IMPORTANT, QUEUES, SURGE, Plan, Story
from ebbmq.cli.values import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ebbmq.cli.session import Session

TITLES: Final = {FIFO: "FIFO", DECAYING: "decaying importance"}
BAR_WIDTH: Final = 20


class Screen:
    """The story while it goes on: a live table where somebody watches, else a line per phase."""

    def __init__(self, session: Session, story: Story) -> None:
        self._err = session.err
        self._story = story
        self._phase = ""
        self._live = Live(console=session.err, refresh_per_second=5, transient=True)

    def __enter__(self) -> Screen:
        if self._err.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, now_s: float) -> None:
        """Show the present state."""
        phase = self._story.plan.phase(now_s)
        if self._err.is_terminal:
            self._live.update(self._picture(now_s, phase))
        elif phase != self._phase:
            self._err.print(f"{now_s:5.1f}s  {phase}")
        self._phase = phase

    def _picture(self, now_s: float, phase: str) -> RenderableType:
        plan = self._story.plan
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        for name in ("waiting", "oldest", "important on time", "important late", "let go"):
            table.add_column(name, justify="right", min_width=8)
        for queue in QUEUES:
            stats = self._story.broker.stats(queue)
            ledger = self._story.ledgers[queue]
            table.add_row(
                TITLES[queue],
                f"{stats['depth']['ready']:,}",
                show_duration(stats["oldest_age_ms"]),
                f"{ledger.important_on_time:,}",
                f"{ledger.important_late:,}",
                f"{sum(stats['totals'].get(reason, 0) for reason in ('stale', 'expired')):,}",
            )
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=plan.seconds, completed=now_s, width=40),
            Text(f"{now_s:.0f} of {plan.seconds:.0f} s"),
            Text(phase, style="bold"),
        )
        return Group(bar, Text(""), table)


def results(plan: Plan, reports: dict[str, QueueReport]) -> Table:
    """The numbers a person cares about, queue beside queue."""
    count = reports[FIFO].account.confirmed
    table = Table(
        title=f"{count:,} messages to each queue, at the worst {SURGE:.0f} for each one its "
        f"consumers could handle; a message is of use for {show_duration(plan.ttl_ms)}",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("")
    for queue in QUEUES:
        table.add_column(TITLES[queue], justify="left", no_wrap=True)
    both = [reports[queue] for queue in QUEUES]
    table.add_row(
        f"important work on time ({IMPORTANT} to 10)",
        *(_share(*report.important_on_time()) for report in both),
        style="bold",
    )
    for importance in range(10, 0, -1):
        table.add_row(
            f"  importance {importance}", *(_bar(*report.on_time([importance])) for report in both)
        )
    table.add_row("all work on time", *(_share(*report.on_time(range(1, 11))) for report in both))
    table.add_row(
        "median age of important work when done",
        *(show_duration(report.important_age_ms()) for report in both),
    )
    table.add_row("done, but too late to be of use", *(f"{r.acked_late():,}" for r in both))
    table.add_row("let go, each on the record", *(_reasons(r.account.removed) for r in both))
    table.add_row("still waiting", *(f"{report.account.still_there:,}" for report in both))
    return table


def _share(part: int, whole: int) -> str:
    return f"{share(part, whole):.0%} ({part:,} of {whole:,})"


def _bar(part: int, whole: int) -> str:
    filled = round(share(part, whole) * BAR_WIDTH)
    return f"{'━' * filled}{'┄' * (BAR_WIDTH - filled)} {share(part, whole):4.0%}"


def _reasons(removed: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in sorted(removed.items())) or "none"


def account_lines(reports: dict[str, QueueReport]) -> Iterator[str]:
    """Whether each confirmed message is accounted for, in words."""
    for queue, report in reports.items():
        account = report.account
        if not account.holds:
            yield (
                f"NOT ACCOUNTED FOR in {queue}: {len(account.missing)} of {account.confirmed:,} "
                f"confirmed messages are missing, {len(account.contradictory)} are in two places "
                f"or were never confirmed: {(account.missing + account.contradictory)[:5]}"
            )
    if all(report.account.holds for report in reports.values()):
        confirmed = sum(report.account.confirmed for report in reports.values())
        yield (
            f"Nothing confirmed was lost: after a restart each of {confirmed:,} confirmed messages "
            "was found acked, let go with its reason, or still waiting."
        )
