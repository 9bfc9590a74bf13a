"""Bodies that are on devices only, for a backup: read there, and put into the log of the copy.

The copy is opened as a store of its own, without devices, and gets each body as one that came home;
so whoever restores it needs none of the devices. Meanwhile nothing is deleted from the devices.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.core import held
from ebbmq.core.copies import LOG, NO_DEVICES, Held, name_of
from ebbmq.core.row import ELSEWHERE
from ebbmq.errors import EbbError, Overloaded
from ebbmq.holding.contract import Key
from ebbmq.node import outflow
from ebbmq.node.opening import close_engine, open_engine
from ebbmq.node.relocating import relocate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ebbmq.core.copies import Name
    from ebbmq.node.catalog import Shard
    from ebbmq.node.engine import Engine

    Row = tuple[int, ...]

_COUNT_MAX: Final = 1_024
_BYTES_MAX: Final = 4 * limits.MIB


@contextlib.contextmanager
def kept(engine: Engine) -> Iterator[None]:
    """Have nothing deleted from devices for a while."""
    mover = engine.keeping.mover
    if mover is None:
        yield
        return
    with mover.keeping_all():
        yield


def bring(engine: Engine, goal: Path, progress: Callable[[int], None]) -> int:
    """Put what only devices have into the copy of a store; returns bytes.

    Args:
        engine: the store, which is in use.
        goal: the copy.
        progress: is told how many bytes were brought.

    Raises:
        Overloaded: code `bodies_away`: a device that has some of them does not give them.
    """
    copy = open_engine(goal, threaded=False)
    brought = 0
    try:
        away = 0
        for shard, some in _missing(copy):
            bodies = _read(engine, copy, shard, some)
            good = [(seq, body) for (seq, _), body in zip(some, bodies, strict=True) if body]
            good += [(seq, b"") for seq, row in some if not row[11]]
            away += len(some) - len(good)
            if good:
                _put(copy, shard, good)
                brought += sum(len(body) for _, body in good)
                progress(brought)
        copy.journal.sync_old()
    finally:
        close_engine(copy)
    if away:
        # Half a backup is none.
        for part in goal.iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise Overloaded(
            f"the bodies of {away} messages are on devices that do not give them now",
            "see `ebbmq devices`, and take the backup again when they answer",
            code="bodies_away",
        )
    return brought


def _missing(copy: Engine) -> Iterator[tuple[Shard, list[tuple[int, Row]]]]:
    """Messages of the copy whose bodies its log does not have, some of a partition at a time."""
    some: list[tuple[int, Row]] = []
    of: Shard | None = None
    nbytes = 0
    with copy.lock:
        names = [name for name, _ in copy.holdings.items()]
    for name in names:
        with copy.lock:
            known = copy.keeping.row_of(name)
        if known is None or not known[2][1] & ELSEWHERE:
            continue
        shard, seq, row = known
        if of is not None and (
            shard is not of or nbytes + row[11] > _BYTES_MAX or len(some) == _COUNT_MAX
        ):
            yield of, some
            some, nbytes = [], 0
        of = shard
        some.append((seq, row))
        nbytes += row[11]
    if of is not None and some:
        yield of, some


def _read(
    engine: Engine, copy: Engine, shard: Shard, some: Sequence[tuple[int, Row]]
) -> list[bytes | None]:
    """Bodies from the devices that had them at the instant of the copy."""
    found: dict[int, bytes] = {}
    devices, uuid, pid = engine.devices, engine.directory.identity.uuid, shard.partition.pid
    with copy.lock:
        holdings = {seq: copy.holdings.of(name_of(pid, seq)) for seq, _ in some}
    for device, port in devices.ports.items() if devices is not None else ():
        asked = [
            (seq, row) for seq, row in some if seq not in found and device in holdings[seq].copies
        ]
        if not asked:
            continue
        with contextlib.suppress(EbbError):
            bodies = port.get([Key(uuid, pid, seq) for seq, _ in asked]).result()
            for (seq, row), body in zip(asked, bodies, strict=True):
                if isinstance(body, bytes) and outflow.is_intact(body, row):
                    found[seq] = body
    return [found.get(seq) for seq, _ in some]


def _put(copy: Engine, shard: Shard, good: Sequence[tuple[int, bytes]]) -> None:
    """Have the copy's log hold bodies, and say so."""
    ordered = sorted(good)
    names: list[Name] = [name_of(shard.partition.pid, seq) for seq, _ in ordered]
    with copy.lock:
        relocate(copy, shard, [seq for seq, _ in ordered], [body for _, body in ordered], home=True)
        told = [
            Held(
                name,
                copy.holdings.of(name)._replace(
                    copies=frozenset({LOG}),
                    pending=NO_DEVICES,
                    dropping=NO_DEVICES,
                    leaving=NO_DEVICES,
                ),
            )
            for name in names
        ]
        for fact in told:
            copy.holdings.restore(fact)
        copy.append(held.pack(told))
