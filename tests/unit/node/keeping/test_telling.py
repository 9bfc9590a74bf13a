"""Which tier a message counts as being in."""

from __future__ import annotations

import msgspec

from ebbmq.node.keeping.telling import first_tier_of, tier_of
from ebbmq.policy.rules.properties import DeviceState

STATES = {
    "disk": DeviceState(tier="hdd", latency_ms=1.0, slowness=2),
    "fast": DeviceState(tier="ssd", latency_ms=900.0, slowness=2),
    "cold": DeviceState(tier="s3", latency_ms=5.0, slowness=9),
}
TIERS = ("ssd", "hdd", "s3")


def test_a_message_counts_as_in_the_first_tier_of_its_queue_that_has_a_copy() -> None:
    both = frozenset({"disk", "fast", "cold"})
    # Which one answers sooner is another question, and may be answered anew each time.
    assert tier_of(both, STATES) == "hdd"
    assert first_tier_of(both, STATES, TIERS) == "ssd"
    assert first_tier_of(both, STATES, TIERS[::-1]) == "s3"
    assert first_tier_of(both - {"fast"}, STATES, TIERS) == "hdd"
    assert first_tier_of(both, STATES, ()) == "hdd"
    assert first_tier_of(frozenset({"gone"}), STATES, TIERS) == ""
    away = {**STATES, "fast": msgspec.structs.replace(STATES["fast"], usable=False)}
    assert first_tier_of(both, away, TIERS) == "hdd"
    assert first_tier_of(frozenset({"fast"}), away, TIERS) == "ssd"
