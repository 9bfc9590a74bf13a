"""Filters that Spark offers, as conditions of Arrow: row groups they rule out are not read."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import datasource as ds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMPARISONS: Final[dict[type[ds.Filter], Callable[[Any, Any], Any]]] = {
    ds.EqualTo: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}


def condition_of(each: ds.Filter, names: Sequence[str]) -> Any | None:
    """A filter as a condition; None for one that Spark has to apply itself."""
    column: Sequence[str] = getattr(each, "attribute", ())
    if len(column) != 1 or column[0] not in names:
        return None
    field = pc.field(column[0])
    compare = _COMPARISONS.get(type(each))
    if compare is not None:
        return compare(field, each.value)  # type: ignore[attr-defined]
    if isinstance(each, ds.In):
        return field.isin([value for value in each.value if value is not None])
    if isinstance(each, ds.IsNotNull):
        return field.is_valid()
    if isinstance(each, ds.IsNull):
        return field.is_null()
    return None


def all_of(conditions: Sequence[Any]) -> Any | None:
    """Conditions that must all be met; None without any."""
    return reduce(operator.and_, conditions) if conditions else None
