"""The packs of an archive as the driver sees them, and where executors find them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np

from ebbmq.errors import ClientError, DamagedRecord
from ebbmq.feed.claims import no_archive
from ebbmq.holding import dead_marks
from ebbmq.holding.archive import ROOT, UPKEEP
from ebbmq.holding.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = "store string, path string, number long, size long, dead binary"
_DEAD: Final = "_dead"


class UpkeepFailed(ClientError):
    """An archive cannot be kept up as it was asked for."""

    code = "upkeep_failed"


class Place(msgspec.Struct, frozen=True):
    """Where an archive is; it travels to executors, with what they need to get in."""

    url: str
    options: dict[str, str] = {}
    timeout_ms: int = 30_000

    def require(self) -> None:
        """See that a broker has an archive there; it may have no pack yet.

        Raises:
            UnknownFeed: there is none; nothing was written.
            StorageFailed: the bucket cannot be read.
        """
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            # To open a directory would make it.
            root = Path(unquote(parts.path))
            found = any((root / ROOT).rglob("*"))
            where = str(root)
        else:
            bucket = self.open()
            found = any(True for _ in bucket.list(f"{ROOT}/"))
            where = bucket.where
        if not found:
            raise no_archive(where)

    def open(self) -> Bucket:
        """The bucket."""
        return Bucket(self.url, self.options, timeout_ms=self.timeout_ms)


class Pack(NamedTuple):
    """A pack, and the rows of it that its broker marked as dead: `body_at` of each, as u32."""

    store: str
    path: str
    number: int
    size: int
    dead: bytes = b""

    @property
    def directory(self) -> str:
        """That of its queue."""
        return self.path.split("/")[-2]

    def dead_at(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """`body_at` of its dead rows."""
        return np.frombuffer(self.dead, "<u4")


def packs_of(bucket: Bucket) -> list[Pack]:
    """Every pack of every store, in the order of their numbers.

    Raises:
        UpkeepFailed: dead marks cannot be read, so nobody knows what is alive.
    """
    found: list[Pack] = []
    marks: dict[str, list[str]] = {}
    for path, size in bucket.list(f"{ROOT}/"):
        parts = path.split("/")
        store = parts[1].removeprefix("store=") if len(parts) > 1 else ""
        name = parts[-1]
        if UPKEEP in parts:
            continue
        if name.startswith("pack-"):
            number = int("".join(filter(str.isdigit, name)) or 0)
            found.append(Pack(store, path, number, size))
        elif _DEAD in parts:
            marks.setdefault(store, []).append(path)
    dead = {store: _dead(bucket, paths) for store, paths in marks.items()}
    return sorted(
        pack._replace(dead=dead.get(pack.store, {}).get(pack.number, b"")) for pack in found
    )


def _dead(bucket: Bucket, paths: Iterable[str]) -> dict[int, bytes]:
    parts = []
    for path in sorted(paths):
        data = bucket.get(path)
        # Merged into another since it was listed: rows then look alive that the broker refuses.
        if data is None:
            continue
        try:
            parts.append(dead_marks.unpack(data))
        except DamagedRecord as error:
            raise UpkeepFailed(
                f"{path} in {bucket.where} is damaged",
                "restore that object: without it messages that left would look alive",
            ) from error
    return {number: at.astype("<u4").tobytes() for number, at in dead_marks.by_pack(parts).items()}


def frame_of(spark: SparkSession, packs: list[Pack], tasks: int) -> DataFrame:
    """Packs as rows, spread over so many tasks."""
    return spark.createDataFrame([tuple(pack) for pack in packs], _COLUMNS).repartition(tasks)
