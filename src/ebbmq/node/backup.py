"""A copy of a store that is in use: the journal up to an instant, enough to open it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.journal.segment import name_of
from ebbmq.node import noting
from ebbmq.node.directory import encode, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.node.engine import Engine

_CHUNK_BYTES: Final = 4 * limits.MIB


def backup(
    engine: Engine, target: str | Path, progress: Callable[[int, int], None] | None = None
) -> int:
    """Copy everything confirmed so far to a new or empty directory; returns bytes copied.

    Publishing and consuming go on; no segment and no copy is deleted meanwhile. Bodies that are on
    other devices only are read there, and are in the log of the backup.

    Raises:
        InvalidSpec: the target is not empty, or is not a place for a backup.
        StorageFailed: it cannot be written.
        Overloaded: code `bodies_away`: a device does not give bodies that only it has.
    """
    # Who takes no backup does not load what it needs.
    from ebbmq.node import backup_bodies  # noqa: PLC0415

    goal = _checked(Path(target), engine.directory.path)
    with engine.compacting, backup_bodies.kept(engine):
        with engine.lock:
            engine.check_open()
            noting.note_catalog(engine)
            engine.note_clock()
            position = engine.journal.position
            segments = engine.journal.segments()
            elsewhere = engine.holdings.without_log()
        engine.journal.wait("synced", position)
        with engine.lock:
            engine.removals.flush(engine.journal.synced_position)
        tell = progress or (lambda done, total: None)
        try:
            copied = _copy(engine, goal, position, [s.number for s in segments], tell)
        except OSError as error:
            raise StorageFailed(
                f"cannot write the backup to {goal}: {error.strerror}", "free space there"
            ) from error
        if elsewhere:
            copied += backup_bodies.bring(
                engine, goal, lambda more: tell(copied + more, copied + more)
            )
    return copied


def _checked(goal: Path, data: Path) -> Path:
    try:
        inside = goal.resolve().is_relative_to(data.resolve())
        if not inside:
            goal.mkdir(parents=True, exist_ok=True)
        is_empty = not any(goal.iterdir())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSpec(f"{str(goal)!r:.200}: {why}", "name a new directory") from error
    if inside:
        raise InvalidSpec(f"{goal} is inside the data directory", "name one on another disk")
    if not is_empty:
        raise InvalidSpec(f"{goal} is not empty", "name a new directory")
    return goal


def _copy(
    engine: Engine,
    goal: Path,
    position: int,
    segments: list[int],
    progress: Callable[[int, int], None],
) -> int:
    source = engine.directory.path
    for part in ("journal", "checkpoints", "removals"):
        (goal / part).mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    for number in segments:
        name = name_of(number)
        size = (source / "journal" / name).stat().st_size
        # The active segment is preallocated; behind the position there is nothing to keep.
        sizes[name] = position & 0xFFFFFFFF if number == position >> 32 else size
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        with (
            (source / "journal" / name).open("rb") as read,
            (goal / "journal" / name).open("wb") as written,
        ):
            while size > 0 and (data := read.read(min(size, _CHUNK_BYTES))):
                written.write(data)
                size -= len(data)  # noqa: PLW2901
                done += len(data)
                progress(done, total)
            written.flush()
            os.fsync(written.fileno())
        (goal / "journal" / name).chmod(0o600)
    import shutil  # noqa: PLC0415  # it brings every kind of archive along

    for path in (source / "removals").iterdir():
        shutil.copy2(path, goal / "removals" / path.name)
    if (source / "decisions").is_dir():
        engine.keeping.decisions.flush()
        shutil.copytree(source / "decisions", goal / "decisions")
    write_durably(goal / "store.json", encode(engine.directory.identity))
    return done
