"""Numbers many at once: the distinct values of a column, and consecutive ones as a range.

`numpy.unique` loads masked arrays when it is first called without an index: twenty milliseconds, in
the middle of a lease if it comes to that. Sorting is quicker, too, for the columns there are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

#: Fewer are not worth a look.
_RUN_MIN: Final = 8


def distinct_values(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values that occur, each once, the smallest first."""
    found = np.sort(column)
    is_new = np.ones(len(found), dtype=np.bool_)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return found[is_new]


def as_run(numbers: Sequence[int]) -> Sequence[int]:
    """The same, as a range where many are consecutive: that they are is then seen at a glance."""
    count = len(numbers)
    if count < _RUN_MIN or type(numbers) is range or numbers[-1] - numbers[0] != count - 1:
        return numbers
    run = range(numbers[0], numbers[0] + count)
    return run if list(numbers) == list(run) else numbers
