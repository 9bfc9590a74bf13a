"""The bands of many messages at once are those of one by one."""

from __future__ import annotations

import numpy as np
import pytest

from ebbmq.core.classes import Classes, class_key
from ebbmq.core.row import RATE_UNIT


@pytest.mark.parametrize("band_width", [0.05, 0.5, 1.0, 3.0, 10.0])
def test_bands_at_is_band_at_of_each(band_width: float) -> None:
    classes = Classes(band_width)
    numbers, ages = [], []
    for importance in range(1, 11):
        for rate in (0, RATE_UNIT // 3, RATE_UNIT):
            known = classes.of_key(class_key(importance, rate, 1_000))
            instants = {0, 1, 999, 1_000, 1_000_000}
            instants |= {age + step for age in known.leaves for step in (-1, 0, 1)}
            for age in sorted(instants):
                if 0 <= age < 1 << 48:
                    numbers.append(known.number)
                    ages.append(age)
    found = classes.bands_at(np.array(numbers), np.array(ages))
    assert found.tolist() == [
        classes.all[number].band_at(age) for number, age in zip(numbers, ages, strict=True)
    ]


def test_a_class_that_comes_later_is_known_too() -> None:
    classes = Classes(1.0)
    classes.of_key(class_key(3, 0, 1))
    assert classes.bands_at(np.array([0]), np.array([5])).tolist() == [3]
    classes.of_key(class_key(9, 0, 1))
    assert classes.bands_at(np.array([0, 1]), np.array([5, 5])).tolist() == [3, 9]
