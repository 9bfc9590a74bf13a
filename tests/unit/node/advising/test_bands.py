"""Bands of a plan: every row is in one of them, the most valuable in the first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ebbmq.node.advising.reading import bands

NAN = float("nan")


@pytest.mark.parametrize("below", [None, 0.5, 2.0, -1.0])
@pytest.mark.parametrize(
    "values",
    [
        [],
        [3.0],
        [NAN, 1.0, NAN],
        [1.0] * 200_000,
        np.arange(200_000) / 200_000,
        np.arange(3_000_000) % 1_000 / 1_000,
    ],
    ids=["none", "one", "no numbers", "all alike", "all apart", "many"],
)
def test_every_row_is_in_one_band_and_worth_less_than_those_before(
    values: object, below: float | None
) -> None:
    every = np.asarray(values, dtype=np.float64)
    found = bands([every[::2], every[1::2]], below)
    assert len(found) <= 17
    in_each = [every[band.has(every)] for band in found]
    assert sum(map(len, in_each)) == len(every)
    ends = [(each.min(), each.max()) for each in in_each if len(each) and not np.isnan(each).any()]
    assert all(before[0] > after[1] for before, after in itertools.pairwise(ends))
    if below is not None:
        assert (in_each[0] > below).all()
    if len(np.unique(every)) > 1 and not np.isnan(every).any():
        # They fit into memory.
        rest = in_each if below is None else in_each[1:]
        assert max(map(len, rest)) <= max(65_536, len(every) // 16 + 3_000)
