"""Which policies to try: a file of named ones and of values to combine."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Final, Literal

import msgspec

from ebbmq.errors import InvalidSpec
from ebbmq.model import QueueSpec

POLICIES_MAX: Final = 2_000
#: What to compare with: the order of arrival, and importance that never fades.
REFERENCES: Final[dict[str, dict[str, Any]]] = {
    "fifo": {"decay_rate": 0.0, "band_width": 10.0},
    "importance": {"decay_rate": 0.0, "band_width": 1.0},
}
Maximised = Literal["worth_on_time", "on_time_share"]
Minimised = Literal[
    "let_go_share", "stale_share", "wait_p99_ms", "peak_messages", "byte_days", "cost"
]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class TrafficSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[traffic]`: what the trace does not say, and what of it does not count."""

    consumers: Positive | None = None
    useful_ms: Positive | None = None
    #: What publishers said is dropped, so that the queue's own values count.
    ignore: tuple[Literal["importance", "ttl_ms", "decay_rate", "delay_ms", "failures"], ...] = ()


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[goal]`: what a good policy is; the two of them are the axes of the picture."""

    maximise: Maximised = "worth_on_time"
    minimise: Minimised = "byte_days"


class Policy(msgspec.Struct, frozen=True):
    """A name and how a queue differs from what it is otherwise."""

    name: str
    changes: dict[str, Any]


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a file of policies says."""

    traffic: TrafficSpec = TrafficSpec()
    goal: Goal = Goal()
    base: dict[str, Any] = {}
    queues: dict[str, dict[str, Any]] = {}
    sweep: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)]] = {}
    policies: dict[str, dict[str, Any]] = {}

    def candidates(self, useful_ms: int) -> list[Policy]:
        """The policies to try, each under a name of its own, in the order in which they count.

        Those the file names come first, then references it does not name itself, then every
        combination of the values. Where the file has neither policies nor values, what usually
        matters is combined, by how long work is useful.

        Raises:
            InvalidSpec: there are too many.
        """
        named = {**self.policies, **REFERENCES, **self.policies}
        values = self.sweep if self.sweep or self.policies else usual(useful_ms)
        count = len(named) + (math.prod(map(len, values.values())) if values else 0)
        if count > POLICIES_MAX:
            raise InvalidSpec(
                f"the sweep has {count:,} policies, the limit is {POLICIES_MAX:,}",
                "try fewer values of some field",
            )
        for chosen in itertools.product(*values.values()) if values else ():
            changes = dict(zip(values, chosen, strict=True))
            named.setdefault(" ".join(f"{k}={v}" for k, v in changes.items()), changes)
        return [Policy(name, changes) for name, changes in named.items()]

    def fields(self, queue: str, policy: Policy) -> dict[str, Any]:
        """What a queue has of its own under a policy: all that is not a default."""
        return {**self.base, **self.queues.get(queue, {}), **policy.changes}

    def spec(self, queue: str, policy: Policy) -> QueueSpec:
        """The queue under a policy.

        Raises:
            InvalidSpec: there is no such field, or it does not take the value; the detail names
            the policy.
        """
        try:
            return msgspec.convert({"name": queue, **self.fields(queue, policy)}, QueueSpec)
        except msgspec.ValidationError as error:
            raise InvalidSpec(f"policy {policy.name!r}: {error}", "see docs/simulate.md") from error


def usual(useful_ms: int) -> dict[str, list[Any]]:
    """Values worth trying for work that is useful for so long."""
    return {
        "decay_rate": [1.0],
        "decay_unit_ms": [max(1, useful_ms // 2), useful_ms, 2 * useful_ms, 4 * useful_ms],
        "band_width": [0.0, 1.0, 2.0],
        "stale_threshold": [0.0, 1.0],
    }


def read_sweep(text: bytes, name: str) -> Sweep:
    """Read a file of policies.

    Raises:
        InvalidSpec: it is no TOML, or says something that nobody can follow.
    """
    try:
        sweep = msgspec.toml.decode(text, type=Sweep)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{name}: {error}", "see docs/simulate.md for what it takes") from error
    # What no queue can have is refused before Spark starts.
    for queue in sweep.queues or ("queue",):
        for policy in sweep.candidates(useful_ms=1):
            sweep.spec(queue, policy)
    return sweep
