"""Many rows of an exact order taken at once are those taken one by one."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.core.row import READY
from tests.unit.core.test_order import Store


def _filled(seed: int, classes: int, batches: int) -> tuple[Store, int]:
    """Rows of some classes, some of them retried, some gone, some classes gone for long."""
    chance = random.Random(seed)
    store, now_ms = Store(band_width=0), 1_000
    kinds = [
        (chance.randrange(1, 11), chance.choice([0.0, 0.5, 1.0]), chance.choice([5_000, 60_000]))
        for _ in range(classes)
    ]
    for _ in range(batches):
        importance, rate, span_ms = chance.choice(kinds)
        count = chance.choice([1, 3, 40, 300])
        first = store.publish(now_ms, importance, rate, count, span_ms)
        if chance.random() < 0.3:
            store.free(*range(first, first + chance.randrange(1, count + 1)))
        if chance.random() < 0.5:
            taken = [seq for seq in store.order.pop(chance.choice([2, 60]), now_ms)
                     if store.index.state_of(seq) == READY]  # fmt: skip
            for seq in chance.sample(taken, len(taken) // 2):
                store.give_back(seq, now_ms, failures=chance.choice([0, 1, 2]))
        now_ms += chance.choice([0, 0, 700, 9_000])
    return store, now_ms


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(1, 12),
    batches=st.integers(1, 25),
    count=st.sampled_from([48, 100, 1_000]),
)
def test_many_at_once_are_those_taken_one_by_one(
    seed: int, classes: int, batches: int, count: int
) -> None:
    (many, now_ms), (one, _) = (_filled(seed, classes, batches) for _ in range(2))
    while True:
        found = many.order.pop(count, now_ms)
        expected: list[int] = []
        while len(expected) < count and (seq := one.order.pop_one(now_ms)) >= 0:
            if one.index.state_of(seq) == READY:
                expected.append(seq)
        assert [seq for seq in found if many.index.state_of(seq) == READY] == expected
        if not expected:
            break
        many.free(*expected)
        one.free(*expected)
        now_ms += 400
