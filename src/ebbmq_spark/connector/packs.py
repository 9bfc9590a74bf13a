"""The packs of an archive in a directory, named to Spark's own reader.

Dead marks say where in a pack a body is, Spark knows rows by their number: the footer of a pack
tells which is which. It is read for packs with dead rows only, and what came of it is kept, as the
next query asks the same.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq import limits
from ebbmq.holding import pack
from ebbmq_spark import places
from ebbmq_spark.connector import archive
from ebbmq_spark.connector.files import NamedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What the bits of one archive take at most: 32 Mi rows. The driver has them for as long as it has
#: the plan of a query, and a task those of its packs.
BITS_BYTES_MAX: Final = 4 * limits.MIB
_WORD_BYTES: Final = 8
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
    root: Path, names: Sequence[str], bytes_max: int = BITS_BYTES_MAX
) -> list[NamedFile] | None:
    """The packs there are as of now; None if what is dead of them is too much to be told.

    Args:
        root: where `archive` is.
        names: the columns that are asked for.
        bytes_max: what the bits of dead rows may take.

    Raises:
        EbbError: there is no such directory, a pack is cut off, or dead marks cannot be read.
    """
    files = places.open_place(places.Place(str(root)))
    out = []
    bits_bytes = 0
    for path, size, dead in archive.packs_of(files):
        # A pack that is cut off is told of before anything is read.
        footer = archive.footer_of(files, path, whole=bool(dead))
        bits = _dead_rows.of(footer, dead) if dead else None
        bits_bytes += len(bits or b"")
        if bits_bytes > bytes_max:
            _say_too_much(root, bytes_max)
            return None
        told = {name: value for name, value in archive.told_by(path).items() if name in names}
        out.append(NamedFile(str(root / path), size, told, bits))
    return out


@functools.lru_cache(maxsize=64)
def _say_too_much(root: Path, bytes_max: int) -> None:
    """Once for an archive: each query asks, and nothing is kept of what is too much."""
    _logger.warning(
        "the archive in %s is read by Python: its packs with dead rows have more than %s rows; "
        "ebbmq pipeline upkeep writes packs without them",
        root,
        f"{8 * bytes_max:,}",
    )


def _bits(footer: bytes, dead: bytes) -> bytes:
    is_dead = np.isin(pack.read_rows(footer)["body_at"], np.frombuffer(dead, "<u4"))
    bits = np.packbits(is_dead, bitorder="little").tobytes()
    return bits + bytes(-len(bits) % _WORD_BYTES)
