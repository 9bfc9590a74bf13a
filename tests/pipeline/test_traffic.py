"""Traffic, made up or recorded: it travels unchanged, and what no broker would take is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ebbmq_spark.simulation.generate import SHAPES, generate
from ebbmq_spark.simulation.traffic import (
    InvalidTrace,
    Traffic,
    from_table,
    pack,
    to_table,
    unpack,
)
from tests.pipeline.loads import random_traffic, traffic


def assert_same(one: Traffic, other: Traffic) -> None:
    for field in dataclasses.fields(Traffic):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("load", [random_traffic(5, 50), traffic([3], decay_rate=[0.25])])
def test_traffic_travels_unchanged(load: Traffic) -> None:
    assert_same(unpack(pack(load)), load)


@pytest.mark.parametrize(
    ("column", "value"),
    [("importance", 0), ("importance", 11), ("decay_rate", 1.5), ("service_ms", -5.0),
     ("service_ms", float("nan")), ("bytes", -1), ("useful_ms", 0), ("ttl_ms", 0)],
)  # fmt: skip
def test_what_no_broker_would_take_is_named(column: str, value: float) -> None:
    load = traffic([0, 1], **{column: [1, value]})
    with pytest.raises(InvalidTrace, match=f"{column} is .*queue 'q'"):
        from_table(to_table(load))


@pytest.mark.parametrize("pattern", SHAPES)
def test_made_up_traffic_is_the_same_for_the_same_seed(pattern: str) -> None:
    load = generate(pattern, 2_000, seed=7)
    assert_same(load, generate(pattern, 2_000, seed=7))
    assert not np.array_equal(load.at_ms, generate(pattern, 2_000, seed=8).at_ms)
    assert len(load) == 2_000
    assert (np.diff(load.at_ms) >= 0).all()
    assert load.span_ms() == pytest.approx(SHAPES[pattern].duration_ms, rel=0.02)


def test_an_overload_is_one() -> None:
    load = generate("overload", 20_000)
    third = SHAPES["overload"].duration_ms / 3
    share = (load.at_ms - load.at_ms[0]) // third
    capacity = load.consumers / load.service_ms.mean() * third
    calm, busy, after = ((share == part).sum() / capacity for part in range(3))
    assert calm == pytest.approx(0.6, rel=0.1)
    assert after == pytest.approx(0.6, rel=0.1)
    assert busy == pytest.approx(3, rel=0.1)


def test_bursts_are_short_and_six_times_the_usual() -> None:
    load = generate("bursts", 200_000)
    counts = np.bincount((load.at_ms - load.at_ms[0]) // 2_000)
    usual = float(np.median(counts))
    busy = counts > 4 * usual
    assert 0.05 < busy.mean() < 0.2
    assert np.median(counts[busy]) == pytest.approx(6 * usual, rel=0.1)
    capacity = load.consumers / load.service_ms.mean() * 2_000
    assert usual < capacity < np.median(counts[busy])


def test_a_day_has_a_noon_at_which_more_comes_than_can_be_done() -> None:
    load = generate("diurnal", 200_000)
    hour = 3_600_000
    counts = np.bincount((load.at_ms - load.at_ms[0]) // hour, minlength=24)[:24]
    capacity = load.consumers / load.service_ms.mean() * hour
    assert counts[11:13].mean() / capacity == pytest.approx(1.4, rel=0.05)
    assert counts[[0, 23]].max() < 0.5 * capacity
    assert counts.argmax() in (11, 12)
