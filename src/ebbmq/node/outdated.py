"""Queues as an earlier version declared them: a store opens whatever bounds specs have by now."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from ebbmq.model import BAND_WIDTH_MIN, SPEC_FLOATS, SPEC_WHOLE, SPEC_WHOLE_OR_NONE
from ebbmq.node.log import log

T = TypeVar("T")

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    **SPEC_WHOLE,
    **SPEC_WHOLE_OR_NONE,
    **SPEC_FLOATS,
}


def read(payload: bytes | memoryview, kind: type[T]) -> T:
    """Decode what holds declared queues, each with the values nearest to its own.

    Raises:
        InvalidSpec, msgspec.ValidationError: something else is wrong with it.
    """
    told = msgspec.msgpack.decode(payload)
    for queue in told.get("declared", told)["queues"]:
        queue["spec"] = _nearest(queue["spec"])
    return msgspec.convert(told, kind)


def _nearest(spec: dict[str, Any]) -> dict[str, Any]:
    taken = {
        field: type(value)(min(max(value, _BOUNDS[field][0]), _BOUNDS[field][1]))
        for field, value in spec.items()
        if field in _BOUNDS and value is not None
    }
    if 0 < taken.get("band_width", 0) < BAND_WIDTH_MIN:
        taken["band_width"] = BAND_WIDTH_MIN
    for field, value in taken.items():
        if value != spec[field]:
            log.warning(
                "spec_changed",
                queue=spec["name"],
                detail=f"{field} was {spec[field]!r}, which is not taken any more: it is {value!r}",
            )
    return {**spec, **taken}
