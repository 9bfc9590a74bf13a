"""Rows of a plan, from Parquet or from a request, as one array; what cannot be one is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq import limits
from ebbmq.feed.plans import ACTIONS
from ebbmq.node.outflow import parse_id

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
    rows["queue"], rows["action"] = columns["queue"], columns["action"]
    rows["to_tier"] = [each or None for each in columns["to_tier"]]
    rows["reason"] = [str(each or "")[:_REASON_CHARS_MAX] for each in columns["reason"]]
    places = [_place(each) for each in ids]
    rows["pid"], rows["seq"] = [pid for pid, _ in places], [seq for _, seq in places]
    for name in _NUMBERS:
        rows[name] = [_NONE if each is None or each >> 62 else each for each in columns[name]]
    rows["value"] = [0.0 if each is None else each for each in columns["value"]]
    valid = rows["pid"] >= 0
    for name in _NUMBERS:
        valid &= rows[name] >= 0
    valid &= (rows["target"] >= 1) & (rows["target"] <= limits.REPLICAS_MAX)
    valid &= np.array([each in _GOOD_ACTIONS for each in columns["action"]], dtype=bool)
    valid &= np.array([isinstance(each, str) for each in columns["queue"]], dtype=bool)
    rows["is_valid"] = valid
    return rows


def _place(message_id: object) -> tuple[int, int]:
    """Partition and number of a message; -1 where an id is none."""
    found = parse_id(message_id) if isinstance(message_id, str) else None
    return found if found is not None and found[1] <= _SEQ_MAX else (-1, 0)
