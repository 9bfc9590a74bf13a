"""What the pipeline offers a broker: packs it wrote anew, and of which rows each is a copy.

    archive/store=HEX/_upkeep/run=ID/queue=NAME/new-*.parquet    a pack (pack.py)
    archive/store=HEX/_upkeep/run=ID/queue=NAME/new-*.origins    (pack, body_at) of each row's
                                                                 original, as dead marks are
    archive/store=HEX/_upkeep/run=ID/expired, damaged            keys of messages
    archive/store=HEX/_upkeep/mapping.json                       names them, written last

There is one mapping of a store at a time: it is created, never overwritten, and goes when the
broker has applied it. What no mapping names was never offered. Readers of Parquet directories skip
what is below a name that starts with an underscore, so that nobody sees a message twice.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import crc32c
import msgspec
import numpy as np

from ebbmq.errors import DamagedRecord
from ebbmq.holding.archive import ROOT, UPKEEP

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1
_HEAD: Final = Struct("<4sI")
_MAGIC: Final = b"EBK1"
_KEYS: Final = np.dtype([("pid", "<u4"), ("seq", "<u8")])


class Offered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new pack: its name, and what it must be to be the one meant."""

    path: str
    bytes: int
    rows: int

    @property
    def origins_path(self) -> str:
        """What says of which rows it is a copy."""
        return self.path.removesuffix(".parquet") + ".origins"


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run offers the broker of one store."""

    format: int = FORMAT
    store: str
    run: str
    made_at_ms: int
    packs: tuple[Offered, ...]
    #: Messages that were first published before this instant are to leave; 0: none. By the clock of
    #: `made_at_ms`, which is the pipeline's: a broker goes by `keep_ms`.
    expired_before_ms: int = 0
    expired: int = 0
    damaged: int = 0

    @property
    def keep_ms(self) -> int | None:
        """How long messages are kept, which no clock changes; None: for ever."""
        if not 0 < self.expired_before_ms <= self.made_at_ms:
            return None
        return self.made_at_ms - self.expired_before_ms

    @property
    def root(self) -> str:
        """Where everything of the run is."""
        return run_root(self.store, self.run)


def upkeep_root(store: str) -> str:
    """Where runs write for a store, by the hexadecimal digits of its uuid."""
    return f"{ROOT}/store={store}/{UPKEEP}"


def run_root(store: str, run: str) -> str:
    """Where one run writes."""
    return f"{upkeep_root(store)}/run={run}"


def mapping_path(store: str) -> str:
    """What makes a run visible to the broker."""
    return f"{upkeep_root(store)}/mapping.json"


def encode(mapping: Mapping) -> bytes:
    """A mapping as it is stored."""
    return msgspec.json.format(msgspec.json.encode(mapping), indent=1)


def decode(stored: bytes, store: str) -> Mapping:
    """Read the mapping of a store.

    Raises:
        DamagedRecord: it is none, of another format, or names something that is not the run's.
    """
    try:
        mapping = msgspec.json.decode(stored, type=Mapping)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecord(f"{mapping_path(store)} is no mapping: {error}", "delete it") from error
    if mapping.format != FORMAT or mapping.store != store or "/" in mapping.run:
        raise DamagedRecord(
            f"{mapping_path(store)} is of format {mapping.format} for store {mapping.store!r:.40}",
            f"delete it; this version reads format {FORMAT}",
        )
    for offered in mapping.packs:
        parts = offered.path.removeprefix(f"{mapping.root}/").split("/")
        if not offered.path.startswith(f"{mapping.root}/queue=") or len(parts) != 2:  # noqa: PLR2004  # directory and name
            raise DamagedRecord(
                f"{mapping_path(store)} names {offered.path!r:.200}, which is not of its run",
                "delete it: no run of the pipeline wrote it",
            )
    return mapping


def pack_keys(keys: Sequence[tuple[int, int]]) -> bytes:
    """Keys (pid, seq) as an object holds them."""
    plain = np.array(list(keys), _KEYS).tobytes()
    return _HEAD.pack(_MAGIC, crc32c.crc32c(plain)) + plain


def unpack_keys(data: bytes) -> list[tuple[int, int]]:
    """The keys of an object.

    Raises:
        DamagedRecord: it is not what was written.
    """
    plain = data[_HEAD.size :]
    if data[: _HEAD.size] != _HEAD.pack(_MAGIC, crc32c.crc32c(plain)):
        raise DamagedRecord("an object of keys is damaged")
    found: list[Any] = np.frombuffer(plain, _KEYS).tolist()
    return found
