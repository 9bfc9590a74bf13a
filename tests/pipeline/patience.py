"""Spark gives a Python process ten seconds to start, and no setting changes that.

A machine that is busy with something else may take longer; then the same is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming import StreamingQuery

T = TypeVar("T")
TRIES = 20
_LOOK_S = 0.2
_TOO_LATE = "Python worker failed to connect back"


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` returns, asked again where Python did not start in time."""
    for _ in range(TRIES):
        try:
            return ask()
        except Exception as error:
            if not _is_too_late(error):
                raise
    return ask()


def _is_too_late(error: BaseException) -> bool:
    return _TOO_LATE in f"{error} {error.__cause__}"


def to_end(start: Callable[[], StreamingQuery]) -> None:
    """Run a query until it ends; started again it goes on from its checkpoint."""

    def run() -> None:
        start().awaitTermination()

    patiently(run)


def all_to_end(starts: Sequence[Callable[[], StreamingQuery]]) -> None:
    """The same for queries that run side by side; they are started from this thread.

    Spark does not find data sources in Python from a thread that has not opened the session.
    """
    queries = dict(enumerate(start() for start in starts))
    while queries:
        for number, query in list(queries.items()):
            try:
                if query.awaitTermination(_LOOK_S):
                    del queries[number]
            except Exception as error:
                if not _is_too_late(error):
                    raise
                queries[number] = starts[number]()
