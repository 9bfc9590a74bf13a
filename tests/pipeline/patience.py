"""Spark gives a Python process ten seconds to start, and no setting changes that.

A machine that is busy with something else may take longer; then the same is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming import StreamingQuery

T = TypeVar("T")
TRIES = 20
_TOO_LATE = "Python worker failed to connect back"


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` returns, asked again where Python did not start in time."""
    for _ in range(TRIES):
        try:
            return ask()
        except Exception as error:
            if _TOO_LATE not in f"{error} {error.__cause__}":
                raise
    return ask()


def to_end(start: Callable[[], StreamingQuery]) -> None:
    """Run a query until it ends; started again it goes on from its checkpoint."""

    def run() -> None:
        start().awaitTermination()

    patiently(run)
