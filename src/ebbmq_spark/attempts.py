"""Work on Spark that reads a lake: what is wrong with a file is told, and the rest is read.

Files are looked at before they are read, but what is damaged inside shows only while Spark reads
it, and nodes take away old files meanwhile. Then the work is begun anew, without the damaged ones
or with what is there by now.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from ebbmq.errors import ClientError
from ebbmq_spark.soundness import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ebbmq.feed.manifests import UnknownFeed
    from ebbmq_spark.lake import Lake

T_co = TypeVar("T_co", covariant=True)

#: So often is work begun anew because nodes took away what it was about to read.
TRIES: Final = 3
#: Not every error of Java is made one of PySpark's.
SPARK_ERRORS: Final = (PySparkException, Py4JError)
#: How py4j begins to tell of an error of Java.
_CALLING = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")
#: How Python names an error of this package at the end of a traceback.
_OURS = re.compile(r"^\s*ebbmq[\w.]*\.[A-Z]\w+: (.+)$", re.MULTILINE)


class JobFailed(ClientError):
    """Spark did not carry a job through."""

    code = "job_failed"


class Attempt(Protocol[T_co]):
    """Work that is begun, on what was there then."""

    def carry_out(self) -> T_co:
        """All of it."""

    def damaged(self) -> dict[str, UnknownFeed]:
        """Of what was to be read: manifests that name a damaged file, and why."""

    def is_outrun(self) -> bool:
        """Whether some of what was to be read was taken away by its node: there is newer."""


def carried_through(
    lake: Lake, begin: Callable[[Mapping[str, UnknownFeed]], Attempt[T_co]]
) -> T_co:
    """Do work on a lake, whatever is damaged in it.

    Args:
        lake: where.
        begin: is told which manifests are known to name a damaged file, and why.

    Raises:
        JobFailed: Spark did not carry it through.
        UnknownFeed: there is nothing that it could be done with.
    """
    aside: dict[str, UnknownFeed] = {}
    tries = TRIES
    while True:
        begun = begin(aside)
        try:
            return begun.carry_out()
        except (*SPARK_ERRORS, Unreadable) as error:
            # A file that is damaged inside must not keep the others from being read.
            found = begun.damaged()
            if not found.keys() - aside.keys():
                if not begun.is_outrun():
                    raise failed(error) from error
                tries -= 1
                if not tries:
                    raise outrun(lake) from error
            aside |= found


def outrun(lake: Lake) -> JobFailed:
    """Why work that is begun anew again and again is given up."""
    return JobFailed(
        f"nodes took away files of {lake.where} before they were read, {TRIES} times in a row",
        "raise feed.snapshot_every_ms, or feed.bytes_max if events went: of snapshots a node keeps "
        "the last two",
    )


def failed(error: Exception) -> JobFailed:
    """What Spark said, for people; where a task of ours failed, what that said."""
    ours = _OURS.findall(str(error))
    return JobFailed(
        f"Spark did not carry it through: {(ours[-1] if ours else first_line(error))[:300]}",
        "nothing counts as done, so run it again",
    )


def first_line(error: Exception) -> str:
    """What an error says first, of one of Java without how py4j begins to tell of it."""
    lines = _CALLING.sub("", str(error).strip()).splitlines()
    return lines[0] if lines else type(error).__name__
