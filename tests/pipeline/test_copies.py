"""Where copies are over a message's life, and what the loss of a device makes unreadable."""

from __future__ import annotations

import numpy as np
import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.limits import DAY_MS
from ebbmq.model import QueueSpec
from ebbmq_spark.simulation.copies import (
    ENDLESS_MS,
    DeviceTerms,
    Stage,
    byte_days,
    loss_of,
    stages_of,
)
from ebbmq_spark.simulation.outcome import Judged, outcome_of
from ebbmq_spark.simulation.replay import replay
from ebbmq_spark.simulation.sweep import read_sweep
from ebbmq_spark.simulation.traffic import NONE, Traffic

DEVICES = {
    "ssd1": DeviceTerms(tier="fast", failure_domain="rack1", cost_per_gib_month=10.0),
    "ssd2": DeviceTerms(tier="fast", failure_domain="rack2", cost_per_gib_month=10.0),
    "cold": DeviceTerms(tier="archive", failure_domain="bucket", cost_per_gib_month=1.0),
}
FADING = {
    "score_per_day": 10.0,
    "score_medium": 20.0,
    "score_high": 50.0,
    "tiers": ("fast", "fast", "archive"),
}


def traffic(at_ms, nbytes=1_000):
    count = len(at_ms)
    return Traffic(
        queue="q",
        at_ms=np.array(at_ms, dtype=np.int64),
        importance=np.full(count, 5),
        ttl_ms=np.full(count, NONE),
        decay_rate=np.full(count, float(NONE)),
        delay_ms=np.zeros(count, dtype=np.int64),
        bytes=np.full(count, nbytes),
        service_ms=np.full(count, 10.0),
        failures=np.zeros(count, dtype=np.int64),
        useful_ms=np.full(count, DAY_MS),
        consumers=1,
    )


def test_copies_are_where_placement_wants_them_until_one_is_left_in_the_archive():
    stages = stages_of(QueueSpec("q", min_copies=2, **FADING), DEVICES)
    assert [set(stage.devices) for stage in stages] == [{"ssd1", "ssd2"}, {"cold"}]
    assert stages[0].end_ms == stages[1].begin_ms == pytest.approx(5 * DAY_MS, abs=2)
    assert stages[-1].end_ms == ENDLESS_MS
    single = stages_of(QueueSpec("q"), DEVICES)
    assert [len(stage.devices) for stage in single] == [1]


def test_a_loss_counts_messages_whose_copies_are_all_in_one_failure_domain():
    stages = [Stage(0, 100, ("ssd1", "ssd2")), Stage(100, ENDLESS_MS, ("cold",))]
    load = traffic([0, 50, 60])
    left_ms = np.array([110.0, 170.0, 1_060.0])
    loss = loss_of(stages, DEVICES, load, left_ms)
    assert (loss.domain, loss.worst) == ("bucket", 2)
    assert loss.share == pytest.approx((10 + 20 + 900) / (110 + 120 + 1_000))
    same_rack = {**DEVICES, "ssd2": DeviceTerms(failure_domain="rack1")}
    worst = loss_of(stages[:1], same_rack, load, left_ms)
    assert (worst.domain, worst.worst) == ("rack1", 3)
    apart = loss_of(stages[:1], DEVICES, load, left_ms)
    assert (apart.worst, apart.share) == (0, 0.0)


def test_byte_days_and_cost_count_every_copy():
    stages = [Stage(0, 2 * DAY_MS, ("ssd1", "ssd2")), Stage(2 * DAY_MS, ENDLESS_MS, ("cold",))]
    load = traffic([0], nbytes=1 << 30)
    by_tier, cost = byte_days(stages, DEVICES, load, np.array([5.0 * DAY_MS]))
    assert by_tier == {"fast": 4.0 * (1 << 30), "archive": 3.0 * (1 << 30)}
    assert cost == pytest.approx((4 * 10 + 3 * 1) / 30)
    untold = {**DEVICES, "cold": DeviceTerms(tier="archive")}
    assert byte_days(stages, untold, load, np.array([5.0 * DAY_MS])) == (by_tier, None)


def test_an_outcome_tells_what_more_copies_cost_and_save():
    load = traffic(range(0, 1_000, 5))
    told = {}
    for least in (1, 2):
        spec = QueueSpec("q", min_copies=least)
        fates = replay(load, spec, 1)
        told[least] = outcome_of(
            "p", spec, load, fates, resolution_ms=1, judged=Judged({}, DEVICES)
        )
    assert told[1].unreadable_worst == told[1].peak_messages
    assert told[1].unreadable_share == 1.0
    assert (told[2].unreadable_worst, told[2].unreadable_share) == (0, 0.0)
    assert told[2].byte_days == pytest.approx(2 * told[1].byte_days)
    assert told[2].cost is not None
    assert told[1].cost is not None
    assert told[2].cost > told[1].cost


def test_a_goal_about_losses_needs_devices():
    goal = b'[goal]\nminimise = "unreadable_worst"\n'
    with pytest.raises(InvalidSpec, match="there are no devices"):
        read_sweep(goal, "sweep.toml")
    found = read_sweep(goal + b'[devices.ssd]\ntier = "fast"\n', "sweep.toml")
    assert found.devices == {"ssd": DeviceTerms(tier="fast")}
