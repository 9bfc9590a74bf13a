"""Bands of a plan: every row is in one of them, the most valuable in the first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ebbmq.node.advising.reading import bands
from ebbmq.node.advising.worth import ENTRIES_MAX, Worth

NAN = float("nan")


def worth(values: np.ndarray, entries_max: int = ENTRIES_MAX) -> Worth:
    """What rows of these values, of a byte each, are worth, taken some at a time."""
    found = Worth(entries_max)
    for at in range(0, len(values), 65_536):
        some = values[at : at + 65_536]
        found.add(some, np.ones(len(some), np.int64))
    return found


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
    found = bands([worth(every[::2]), worth(every[1::2])], below)
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


@pytest.mark.parametrize("order", ["rising", "falling", "mixed", "alike"])
def test_of_many_rows_no_more_is_remembered_and_no_entry_is_worth_less_than_its_rows(
    order: str,
) -> None:
    count, entries_max = 1_000_000, 1_000
    values = np.arange(count, dtype=np.float64)
    if order == "falling":
        values = values[::-1]
    elif order == "mixed":
        values = np.random.default_rng(5).permutation(values)
    elif order == "alike":
        values = np.ones(count)
    found = worth(values, entries_max)
    assert sum(len(part.values) for part in found.parts) <= 2 * entries_max + 65_536
    ranked = found.ranked()
    assert (ranked.counts.sum(), ranked.sizes.sum()) == (count, count)
    assert (np.diff(ranked.values) <= 0).all()
    # Entries above a value have all rows above it, and an entry more each time they were joined.
    joined = count // 65_536 + 1
    for at in range(0, len(ranked.values), 97):
        is_above = ranked.values > ranked.values[at]
        counted, really = ranked.counts[is_above].sum(), (values > ranked.values[at]).sum()
        assert 0 <= counted - really <= joined * count // entries_max


def test_bytes_that_no_number_holds_are_too_many() -> None:
    found = Worth()
    found.add(np.array([1.0, 2.0, NAN]), np.array([1 << 62, 1 << 62, 5], np.int64))
    ranked = found.ranked()
    assert (ranked.values.tolist(), ranked.sizes.sum()) == ([2.0, 1.0, -np.inf], float(1 << 63))
