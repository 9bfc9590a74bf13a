"""What a run goes on from: the last one before it of which all that it counted can be read.

A run adds to what the one before it counted, so what is damaged must not be taken for nothing. Then
it goes on from an earlier run, and from where that one had read: its tables are kept for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.feed import layout
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.rates import RATES
from ebbmq.feed.runs import record_file
from ebbmq.feed.steps import STEPS
from ebbmq_spark import soundness
from ebbmq_spark.jobs.history import NEEDED, run_name
from ebbmq_spark.lake import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbmq.feed.layout import Named
    from ebbmq.feed.manifests import Manifest
    from ebbmq.feed.runs import Record
    from ebbmq.feed.table import Table
    from ebbmq_spark.jobs.history import History
    from ebbmq_spark.lake import Lake

#: What a run counts. An earlier version wrote no steps, but profiles are there of every run.
_COUNTED: Final = (PROFILES, STEPS, RATES)


class Base(NamedTuple):
    """Where a run goes on from."""

    #: None where there was no run before.
    record: Record | None
    #: What it counted.
    manifests: list[Manifest]
    #: What cannot be read of that and of records; by name, why.
    refused: dict[str, UnknownFeed]
    #: For people, if it is not the last one.
    notes: tuple[str, ...] = ()


def base(lake: Lake, known: History, aside: Mapping[str, UnknownFeed], *, anew: bool) -> Base:
    """The last run that can be gone on from.

    Args:
        lake: where.
        known: its records.
        aside: manifests that are known to name a damaged file, and why.
        anew: if there is none, do without.

    Raises:
        UnknownFeed: there were runs, and none that can be gone on from.
    """
    wrong = dict(known.refused)
    own = [each for each in reversed(known.records) if each.kind == "run"]
    # What earlier runs counted is not kept.
    runs = list(dict.fromkeys(each.counted for each in own))[:NEEDED]
    for record in own:
        if record.counted not in runs:
            continue
        found, faults = _counted(lake, record.counted, aside)
        if not faults:
            return Base(record, found, wrong, _notes(lake, record, own[0], known))
        runs.remove(record.counted)
        wrong |= faults
    unread = [name for name in known.refused if _has_counted(lake, name)]
    if anew or not (own or unread):
        return Base(None, [], wrong)
    first = next(iter(wrong.values()))
    raise UnknownFeed(
        f"there is no run to go on from: {first.detail}",
        "restore that, or count anew the events that are still there: ebbmq pipeline run --full",
    )


def _has_counted(lake: Lake, record: str) -> bool:
    """Whether a record that cannot be read is that of a run that counted, and of no other kind."""
    run = record.rpartition("/")[2].removesuffix(".json")
    return any(of_run(lake, PROFILES, run))


def _notes(lake: Lake, record: Record, last: Record, known: History) -> tuple[str, ...]:
    later = (name for name in known.refused if name > record_file(record.run))
    if record is last and not any(_has_counted(lake, name) for name in later):
        return ()
    return (f"what later runs counted cannot be read, so this one goes on from {record.run}",)


def _counted(
    lake: Lake, run: str | None, aside: Mapping[str, UnknownFeed]
) -> tuple[list[Manifest], dict[str, UnknownFeed]]:
    """What a run counted, and what of it cannot be read."""
    found: list[Manifest] = []
    wrong: dict[str, UnknownFeed] = {}
    if run is None:
        return found, wrong
    for table in _COUNTED:
        manifests, faults = of_run(lake, table, run)
        found += manifests
        wrong |= faults
    if PROFILES.name not in {each.table for each in found} and not wrong:
        place = layout.run_directory(PROFILES.name, run)
        wrong[place] = UnknownFeed(f"there is no manifest of {place}", "restore it")
    wrong |= soundness.refused(lake, found)
    names = (soundness.name_of(each) for each in found)
    return found, {**wrong, **{name: aside[name] for name in names if name in aside}}


def of_run(lake: Lake, table: Table, run: str) -> tuple[list[Manifest], dict[str, UnknownFeed]]:
    """The manifests of what a run wrote of a table, and by name why one cannot be read."""

    def is_own(told: Named) -> bool:
        # A run is named by its instant, and so are its manifests.
        return told.node == layout.PIPELINE and run_name(told.at_ms) == run

    seen = visible(lake, table, is_own)
    wrong = zip(seen.refused_names, seen.refused, strict=True)
    # What has no name of a manifest is of no run.
    return seen.manifests, {name: why for name, why in wrong if layout.named(name) is not None}
