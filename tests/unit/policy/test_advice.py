"""What a plan says of copies before it is carried out: the same as placement makes of it."""

from __future__ import annotations

import itertools

import pytest

from ebbmq.policy.advice import Places
from ebbmq.policy.placement import Pin, Placed, Terms, place
from ebbmq.policy.rules.choose import Chooser, Strategy
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet

TIERS = ("ssd", "hdd", "s3")


@pytest.mark.parametrize(
    ("named", "counts"),
    [
        *((3, each) for each in ((1, 1, 1), (2, 1, 1), (1, 2, 3), (0, 2, 1), (1, 1, 1, 2))),
        # Without tiers all others are as near; which comes first only the broker knows.
        *((0, each) for each in ((1, 1), (2, 1), (1, 3))),
    ],
)
def test_copies_are_arranged_as_placement_does(named: int, counts: tuple[int, ...]) -> None:
    tiers = (*TIERS, "other")[: len(counts)]
    devices = {
        f"{tier}{n}": tier for tier, count in zip(tiers, counts, strict=True) for n in range(count)
    }
    states = {name: DeviceState(tier=tier) for name, tier in devices.items()}
    view = Chooser(RuleSet(), Strategy()).view(states)
    places, terms = Places(tiers, named, counts), Terms(tiers=TIERS[:named], max_replicas=9)
    for held in itertools.product(*(range(count + 1) for count in counts)):
        copies = tuple(f"{tiers[p]}{n}" for p, count in enumerate(held) for n in range(count))
        wanted_ones = [at for at, count in enumerate(counts) if count and (not named or at < named)]
        for wanted, target in itertools.product(wanted_ones if copies else (), range(1, 5)):
            pin = Pin(target, tiers[wanted], 0, 99, 0, 0)
            message = Placed(
                properties=Properties(), terms=terms, copies=copies, target=target, pin=pin,
                review_at_ms=1,
            )  # fmt: skip
            found = place(message, 1, view).copies
            expected = tuple(sum(devices[each] == tier for each in found) for tier in tiers)
            assert places.arranged(held, wanted, target) == expected, (held, wanted, target)
