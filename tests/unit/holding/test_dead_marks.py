"""Dead marks of several objects, by the pack they are of."""

from __future__ import annotations

import numpy as np
import pytest

from ebbmq.errors import DamagedRecord
from ebbmq.holding import dead_marks


def test_marks_are_found_by_pack_in_the_order_they_came() -> None:
    first = np.array([[7, 50], [3, 10], [7, 20]], "<u4")
    second = np.array([[3, 5], [7, 90], [1, 1]], "<u4")
    found = dead_marks.by_pack([first, second])
    assert {number: at.tolist() for number, at in found.items()} == {
        1: [1],
        3: [10, 5],
        7: [50, 20, 90],
    }
    assert dead_marks.by_pack([]) == {}


def test_marks_that_are_not_what_was_written_are_refused() -> None:
    stored = dead_marks.pack(np.array([[7, 50]], "<u4"))
    assert dead_marks.unpack(stored).tolist() == [[7, 50]]
    with pytest.raises(DamagedRecord):
        dead_marks.unpack(stored[:-1] + b"x")
