"""Amounts of money as people read them; of which currency is theirs to know."""

from __future__ import annotations

import math
from typing import Final

#: From here on two decimals have two digits that say something.
_CENTS: Final = 0.1
#: Below there are more zeros than anybody counts.
_SMALL: Final = 1e-6


def show(amount: float) -> str:
    """`1,234.50`, and less than that with two digits that are not zero: `0.0010`."""
    size = abs(amount)
    if not size or size >= _CENTS:
        return f"{amount:,.2f}"
    if size < _SMALL:
        return f"{amount:.1e}"
    return f"{amount:.{1 - math.floor(math.log10(size))}f}"
