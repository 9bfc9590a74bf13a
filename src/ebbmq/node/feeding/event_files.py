"""Files of events: by runs where that could be compiled, else by Arrow; the same to who reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq.feed.events import EVENTS
from ebbmq.node.feeding import arrays, parquet
from ebbmq.node.feeding.expanding import ABSENT, Expanded
from ebbmq.node.feeding.unpacking import Room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from pyarrow import Buffer  # type: ignore[import-untyped]  # it has no types

    from ebbmq.feed.table import Column
    from ebbmq.node.feeding.expanding import Texts
    from ebbmq.node.feeding.parquet import Given, Group, Made, Pages

#: Columns that are called otherwise here than in the lake.
_HERE: Final = {"seq": "number", **{there: here for here, there in arrays.CALLED.items()}}
#: By the kind of a column: how it is encoded, and of which type numbers it is.
_HOW: Final[dict[str, tuple[int, type[np.generic]]]] = {
    "int32": (parquet.SMALL, np.int32),
    "int64": (parquet.WIDE, np.int64),
    "float64": (parquet.REAL, np.float64),
    "text": (parquet.CODES, np.int32),
}
#: Each value of these is near the one before it.
_NEAR: Final = ("seq", "at_ms", "enqueued_at_ms")
#: Those by whose range groups of rows are passed over.
_SOUGHT: Final = ("seq", "at_ms")
_HOUR_MS: Final = 3_600_000


class EventFile:
    """Events of an hour, on their way into a file."""

    def __init__(self, texts: Texts, node: str, boot: int) -> None:
        self._texts, self._node, self._boot = texts, node, boot
        self._groups: list[Group] = []
        self._kept: list[Expanded] = []
        self.rows = 0

    def add(self, told: Expanded) -> None:
        """Some events more."""
        self.rows += len(told.columns["number"])
        if parquet.encode_columns is None:
            self._kept.append(told)
        else:
            self._groups.append(_group(told, self._texts.all(), self._node, self._boot))

    def encoded(self) -> bytes | Buffer:
        """The bytes of the file."""
        if parquet.encode_columns is None:
            table = arrays.events_table(self._kept, self._texts, self._node, self._boot)
            return arrays.encode(table)
        return parquet.file_of(EVENTS, self._groups)


def room_for_events() -> Room | None:
    """Where columns may be until they are encoded; None where they must last longer than that."""
    return None if parquet.encode_columns is None else Room()


def by_hour(told: Expanded) -> Iterator[tuple[int, Expanded]]:
    """When each hour begins in which some of the events happened, and these."""
    instants = told.columns["at_ms"]
    first = int(instants.min()) // _HOUR_MS
    if int(instants.max()) // _HOUR_MS == first:
        yield first * _HOUR_MS, told
        return
    hours = instants // _HOUR_MS
    for hour in np.unique(hours).tolist():
        yield hour * _HOUR_MS, _chosen(told, hours == hour)


def _chosen(told: Expanded, which: npt.NDArray[np.bool_]) -> Expanded:
    present = {
        name: np.packbits(np.unpackbits(bits, bitorder="little")[: len(which)][which],
                          bitorder="little")
        for name, bits in told.present.items()
    }  # fmt: skip
    columns = {name: values[which] for name, values in told.columns.items()}
    return Expanded(columns, told.whole, present)


def _group(told: Expanded, words: Sequence[str], node: str, boot: int) -> Group:
    """Events as a group of rows."""
    assert parquet.encode_columns is not None
    rows = len(told.columns["number"])
    same: dict[str, str | int] = {"node": node, "boot": boot}
    given = {
        column.name: found
        for column in EVENTS.columns
        if column.name not in same and (found := _given(told, column)) is not None
    }
    made = dict(zip(given, parquet.encode_columns(list(given.values())), strict=True))
    pages = []
    for column in EVENTS.columns:
        name = column.name
        if name in same:
            pages.append(parquet.of_one_value(column, same[name], rows))
        elif name in made:
            pages.append(_pages(column, given[name], made[name], words))
        else:
            pages.append(parquet.of_no_value(column, rows))
    return parquet.Group(rows, pages)


def _given(told: Expanded, column: Column) -> Given | None:
    """What there is to encode of a column; None where no event has a value of it."""
    if column.name == "message_id":
        pids, seqs = told.columns["pid"], told.columns["seq"]
        return parquet.IDS, _as(pids, np.int64), _as(seqs, np.int64)
    name = _HERE.get(column.name, column.name)
    values = told.columns.get(name)
    if values is None:
        return None
    how, kind = _HOW[column.kind]
    present = None
    if not column.required and name not in told.whole:
        present = told.present.get(name)
        if present is None:
            present = _present(values, ABSENT[name])
    return parquet.NEAR if column.name in _NEAR else how, _as(values, kind), present


def _pages(column: Column, given: Given, made: Made, words: Sequence[str]) -> Pages:
    how, values, present = given
    encoding, count, dictionary, data = made
    distinct = 0
    if dictionary is not None:
        distinct = len(dictionary) // values.itemsize
    if dictionary is not None and how == parquet.CODES:
        codes = np.frombuffer(dictionary, dtype=np.int32).tolist()
        dictionary = parquet.of_texts([words[code] for code in codes])
    if not column.required and present is None:
        data = parquet.every(len(values)) + data
    bounds = (int(values.min()), int(values.max())) if column.name in _SOUGHT else None
    absent = len(values) - count
    return parquet.Pages(column, encoding, data, dictionary, distinct, absent, bounds)


def _as(values: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values, dtype=kind)


def _present(values: npt.NDArray[Any], absent: float) -> npt.NDArray[np.uint8]:
    """A bit for each value, set where it is one."""
    is_there = ~np.isnan(values) if math.isnan(absent) else values != absent
    return np.packbits(is_there, bitorder="little")
