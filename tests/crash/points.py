"""Points in the life of a copy at which a process can be killed."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ebbmq.node.devices.port import Port
from ebbmq.node.keeping.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

Step = Literal["put", "read_back", "made", "deleted", "failed", "gone", "delete"]

_STEPS: Final[dict[str, tuple[type, str]]] = {
    "put": (Port, "put"),
    "read_back": (Port, "get"),
    "made": (Keeper, "copies_made"),
    "delete": (Port, "delete"),
    "deleted": (Keeper, "copies_deleted"),
    "failed": (Keeper, "copies_failed"),
    "gone": (Keeper, "gone"),
}


class Point(msgspec.Struct, frozen=True):
    """Before or after a step is taken for the `nth` time, counted from 1."""

    step: Step
    moment: Literal["before", "after"]
    nth: int = 1


def kill_at(point: Point) -> None:
    """Have this process killed when it comes to a point."""
    owner, name = _STEPS[point.step]
    taken: Callable[..., Any] = getattr(owner, name)
    numbers = itertools.count(1)

    @functools.wraps(taken)
    def take(*args: Any, **kwargs: Any) -> Any:
        is_due = next(numbers) == point.nth
        if is_due and point.moment == "before":
            _die()
        result = taken(*args, **kwargs)
        if is_due:
            _die()
        return result

    setattr(owner, name, take)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
