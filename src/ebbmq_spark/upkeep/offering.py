"""Offering what a run made to the brokers: a mapping for each store, created, never overwritten."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from obstore.exceptions import AlreadyExistsError, BaseError

from ebbmq import limits
from ebbmq.errors import StorageFailed
from ebbmq.holding import mapping
from ebbmq.holding.archive import ROOT, UPKEEP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.holding.bucket import Bucket
    from ebbmq.holding.mapping import Mapping

    Keys = list[tuple[int, int]]

#: What is older was left by a run that was killed.
_LEFT_AFTER_MS: Final = limits.DAY_MS


def is_waiting(bucket: Bucket, store: str) -> bool:
    """Whether a store's broker has yet to apply what an earlier run offered."""
    return bucket.get(mapping.mapping_path(store)) is not None


def offer(bucket: Bucket, made: Mapping, expired: Keys, damaged: Keys) -> bool:
    """Make a run visible to the broker of a store; False if another run was first.

    Raises:
        StorageFailed: it cannot be written.
    """
    for name, keys in (("expired", expired), ("damaged", damaged)):
        if keys:
            bucket.put(f"{made.root}/{name}", mapping.pack_keys(keys))
    try:
        bucket.create(mapping.mapping_path(made.store), mapping.encode(made))
    except AlreadyExistsError:
        withdraw(bucket, made.store, made.run)
        return False
    except BaseError as error:
        raise StorageFailed(
            f"the mapping of store {made.store} cannot be written: {error}"[:400],
            "see that the bucket can be written to, and run upkeep again",
        ) from error
    return True


def withdraw(bucket: Bucket, store: str, run: str) -> None:
    """Delete what a run wrote for a store."""
    bucket.delete([each.path for each in bucket.list(f"{mapping.run_root(store, run)}/")])


def clear_leftovers(bucket: Bucket, stores: Iterable[str], now_ms: int) -> None:
    """Delete what runs left that were killed, unless it is offered or may still be."""
    for store in stores:
        stored = bucket.get(mapping.mapping_path(store))
        offered = None if stored is None else mapping.decode(stored, store).run
        root = f"{ROOT}/store={store}/{UPKEEP}/"
        bucket.sweep(root, before_ms=now_ms - _LEFT_AFTER_MS)
        runs = {
            path.removeprefix(f"{root}run=").split("/")[0]
            for path, _ in bucket.list(root)
            if path.startswith(f"{root}run=")
        }
        for run in runs - {offered}:
            with contextlib.suppress(ValueError):
                if now_ms - int(run.partition("-")[0]) > _LEFT_AFTER_MS:
                    withdraw(bucket, store, run)
