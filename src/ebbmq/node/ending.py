"""Ending what has parts: each of them is ended, whatever becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def end_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step in turn, and then raise the first error of them, if there was one.

    Later errors mostly follow from the first: they are logged.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            if first is None:
                first = error
            else:
                log.warning("not_closed", detail=str(error))
    if first is not None:
        raise first
