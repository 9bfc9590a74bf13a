"""`ebbmq backup` and `ebbmq restore`: a hot copy of a data directory, and the way back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ebbmq.cli.session import (
    Session,
    anywhere_options,
    common_options,
    has_files,
    is_store,
    pass_session,
)
from ebbmq.cli.values import show_bytes, show_count
from ebbmq.errors import ClientError
from ebbmq.node import doctor

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = click.Path(path_type=Path, file_okay=False)
_DAMAGED: Final = 1


@click.command(short_help="Copy the data directory.")
@click.argument("target", type=DIRECTORY)
@anywhere_options
@pass_session
def backup(session: Session, target: Path) -> None:
    """Copy everything confirmed so far to the new or empty directory TARGET.

    With --url, TARGET is a directory of the server's machine.

    \b
    Example:
      ebbmq backup /backups/monday --data ebbmq-data
    """
    remote = session.server.url is not None
    if not remote:
        _refuse_non_empty(target)
    with session.open() as broker, session.progress(counted=False) as progress:
        task = progress.add_task("copying", total=None)
        copied = broker.backup(
            target, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if session.as_json:
        session.show_json({"source": session.place, "target": str(target), "bytes": copied})
    else:
        there = f"{target} on the server's machine" if remote else str(target)
        session.say(f"{session.place} is copied to {there} ({show_bytes(copied)})")
        session.note(f"restore it with: ebbmq restore {target} --data DIR")


@click.command(short_help="Make a data directory from a backup.")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@common_options
@pass_session
@click.pass_context
def restore(ctx: click.Context, session: Session, source: Path) -> None:
    """Make the data directory from the backup SOURCE, and check every record of it.

    The data directory must be new or empty: nothing is ever overwritten. What can be read of a
    damaged backup is restored, what cannot is named, and the exit code is 1.

    \b
    Example:
      ebbmq restore /backups/monday --data ebbmq-data
    """
    target = session.data
    _refuse_non_empty(target)
    if not is_store(source):
        raise ClientError(f"{source} is not a backup", "name a directory made by ebbmq backup")
    staged = target.with_name(f"{target.name}.restoring")
    _refuse_non_empty(staged)
    try:
        _copy(session, source, staged)
        report = doctor.examine(staged, lambda done, total: None)
        if report.unusable:
            raise ClientError(
                f"{source} is not a usable backup: {'; '.join(report.problems)}",
                "take another backup; nothing was restored",
            )
        if target.exists():
            target.rmdir()
        staged.rename(target)
        _sync(target.absolute().parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    if session.as_json:
        session.show_json({"source": str(source), "data": str(target), **report.to_dict()})
    else:
        session.say(f"{target} is restored from {source}: {show_count(report.messages, 'message')}")
        for problem in report.problems:
            session.note(problem)
    if not report.clean:
        ctx.exit(_DAMAGED)


def _refuse_non_empty(directory: Path) -> None:
    if has_files(directory):
        raise ClientError(
            f"{directory} is not empty",
            "name a new directory: nothing is ever overwritten",
            code="directory_not_empty",
        )


def files(directory: Path) -> Iterator[Path]:
    """Every file below the directory; one that vanishes meanwhile is no error."""
    return (path for path in directory.rglob("*") if path.is_file())


def size_bytes(directory: Path) -> int:
    """What the files below the directory take on the disk."""
    total = 0
    for path in files(directory):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _copy(session: Session, source: Path, target: Path) -> None:
    """Copy file by file, each synced before the directory gets its name."""
    with session.progress(counted=False) as progress:
        task = progress.add_task("restoring", total=sum(p.stat().st_size for p in files(source)))
        directories = [source, *(path for path in source.rglob("*") if path.is_dir())]
        for directory in directories:
            (target / directory.relative_to(source)).mkdir(parents=True)
        for path in files(source):
            copied = target / path.relative_to(source)
            shutil.copy2(path, copied)
            _sync(copied)
            progress.advance(task, path.stat().st_size)
        for directory in directories:
            _sync(target / directory.relative_to(source))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
