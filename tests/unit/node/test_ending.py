"""Ending what has parts: none of them is left out."""

from __future__ import annotations

import pytest

from ebbmq.node.ending import end_all


def test_every_step_is_taken_and_the_first_error_is_raised() -> None:
    taken: list[int] = []

    def step(number: int, error: BaseException | None = None) -> None:
        taken.append(number)
        if error is not None:
            raise error

    with pytest.raises(KeyboardInterrupt):
        end_all(
            [
                lambda: step(1),
                lambda: step(2, KeyboardInterrupt()),
                lambda: step(3, ValueError("later")),
                lambda: step(4),
            ]
        )
    assert taken == [1, 2, 3, 4]
    end_all([lambda: step(5)])
    assert taken[4:] == [5]
