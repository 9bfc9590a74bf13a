"""Rules of a fixed mix, and messages for them, the same in every run.

Half of the rules ask for a header's value, a fifth for a span of SIZE, a fifth use contains or NOT,
a tenth is the rest.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.policy.rules.properties import Properties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEVICES: Final = ("DB1", "DB2", "GRID", "HDD", "MEMORY")


class Ruled(NamedTuple):
    """A rule in words."""

    id: str
    weight: int
    device: str
    when: str


def rules(count: int, devices: Sequence[str] = DEVICES) -> Iterator[Ruled]:
    """So many rules for these devices."""
    dice = random.Random(count)  # noqa: S311  the same rules in every run
    values = _values(count)
    for number in range(count):
        kind = number % 10
        low = dice.uniform(0, 900)
        if kind < 5:
            when = f'HEADER("h{dice.randrange(10)}") == "v{dice.randrange(values)}"'
        elif kind < 7:
            when = f"SIZE > {low:.2f} AND SIZE < {low + dice.uniform(1, 300):.2f}"
        elif kind == 7:
            when = f'HEADER("locator").contains("db-{dice.randrange(values):05d}")'
        elif kind == 8:
            when = f'SIZE > {low:.2f} AND NOT HEADER("h1") == "v{dice.randrange(values)}"'
        else:
            when = dice.choice(
                (
                    f"IMPORTANCE >= {dice.randrange(1, 11)} AND QUEUE == q{dice.randrange(values)}",
                    f"CLIENT_ID == c{dice.randrange(values)} OR STORE == s{dice.randrange(values)}",
                    f"STATUS({dice.choice(devices)}) < -{dice.randrange(1, 99)} AND TYPE == TEXT",
                )
            )
        yield Ruled(f"W-{number:05d}", dice.randrange(1, 100), dice.choice(devices), when)


def properties(count: int, rules: int) -> Iterator[Properties]:
    """Messages as so many rules see them."""
    dice = random.Random(rules + 1)  # noqa: S311  the same messages in every run
    values = _values(rules)
    for _ in range(count):
        yield Properties(
            size=dice.uniform(0, 1_200),
            type=dice.choice(("TEXT", "BYTE")),
            headers=headers(dice, rules),
            client_id=f"c{dice.randrange(values)}",
            queue=f"q{dice.randrange(values)}",
            importance=float(dice.randrange(1, 11)),
        )


def headers(dice: random.Random, rules: int) -> dict[str, str]:
    """Headers that so many rules ask for."""
    values = _values(rules)
    return {
        **{f"h{dice.randrange(10)}": f"v{dice.randrange(values)}" for _ in range(2)},
        "locator": f"eu/rack-7/db-{dice.randrange(values):05d}",
    }


def _values(rules: int) -> int:
    return max(4, rules // 20)
