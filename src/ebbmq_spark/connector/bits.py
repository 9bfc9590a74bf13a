"""Dead rows of packs, told to Spark by its public verbs: as the one value of a subquery.

The value is an array with a place for each number of a pack, store after store, from the first to
the last that has dead rows; in it are the bits of that pack. Spark computes it once for a query and
shows none of it in a plan. A filter looks at the bit of each row, by the number of the row in its
file. As nothing but a filter is added, filters of the query come after it, and go to the reader.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import functions as F

from ebbmq_spark.connector.packs import BITS_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from ebbmq_spark.connector.files import NamedFile

#: An empty place takes 8 bytes: together at most as much as all bits.
PLACES_MAX: Final = BITS_BYTES_MAX // 8
_WORD_SHIFT: Final = 6
_WORD_MASK: Final = 63
_TYPE: Final = pa.list_(pa.list_(pa.int64()))


class Bits(NamedTuple):
    """What is dead of some packs."""

    places: list[npt.NDArray[np.int64] | None]
    #: By store: what makes of the number of a pack its place.
    shifts: dict[str, int]

    def alive(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The rows of packs that are not dead; of each pack something is."""
        told = spark.createDataFrame(pa.table({"bits": pa.array([self.places], _TYPE)}))
        when: Any = functools.reduce(_shifted, self.shifts.items(), F)
        row = F.col("_metadata.row_index")
        here = F.get(told.scalar(), when.cast("int"))
        word = F.get(here, F.shiftright(row, _WORD_SHIFT).cast("int"))
        bit = F.getbit(word, row.bitwiseAND(_WORD_MASK).cast("int"))
        # Rather an error than wrong rows.
        unknown = F.raise_error(F.concat(F.lit("rows were added to "), "_metadata.file_name"))
        return frame.where(F.coalesce(bit, unknown) == 0)


def bits_of(packs: Sequence[NamedFile], places_max: int = PLACES_MAX) -> Bits | None:
    """What is dead of packs, each of which has dead rows; None if that is too much to be told."""
    by_store: dict[str, dict[int, bytes | None]] = {}
    for each in packs:
        by_store.setdefault(str(each.told["store"]), {})[int(each.told["pack"])] = each.dead
    found = Bits([], {})
    for store, dead in by_store.items():
        first, last = min(dead), max(dead)
        if len(found.places) + last - first >= places_max:
            return None
        found.shifts[store] = len(found.places) - first
        found.places.extend(_words(dead.get(pack)) for pack in range(first, last + 1))
    return found


def _words(dead: bytes | None) -> npt.NDArray[np.int64] | None:
    return None if dead is None else np.frombuffer(dead, "<i8")


def _shifted(when: Any, of: tuple[str, int]) -> Any:
    store, shift = of
    return when.when(F.col("store") == store, F.col("pack") + shift)
