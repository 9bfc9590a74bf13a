"""`make bench`, `python -m bench`: ask the questions, show the figures, keep them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench import report, suite

if TYPE_CHECKING:
    from bench.row import Row


@click.command("bench")
@click.option(
    "--only",
    type=click.Choice(list(suite.QUESTIONS)),
    multiple=True,
    help="Ask only this question; may be given several times.",
)
@click.option("--quick", is_flag=True, help="Small sizes: shows that it works, figures mean less.")
@click.option("--json", "json_out", is_flag=True, help="The figures as JSON on stdout.")
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where to write the data measured on; about 6 GiB, removed after. [the system's default]",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also keep the figures here."
)
def bench(
    *, only: tuple[str, ...], quick: bool, json_out: bool, scratch: Path | None, out: Path | None
) -> None:
    """Ask every question about cost, each in a process of its own, and show the figures.

    A figure with a bar is marked ok or missed; times are also given as a multiple of a fixed
    loop of integer arithmetic run in the same process, so that machines can be compared. The exit
    code says whether it ran, not whether every bar was reached.

    \b
    Examples:
      make bench BENCH=--quick
      make bench BENCH="--only publish --only lease --json"
    """
    names = only or tuple(suite.QUESTIONS)
    rows = _ask_all(names, quick=quick, scratch=scratch)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(report.document(rows, suite.machine(names, quick=quick)) + b"\n")
    if json_out:
        click.echo(report.as_json(rows))
    else:
        width = None if sys.stdout.isatty() else 160
        Console(width=width).print(report.table(rows))


def _ask_all(names: tuple[str, ...], *, quick: bool, scratch: Path | None) -> list[Row]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[step]}"),
        TimeElapsedColumn(),
    )
    rows: list[Row] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in names:
            task = progress.add_task(suite.QUESTIONS[name], total=None, step="")

            def tell(label: str, done: int, total: int, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=total, step=label)

            try:
                rows += suite.ask(name, quick=quick, data=scratch, tell=tell)
            except suite.UnansweredError as failure:
                raise click.ClickException(str(failure)) from failure
            progress.update(task, completed=1, total=1, step="done")
    return rows


if __name__ == "__main__":
    bench()
