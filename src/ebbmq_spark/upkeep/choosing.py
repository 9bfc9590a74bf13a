"""Which packs are worth writing anew, and which of them become one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ebbmq.holding.archive import PACK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ebbmq_spark.upkeep.packs import Pack

DEAD_SHARE: Final = 0.3
#: A pack smaller than this is put together with others.
_SMALL_BYTES: Final = PACK_BYTES // 4
#: As many small ones are worth it though nothing of them is dead.
_SMALL_MIN: Final = 4


class Bin(NamedTuple):
    """Packs of one queue that become one."""

    store: str
    directory: str
    number: int
    packs: tuple[Pack, ...]


def choose(
    packs: Iterable[Pack], seen: Mapping[str, Mapping[str, Any]], dead_share: float
) -> list[Bin]:
    """Bins of thin and of small packs, each at most as large as a pack may be.

    Args:
        packs: in the order of their numbers.
        seen: what was seen of each, by its path; one that is missing or damaged is left alone.
        dead_share: from which share of dead messages on a pack is thin.
    """
    bins: list[Bin] = []
    queues: dict[tuple[str, str], list[Pack]] = {}
    for pack in packs:
        queues.setdefault((pack.store, pack.directory), []).append(pack)
    for (store, directory), some in queues.items():
        worth = [pack for pack in some if _is_worth(pack, seen.get(pack.path), dead_share)]
        for together in _filled(worth, seen):
            is_thin = any(_share(seen[pack.path]) >= dead_share for pack in together)
            if is_thin or len(together) >= _SMALL_MIN:
                bins.append(Bin(store, directory, len(bins), tuple(together)))
    return bins


def _is_worth(pack: Pack, told: Mapping[str, Any] | None, dead_share: float) -> bool:
    if told is None or told["error"] is not None or told["rows"] == told["dead"]:
        return False
    return pack.size < _SMALL_BYTES or _share(told) >= dead_share


def _share(told: Mapping[str, Any]) -> float:
    """What of a pack is dead, or will be once its broker let go of what is too old."""
    gone = told["dead"] + len(told["expired"])
    return float(gone / told["rows"]) if told["rows"] else 0.0


def _filled(packs: list[Pack], seen: Mapping[str, Mapping[str, Any]]) -> Iterable[list[Pack]]:
    """Packs in their order, as many together as fit into one."""
    together: list[Pack] = []
    nbytes = 0
    for pack in packs:
        size = seen[pack.path]["live_bytes"]
        if together and nbytes + size > PACK_BYTES:
            yield together
            together, nbytes = [], 0
        together.append(pack)
        nbytes += size
    if together:
        yield together
