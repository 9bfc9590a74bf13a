"""The packs of an archive, named to Spark's own reader.

Dead marks say where in a pack a body is, Spark knows rows by their number: the footer of a pack
tells which is which. It is read for packs with dead rows only, and what came of it is kept, as the
next query asks the same.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.holding import pack
from ebbmq_spark import places
from ebbmq_spark.connector import archive, signed
from ebbmq_spark.connector.files import NamedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq_spark.connector.archive import Pack
    from ebbmq_spark.places import Files, Place

#: What the bits of one archive take at most: 32 Mi rows. The driver has them for as long as it has
#: the plan of a query, and a task those of its packs.
BITS_BYTES_MAX: Final = 4 * limits.MIB
_WORD_BYTES: Final = 8
#: Ends of packs that are looked at at once: in a store it is mostly waiting.
_AT_ONCE: Final = 16
_logger = logging.getLogger("ebbmq.spark")


class DeadRows:
    """Which rows of packs are dead, as bits; those asked for last are at hand."""

    def __init__(self, bytes_max: int = BITS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._known: dict[bytes, bytes] = {}
        self._bytes = 0
        #: Java asks in threads of its own.
        self._guard = threading.Lock()

    def of(self, footer: bytes, dead: bytes) -> bytes:
        """A bit for each row of a pack, set if it is dead, in words of 64 bits.

        Args:
            footer: of the pack.
            dead: `body_at` of its dead rows, as u32.

        Raises:
            DamagedRecord: the footer cannot be read.
        """
        digest = hashlib.blake2b(dead, digest_size=32, key=hashlib.blake2b(footer).digest())
        name = digest.digest()
        with self._guard:
            bits = self._known.pop(name, None)
            if bits is None:
                bits = _bits(footer, dead)
                self._bytes += len(bits)
            self._known[name] = bits
            while self._bytes > self._bytes_max and len(self._known) > 1:
                self._bytes -= len(self._known.pop(next(iter(self._known))))
        return bits


_dead_rows: Final = DeadRows()


def files_of(
    place: Place, names: Sequence[str], bytes_max: int = BITS_BYTES_MAX
) -> list[NamedFile] | None:
    """The packs there are as of now; None if what is dead of them is too much to be told.

    Args:
        place: where `archive` is; None is told of one whose objects nobody else can be let read.
        names: the columns that are asked for.
        bytes_max: what the bits of dead rows may take.

    Raises:
        EbbError: there is no such directory, a pack is cut off, or dead marks cannot be read.
    """
    files = places.open_place(place)
    found = archive.packs_of(files)
    told = signed.addresses(place, files, [each.path for each in found])
    bits = None if told is None else _all_bits(files, found, bytes_max)
    if told is None or bits is None:
        return None
    out = []
    for each, at, dead in zip(found, told, bits, strict=True):
        columns = archive.told_by(each.path)
        chosen = {name: value for name, value in columns.items() if name in names}
        out.append(NamedFile(at.path, each.size, chosen, dead, at.url, each.tag))
    return out


def _all_bits(files: Files, found: Sequence[Pack], bytes_max: int) -> list[bytes | None] | None:
    """What is dead of each pack; None if that is too much."""

    def bits_of(each: Pack) -> bytes | None:
        # A pack that is cut off is told of before anything is read.
        footer = archive.footer_of(files, each.path, whole=bool(each.dead))
        return _dead_rows.of(footer, each.dead) if each.dead else None

    out: list[bytes | None] = []
    bits_bytes = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for bits in pool.map(bits_of, found):
            bits_bytes += len(bits or b"")
            if bits_bytes > bytes_max:
                _say_too_much(files.where, bytes_max)
                return None
            out.append(bits)
    return out


@functools.lru_cache(maxsize=64)
def _say_too_much(where: str, bytes_max: int) -> None:
    """Once for an archive: each query asks, and nothing is kept of what is too much."""
    _logger.warning(
        "the archive in %s is read by Python: its packs with dead rows have more than %s rows",
        where,
        f"{8 * bytes_max:,}",
    )


def _bits(footer: bytes, dead: bytes) -> bytes:
    is_dead = np.isin(pack.read_rows(footer)["body_at"], np.frombuffer(dead, "<u4"))
    bits = np.packbits(is_dead, bitorder="little").tobytes()
    return bits + bytes(-len(bits) % _WORD_BYTES)
