"""Which policies to try: a file of named ones and of values to combine."""

from __future__ import annotations

import itertools
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ebbmq.errors import InvalidSpec
from ebbmq.model import QueueSpec
from ebbmq_spark.simulation.copies import DeviceTerms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

POLICIES_MAX: Final = 2_000
#: What to compare with: the order of arrival, and importance that never fades.
REFERENCES: Final[dict[str, dict[str, Any]]] = {
    "fifo": {"decay_rate": 0.0, "band_width": 10.0},
    "importance": {"decay_rate": 0.0, "band_width": 1.0},
}
#: Fields of a queue that change what a simulation comes to.
SIMULATED: Final = (
    "default_importance",
    "decay_rate",
    "decay_unit_ms",
    "default_ttl_ms",
    "band_width",
    "stale_threshold",
    "on_stale",
    "fair_share",
    "max_attempts",
    "retry_delay_ms",
    "failure_penalty",
    "requeue",
    "dead_queue",
    "retention_ms",
    "max_messages",
    "max_bytes",
    "overflow",
    "adapt",
    "score_base",
    "score_per_day",
    "score_access_bonus",
    "score_medium",
    "score_high",
    "tiers",
    "default_device",
    "min_copies",
    "max_replicas",
    "evaluate_every_ms",
)
Maximised = Literal["worth_on_time", "on_time_share"]
Minimised = Literal[
    "let_go_share",
    "stale_share",
    "wait_p99_ms",
    "peak_messages",
    "byte_days",
    "cost",
    "unreadable_worst",
    "unreadable_share",
]
#: Figures that are there only where the sweep says which devices there are.
OF_DEVICES: Final = ("unreadable_worst", "unreadable_share")


class TrafficSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[traffic]`: what the trace does not say, and what of it does not count."""

    consumers: int | None = None
    useful_ms: int | None = None
    #: What publishers said is dropped, so that the queue's own values count.
    ignore: tuple[Literal["importance", "ttl_ms", "decay_rate", "delay_ms", "failures"], ...] = ()

    def __post_init__(self) -> None:
        for name in ("consumers", "useful_ms"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidSpec(f"traffic.{name} is {value}", "use a whole number from 1 on")


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[goal]`: what a good policy is; the two of them are the axes of the picture."""

    maximise: Maximised = "worth_on_time"
    minimise: Minimised = "byte_days"
    at_most: dict[Minimised, float] = {}
    #: A gain of less than this part is none: then the one with less of what is minimised is better.
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise InvalidSpec(f"goal.tolerance is {self.tolerance}", "use 0 to 1, such as 0.01")


class Policy(msgspec.Struct, frozen=True):
    """A name and how a queue differs from what it is otherwise."""

    name: str
    changes: dict[str, Any]


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a file of policies says."""

    traffic: TrafficSpec = TrafficSpec()
    goal: Goal = Goal()
    #: A GB for a month, by tier.
    prices: dict[str, float] = {}
    #: Where copies can be: with them placement decides, and what the loss of one costs is told.
    devices: dict[str, DeviceTerms] = {}
    base: dict[str, Any] = {}
    queues: dict[str, dict[str, Any]] = {}
    sweep: dict[str, list[Any]] = {}
    policies: dict[str, dict[str, Any]] = {}

    def candidates(self, useful_ms: int) -> list[Policy]:
        """The policies to try, each under a name of its own, in the order in which they count.

        Those the file names come first, then references it does not name itself, then every
        combination of the values; a combination that is there twice is one policy. Where the file
        has neither policies nor values, what usually matters is combined, by how long work is
        useful.

        Raises:
            InvalidSpec: there are too many, or two that differ have one name.
        """
        named = {**self.policies, **REFERENCES, **self.policies}
        values = self.sweep if self.sweep or self.policies else usual(useful_ms)
        combined = _combinations(values)
        count = len(named) + len(combined)
        if count > POLICIES_MAX:
            raise InvalidSpec(
                f"the sweep has {count:,} policies, the limit is {POLICIES_MAX:,}",
                "try fewer values of some field",
            )
        return _each_once([*(Policy(name, changes) for name, changes in named.items()), *combined])

    def fields(self, queue: str, policy: Policy) -> dict[str, Any]:
        """What a queue has of its own under a policy: all that is not a default."""
        return {**self.base, **self.queues.get(queue, {}), **policy.changes}

    def spec(self, queue: str, policy: Policy) -> QueueSpec:
        """The queue under a policy.

        Raises:
            InvalidSpec: a value is not one its field takes, or a tier has no price; the detail
            names the policy.
        """
        try:
            spec = msgspec.convert({"name": queue, **self.fields(queue, policy)}, QueueSpec)
        except msgspec.ValidationError as error:
            raise InvalidSpec(f"policy {policy.name!r}: {error}", "see docs/simulate.md") from error
        if self.prices and not self.devices:
            for tier in spec.tiers:
                if tier not in self.prices:
                    raise InvalidSpec(
                        f"policy {policy.name!r}: tier {tier!r} has no price",
                        "add it to [prices]: what a GB costs for a month, 0 if nothing",
                    )
        return spec

    def asks(self, figures: Iterable[str]) -> bool:
        """Whether the goal is about one of these figures."""
        return not {self.goal.minimise, *self.goal.at_most}.isdisjoint(figures)


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
        told = msgspec.toml.decode(text)
        _check_names(name, told)
        sweep = msgspec.convert(told, Sweep)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{name}: {error}", "see docs/simulate.md for what it takes") from error
    _check_goal(name, sweep)
    for values in sweep.sweep.values():
        if not values:
            raise InvalidSpec(f"{name}: a list of values is empty", "give it one, or leave it away")
    _check_fields(name, "sweep", sweep.sweep, SIMULATED)
    for policy, changes in sweep.policies.items():
        _check_fields(name, f"policies.{policy}", changes, SIMULATED)
    every = tuple(field.name for field in msgspec.structs.fields(QueueSpec) if field.name != "name")
    _check_fields(name, "base", sweep.base, every)
    for queue, fields in sweep.queues.items():
        _check_fields(name, f"queues.{queue}", fields, every)
    return sweep


