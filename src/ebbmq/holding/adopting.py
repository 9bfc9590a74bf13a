"""Applying what the pipeline offers to the packs of a store, one pack at a time.

The broker has the last word: a message that left or moved since the run read it is not taken from
a new pack. Nothing here needs to be remembered: a pack that was taken is not where it was offered
any more, and when all were looked at, the mapping goes. So a mapping that is applied twice, or
again after a crash, changes nothing that was not to be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ebbmq.errors import DamagedRecord
from ebbmq.holding import dead_marks, mapping, pack
from ebbmq.holding.contract import Adopted
from ebbmq.holding.footers import footer_of
from ebbmq.holding.pack_index import ENTRY

if TYPE_CHECKING:
    from ebbmq.holding.archive import Archive
    from ebbmq.holding.bucket import Bucket
    from ebbmq.holding.mapping import Mapping, Offered
    from ebbmq.holding.pack_index import Entries


class Adoption:
    """A mapping that is being applied; a step at a time, so that reads need not wait for all."""

    def __init__(self, bucket: Bucket, archive: Archive, found: Mapping) -> None:
        self._bucket = bucket
        self._archive = archive
        self._mapping = found
        self._waiting = list(found.packs)
        self._is_new = True

    @classmethod
    def find(cls, bucket: Bucket, archive: Archive, store: bytes) -> Adoption | None:
        """What is offered to a store; None if there is nothing.

        Raises:
            DamagedRecord: what is there is no mapping.
        """
        stored = bucket.get(mapping.mapping_path(store.hex()))
        if stored is None:
            return None
        return cls(bucket, archive, mapping.decode(stored, store.hex()))

    def step(self) -> Adopted:
        """Take the next pack; after the last one everything that was offered is deleted."""
        told = Adopted(self._mapping.run)
        if self._is_new:
            self._is_new = False
            told = self._told_keys(told)
        if self._waiting:
            told = self._take(self._waiting.pop(0), told)
        if not self._waiting:
            self._clear()
        return told._replace(left=len(self._waiting))

    def _told_keys(self, told: Adopted) -> Adopted:
        found = self._mapping
        return told._replace(
            keep_ms=found.keep_ms,
            expired=self._keys("expired") if found.expired else (),
            damaged=self._keys("damaged") if found.damaged else (),
        )

    def _keys(self, name: str) -> tuple[tuple[int, int], ...]:
        data = self._bucket.get(f"{self._mapping.root}/{name}")
        return () if data is None else tuple(mapping.unpack_keys(data))

    def _take(self, offered: Offered, told: Adopted) -> Adopted:
        try:
            read = self._read(offered)
        except DamagedRecord:
            return told._replace(refused=1)
        if read is None:
            return told
        rows, origins = read
        kept = self._archive.adopt(offered.path, rows, origins)
        if not kept:
            return told._replace(refused=1, stale=len(rows))
        return told._replace(packs=1, messages=kept, stale=len(rows) - kept)

    def _read(self, offered: Offered) -> tuple[pack.Rows, Entries] | None:
        """Rows of a pack and their originals; None if it was taken before."""
        tail = footer_of(self._bucket, offered.path, offered.bytes)
        if tail is None:
            return None
        rows = pack.read_rows(tail)
        marks = dead_marks.unpack(self._bucket.get(offered.origins_path) or b"")
        if len(marks) != len(rows) or len(rows) != offered.rows:
            raise DamagedRecord(f"{offered.path} has {len(rows)} rows, not {offered.rows}")
        origins = np.zeros(len(rows), ENTRY)
        origins["pack"], origins["body_at"] = marks[:, 0], marks[:, 1]
        return rows, origins

    def _clear(self) -> None:
        found = self._mapping
        self._archive.drop_empty()
        # The mapping first: without it nobody looks at the rest, which may then go in any order.
        self._bucket.delete([mapping.mapping_path(found.store)])
        self._bucket.delete([each.path for each in self._bucket.list(f"{found.root}/")])
