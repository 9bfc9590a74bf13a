"""What a device may be called and cost."""

from __future__ import annotations

import pytest

from ebbmq.errors import InvalidSpec
from ebbmq.holding.contract import DeviceSpec

GOOD = {
    "name": "ssd",
    "tier": "fast",
    "durable": True,
    "failure_domain": "rack-1",
    "capacity_bytes": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"tier": " "},
        {"failure_domain": "a\nb"},
        {"capacity_bytes": 0},
        {"cost_per_gib_month": -1.0},
        {"cost_per_gib_month": float("nan")},
        {"cost_per_gib_month": float("inf")},
        {"readers": ("",)},
    ],
)
def test_a_device_that_cannot_be_is_refused_by_name(change):
    with pytest.raises(InvalidSpec) as refused:
        DeviceSpec(**{**GOOD, **change})
    assert refused.value.action


def test_a_device_without_a_price_costs_nothing():
    assert DeviceSpec(**GOOD).cost_per_gib_month == 0.0


def test_a_device_is_read_by_the_clients_it_names_and_by_everyone_if_it_names_none():
    guarded = DeviceSpec(**GOOD, readers=("system.*", "auditor"))
    assert guarded.may_read("system.boot")
    assert guarded.may_read("auditor")
    assert not guarded.may_read("auditors")
    assert DeviceSpec(**GOOD).may_read("anybody")
    assert not DeviceSpec(**GOOD, readers=()).may_read("anybody")
