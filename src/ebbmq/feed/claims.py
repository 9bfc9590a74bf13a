"""What makes a place a lake: a node has claimed its name there, or has shown something in it.

A node claims its name before it writes anything else. Who copies a lake may leave that out, and a
lake that was taken away is claimed anew only with the next snapshot: so what nodes showed counts,
too. Any other place is refused by name: a job that took it for an empty lake would say that nothing
is to be done, and leave its own records among what somebody else keeps there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.feed import layout
from ebbmq.feed.manifests import UnknownFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


#: Where nodes put what shows a place to be a lake.
_MARKS: Final = (
    layout.NODES,
    f"{layout.EVENTS}/{layout.MANIFESTS}",
    f"{layout.CATALOG}/{layout.MANIFESTS}",
)


def is_lake(names: Callable[[str], Iterable[object]]) -> bool:
    """Whether a place is one, by what there is below a prefix."""
    return any(True for mark in _MARKS for _ in names(mark))


def is_lake_at(root: Path) -> bool:
    """Whether a directory is one."""
    return is_lake(lambda mark: (root / mark).rglob("*.json"))


def claim(root: Path, node: str, store: str = "00") -> None:
    """Claim a node's name in a directory, for lakes that no broker writes: of tests and benches."""
    place = root / layout.node_file(node)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(msgspec.json.encode({"store": store}))


def no_lake(where: str) -> UnknownFeed:
    """The refusal of a place without a claim: a directory, or the URL of an object store."""
    if "://" in where:
        return UnknownFeed(
            f"there is no lake at {where}: no node has written to it",
            "name the URL that feed.lake of the nodes' configuration names",
        )
    root = Path(where)
    why = "no node has written to it" if root.is_dir() else "there is no such directory"
    parent = next((each for each in root.absolute().parents if is_lake_at(each)), None)
    return UnknownFeed(
        f"there is no lake at {where}: {why}",
        "name the directory that feed.lake of the nodes' configuration names"
        + ("" if parent is None else f"; its parent {parent} is one"),
    )


def no_archive(where: str) -> UnknownFeed:
    """The refusal of a place where no object device has written; it tries that it can at once."""
    return UnknownFeed(
        f"there is no archive at {where}: no broker has written to it",
        "name the directory or the URL that url of an object device names in the brokers' "
        "configuration",
    )
