"""Where things are in a lake: one tree of names, the same in a directory and in a bucket.

    events/date=2026-11-16/hour=03/node=a/00000012-000000001.parquet
    events/_manifests/date=2026-11-16/0001700000000000-a-00000012-000000001.json
    catalog/at=0001700000000000/node=a/00000012-000000003.parquet
    plans/run=20261116T030000123Z/part-00000.parquet
    plans/_manifests/date=2026-11-16/0001700000000000-pipeline-00000000-000000001.json

Files are found by manifests alone; directories are for people and for clearing old days away.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

EVENTS: Final = "events"
CATALOG: Final = "catalog"
ARCHIVE: Final = "archive"
PLANS: Final = "plans"
PROFILES: Final = "profiles"
RATES: Final = "rates"
REPORTS: Final = "reports"
#: The page of the last run.
LATEST_REPORT: Final = f"{REPORTS}/latest.html"
#: Readers of Parquet directories skip names that start with an underscore.
MANIFESTS: Final = "_manifests"
REJECTED: Final = "_rejected"
#: Who writes plans, rates and profiles: the node of their manifests.
PIPELINE: Final = "pipeline"
#: Which store writes under a node's name.
NODES: Final = "_nodes"


def segment(value: str) -> str:
    """A value as part of a name: a slash or a dot in it does not lead anywhere else."""
    return quote(value, safe="").replace(".", "%2E") or "%00"


def value_of(part: str) -> str:
    """The value of a part of a name."""
    return unquote("" if part == "%00" else part)


def date_of(at_ms: int) -> str:
    """The day of an instant, in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%Y-%m-%d")


def hour_of(at_ms: int) -> str:
    """The hour of an instant, in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%H")


def events_file(at_ms: int, node: str, boot: int, number: int) -> str:
    """The file of a node's events; `number` counts the files of a boot."""
    directory = f"{EVENTS}/date={date_of(at_ms)}/hour={hour_of(at_ms)}/node={segment(node)}"
    return f"{directory}/{boot:08d}-{number:09d}.parquet"


def catalog_file(at_ms: int, node: str, boot: int, number: int) -> str:
    """A file of a node's snapshot at an instant, which may have several; numbers as of events."""
    directory = f"{CATALOG}/at={at_ms:016d}/node={segment(node)}"
    return f"{directory}/{boot:08d}-{number:09d}.parquet"


def run_directory(table: str, run: str) -> str:
    """Where a run of the pipeline has its files of a table: plans, rates, profiles."""
    return f"{table}/run={segment(run)}"


def plan_file(run: str, number: int) -> str:
    """A file of a run's plan."""
    return f"{run_directory(PLANS, run)}/part-{number:05d}.parquet"


def rate_file(run: str, number: int) -> str:
    """A file of the decay factors a run recommends."""
    return f"{run_directory(RATES, run)}/part-{number:05d}.parquet"


def profile_file(run: str, number: int) -> str:
    """A file of the latencies a run found."""
    return f"{run_directory(PROFILES, run)}/part-{number:05d}.parquet"


def told_in(path: str, key: str) -> str | None:
    """The value a name gives for a key, as in `run=..`; None where it gives none."""
    for part in path.split("/"):
        name, found, value = part.partition("=")
        if found and name == key:
            return value_of(value)
    return None


def manifest_file(table: str, at_ms: int, node: str, boot: int, number: int) -> str:
    """The manifest that makes files of a table visible; names sort by instant."""
    name = f"{at_ms:016d}-{segment(node)}-{boot:08d}-{number:09d}.json"
    return f"{table}/{MANIFESTS}/date={date_of(at_ms)}/{name}"


class Named(NamedTuple):
    """What the name of a manifest says: it need not be read to be known."""

    at_ms: int
    node: str
    boot: int
    number: int


def named(path: str) -> Named | None:
    """What a manifest is by its name; None where that is no name of one."""
    at, _, rest = path.rpartition("/")[2].removesuffix(".json").partition("-")
    parts = rest.rsplit("-", 2)
    if len(parts) < 3 or not all(each.isdecimal() for each in (at, *parts[1:])):  # noqa: PLR2004  # node, boot, number
        return None
    return Named(int(at), value_of(parts[0]), int(parts[1]), int(parts[2]))


def node_file(node: str) -> str:
    """What says which store writes as this node."""
    return f"{NODES}/{segment(node)}.json"