def _check_names(name: str, told: Mapping[str, Any]) -> None:
    """Refuse tables and fields that there are not; which fields queues have is another matter."""
    _check_form(f"{name}: there is no table or field", told, Sweep)
    tables: list[tuple[str, Any, type[msgspec.Struct]]] = [
        ("traffic", told.get("traffic"), TrafficSpec),
        ("goal", told.get("goal"), Goal),
    ]
    devices = told.get("devices")
    if isinstance(devices, dict):
        tables += [(f"devices.{each}", terms, DeviceTerms) for each, terms in devices.items()]
    for table, fields, form in tables:
        # What is no table at all is told of by its type.
        if isinstance(fields, dict):
            _check_form(f"{name}: in [{table}] there is no field", fields, form)


def _check_form(why: str, fields: Mapping[str, Any], form: type[msgspec.Struct]) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(form)]
    for field in fields:
        if field not in known:
            near = get_close_matches(field, known, n=1)
            raise InvalidSpec(
                f"{why} {field!r}",
                f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}",
            )


def _check_goal(name: str, sweep: Sweep) -> None:
    """Refuse a goal about figures that no policy will have, and prices with a gap."""
    if not sweep.devices and sweep.asks(OF_DEVICES):
        raise InvalidSpec(
            f"{name}: the goal asks what the loss of a device costs, and there are no devices",
            "say which there are: [devices.NAME] with tier and failure_domain",
        )
    if not sweep.devices and not sweep.prices and sweep.asks(["cost"]):
        raise InvalidSpec(
            f"{name}: the goal asks what storage costs, and there are no prices",
            "say in [prices] what a GB of each tier costs for a month, and the tiers in [base]",
        )
    for device, terms in sweep.devices.items():
        tier = terms.tier or device
        if sweep.prices and tier not in sweep.prices:
            raise InvalidSpec(
                f"{name}: tier {tier!r} of device {device!r} has no price",
                "add it to [prices]: what a GB costs for a month, 0 if nothing",
            )
        if not sweep.prices and sweep.asks(["cost"]) and terms.cost_per_gib_month is None:
            raise InvalidSpec(
                f"{name}: the goal asks what storage costs, and device {device!r} has no "
                "cost_per_gib_month",
                "give it one, 0 if it costs nothing",
            )


def _check_fields(name: str, table: str, fields: Mapping[str, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for field in fields:
        if field not in known:
            near = get_close_matches(field, known, n=1)
            raise InvalidSpec(
                f"{name}: [{table}] has {field!r}, which changes nothing in a simulation",
                f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}",
            )


def _combinations(values: Mapping[str, list[Any]]) -> list[Policy]:
    if not values:
        return []
    out = []
    for chosen in itertools.product(*values.values()):
        changes = dict(zip(values, chosen, strict=True))
        out.append(Policy(" ".join(f"{k}={_shown(v)}" for k, v in changes.items()), changes))
    return out


def _each_once(policies: Iterable[Policy]) -> list[Policy]:
    found: dict[str, Policy] = {}
    for each in policies:
        known = found.setdefault(each.name, each)
        if known.changes != each.changes:
            raise InvalidSpec(
                f"two policies are called {each.name!r}: {known.changes} and {each.changes}",
                "give the one in [policies] another name, or leave one of the values away",
            )
    return list(found.values())


def _shown(value: object) -> str:
    """A value in the name of a policy: others have another name."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
