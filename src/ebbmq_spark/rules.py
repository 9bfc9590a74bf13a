"""Conditions of storage rules as Spark columns: one rule text, two engines.

The meaning is that of `ebbmq.policy.rules.conditions`: a number is always there, a text may be
absent, nothing is equal to an absent text and `!=` is the opposite of `==`. So no column made here
is ever null, whatever the rows hold.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final, assert_never

from pyspark.sql import functions as F

from ebbmq.policy.rules.conditions import (
    KEYWORDS,
    All,
    Always,
    Any,
    Compare,
    Contains,
    IsPresent,
    Leaf,
    Not,
    OneOf,
)
from ebbmq.policy.rules.properties import UNKNOWN, Properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column

    from ebbmq.policy.rules.conditions import Condition, Property
    from ebbmq.policy.rules.properties import States

_ORDER: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DEFAULTS: Final = Properties()


def column_of(condition: Condition, columns: Mapping[str, Column], states: States) -> Column:
    """Whether a condition is true of a row.

    Args:
        condition: of a rule, as it was parsed.
        columns: a column for each attribute of `Properties` that rows know; `headers` is a map.
            What they do not know is as in `Properties()`.
        states: the devices at this moment; they are the same for every row.
    """
    match condition:
        case Not(part):
            return ~column_of(part, columns, states)
        case All(parts):
            return _joined([column_of(part, columns, states) for part in parts], operator.and_)
        case Any(parts):
            return _joined([column_of(part, columns, states) for part in parts], operator.or_)
        case leaf:
            return _leaf(leaf, columns, states)


def _leaf(leaf: Leaf, columns: Mapping[str, Column], states: States) -> Column:
    match leaf:
        case Always():
            return F.lit(True)
        case Compare(of, comparator, value):
            return _compare(_value(of, columns, states), comparator, value)
        case OneOf(of, values):
            return _surely(_value(of, columns, states).isin(list(values)))
        case IsPresent(of):
            return _value(of, columns, states).isNotNull()
        case Contains(of, part):
            return _surely(F.contains(_value(of, columns, states), F.lit(part)))
        case _:
            assert_never(leaf)


def _compare(column: Column, comparator: str, value: float | str) -> Column:
    if comparator == "==":
        return column.eqNullSafe(F.lit(value))
    if comparator == "!=":
        return ~column.eqNullSafe(F.lit(value))
    return _surely(_ORDER[comparator](column, F.lit(value)))


def _value(of: Property, columns: Mapping[str, Column], states: States) -> Column:
    keyword, name = KEYWORDS[of.keyword], of.argument
    if keyword.needs == "device":
        assert name is not None
        return F.lit(float(getattr(states.get(name, UNKNOWN), keyword.attribute)))
    known = columns.get(keyword.attribute)
    if keyword.needs == "header":
        assert name is not None
        return F.lit(None).cast("string") if known is None else F.try_element_at(known, F.lit(name))
    default = F.lit(getattr(_DEFAULTS, keyword.attribute))
    if keyword.kind == "number":
        return default if known is None else F.coalesce(known.cast("double"), default)
    return default.cast("string") if known is None else known


def _surely(column: Column) -> Column:
    return F.coalesce(column, F.lit(False))


def _joined(parts: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """AND or OR of columns; neighbours are joined, so that the tree stays flat."""
    while len(parts) > 1:
        pairs = [join(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]
