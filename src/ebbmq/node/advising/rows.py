"""Rows of a plan, from Parquet, as one array; what cannot be one is marked."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq import limits
from ebbmq.feed.plans import ACTIONS
from ebbmq.node.outflow import parse_id
from ebbmq.plain import are_plain, is_text, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.void]
    Ints = npt.NDArray[np.int64]

_TEXTS: Final = ("queue", "action", "to_tier", "reason")
_NUMBERS: Final = ("generation", "target", "policy_version", "decided_at_ms", "until_ms")
#: What is read of a plan's file.
COLUMNS: Final = ("node", "message_id", *_TEXTS, *_NUMBERS, "value")
DTYPE: Final = np.dtype(
    [
        *((name, "O") for name in _TEXTS),
        *((name, "<i8") for name in ("pid", "seq", *_NUMBERS)),
        ("value", "<f8"),
        ("is_valid", "?"),
    ]
)
#: A number that is missing: none of these is ever below 0.
_NONE: Final = -1
_GOOD_ACTIONS: Final = frozenset(ACTIONS)
_SEQ_MAX: Final = (1 << 48) - 1
#: A reason is for people; a longer one is cut off.
_REASON_CHARS_MAX: Final = 200


def rows_of(columns: Mapping[str, Sequence[Any]]) -> Rows:
    """Rows of columns that may lack values, or hold some that cannot be."""
    ids = columns["message_id"]
    rows = np.empty(len(ids), dtype=DTYPE)
    valid = np.ones(len(ids), dtype=bool)
    texts = {name: _texts(columns[name], valid) for name in _TEXTS}
    rows["queue"], rows["action"] = texts["queue"], texts["action"]
    rows["to_tier"] = [each or None for each in texts["to_tier"]]
    rows["reason"] = [(each or "")[:_REASON_CHARS_MAX] for each in texts["reason"]]
    places = [_place(each) for each in ids]
    rows["pid"], rows["seq"] = [pid for pid, _ in places], [seq for _, seq in places]
    for name in _NUMBERS:
        rows[name] = [
            each if type(each) is int and not each >> 62 else _number(each)
            for each in columns[name]
        ]
    rows["value"] = [each if type(each) is float else _value(each) for each in columns["value"]]
    valid &= rows["pid"] >= 0
    for name in _NUMBERS:
        valid &= rows[name] >= 0
    valid &= (rows["target"] >= 1) & (rows["target"] <= limits.REPLICAS_MAX)
    valid &= np.array([each in _GOOD_ACTIONS for each in texts["action"]], dtype=bool)
    valid &= np.array([each is not None for each in texts["queue"]], dtype=bool)
    rows["is_valid"] = valid
    return rows


def _texts(column: Sequence[Any], valid: npt.NDArray[np.bool_]) -> Sequence[str | None]:
    """Texts as Python itself has them, and None; a row with anything else is not valid."""
    if are_plain(column):
        try:
            # What a file has is text: to look at each alone takes several times as long.
            "".join("" if each is None else each for each in column).encode()
        except (TypeError, UnicodeEncodeError):
            pass
        else:
            return column
    known = [each is None or is_text(each) for each in column]
    valid &= np.array(known, dtype=bool)
    return [plain(each) if is_so else None for each, is_so in zip(column, known, strict=True)]


def _number(value: object) -> int:
    """A number as numpy, too, may have it; _NONE for what cannot be."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return _NONE
    number = int(value)
    return _NONE if number >> 62 else number


def _value(value: object) -> float:
    """What a row is worth; nothing where it does not say in a number."""
    try:
        return float(value) if isinstance(value, Real) else 0.0
    except OverflowError:
        return 0.0


def _place(message_id: object) -> tuple[int, int]:
    """Partition and number of a message; -1 where an id is none."""
    found = parse_id(message_id) if isinstance(message_id, str) else None
    return found if found is not None and found[1] <= _SEQ_MAX else (-1, 0)
