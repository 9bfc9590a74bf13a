"""The nouns of EbbMQ: what a user publishes, declares and gets back. Values only, no behaviour."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import msgspec

from ebbmq import limits
from ebbmq.errors import InvalidMessage, InvalidSpec
from ebbmq.plain import are_plain, is_int, is_number, is_text, make_plain, plain

Level = Literal["memory", "written", "synced"]
LEVELS: Final = ("memory", "written", "synced")
OnStale = Literal["drop", "dead_letter"]
OnFaded = Literal["archive", "remove", "dead_letter"]
Overflow = Literal["reject", "drop_lowest", "dead_letter"]
Requeue = Literal["tail", "original"]
Headers = Mapping[str, str]

NO_HEADERS: Final[Headers] = MappingProxyType({})

#: What a rule can name without quotes, and what is safe as the name of a directory.
DEVICE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
DEVICE_NAME_IS: Final = (
    "use 1 to 64 of letters, digits, '_', '-' and '.', the first a letter or '_'"
)


class Reason(enum.IntEnum):
    """Why a message left its queue other than by ack."""

    STALE = 1
    EXPIRED = 2
    RETENTION = 3
    MAX_ATTEMPTS = 4
    OVERFLOW = 5
    PURGED = 6
    DELETED = 7
    DAMAGED = 8
    REDRIVEN = 9
    LOST = 10
    FADED = 11


REASON_TEXT: Final = {
    Reason.STALE: "stale",
    Reason.EXPIRED: "expired",
    Reason.RETENTION: "retention",
    Reason.MAX_ATTEMPTS: "max_attempts",
    Reason.OVERFLOW: "overflow",
    Reason.PURGED: "purged",
    Reason.DELETED: "deleted",
    Reason.DAMAGED: "damaged",
    Reason.REDRIVEN: "redriven",
    Reason.LOST: "lost",
    Reason.FADED: "faded",
}


#: Why messages are lost: they were to be done, and nobody asked for them to go.
LOSSES: Final = ("max_attempts", "overflow", "damaged", "lost")


def gone(totals: Mapping[str, int], reason: str) -> int:
    """How many left for a reason, and are not in a dead queue."""
    return totals.get(reason, 0) - totals.get(f"dead_lettered_{reason}", 0)


class _Body(msgspec.Struct, frozen=True):
    body: bytes


class Message(_Body, frozen=True, kw_only=True):
    """What a publisher hands over; a field left at None takes the queue's default.

    Checked when it is made, so a `Message` that exists can be published.

    Raises:
        InvalidMessage: a field is outside its limits; the detail names the field and the limits.
    """

    importance: int | None = None
    ttl_ms: int | None = None
    decay_rate: float | None = None
    delay_ms: int = 0
    headers: Headers | None = None
    id: str | None = None
    key: str | None = None
    replicas: int | None = None
    store: str | None = None
    durable: bool = True
    type: str = "BYTE"

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            raise _no_bytes(self.body)
        if len(self.body) > limits.BODY_BYTES_MAX:
            raise InvalidMessage(
                f"body has {len(self.body)} bytes, the limit is {limits.BODY_BYTES_MAX}",
                "store the payload elsewhere and publish a reference to it",
            )
        self._check_order()
        if self.headers is not None:
            _check_headers(self.headers)
            own = dict(self.headers)
            if not (are_plain(own) and are_plain(own.values())):
                own = {plain(name): plain(value) for name, value in own.items()}
            msgspec.structs.force_setattr(self, "headers", own)
        for name in ("id", "key", "store"):
            _check_text(name, getattr(self, name))
        _check_text("type", self.type)
        fields = (self.importance, self.ttl_ms, self.decay_rate, self.delay_ms, self.id, self.key)
        if not are_plain((*fields, self.store, self.type, self.replicas)):
            make_plain(self, self.__struct_fields__[1:])
        if not isinstance(self.durable, bool):
            raise InvalidMessage(f"durable is {self.durable!r}", "use True or False")

    def _check_order(self) -> None:
        importance = self.importance
        if importance is not None and not is_int(
            importance, limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX
        ):
            raise InvalidMessage(
                f"importance is {importance!r}", "use a whole number from 1 (least) to 10 (most)"
            )
        if self.ttl_ms is not None and not is_int(self.ttl_ms, 1, limits.DURATION_MS_MAX):
            raise InvalidMessage(
                f"ttl_ms is {self.ttl_ms!r}",
                f"use whole milliseconds from 1 to {limits.DURATION_MS_MAX}, or None for no TTL",
            )
        if self.decay_rate is not None and not is_number(self.decay_rate, 0, 1):
            raise InvalidMessage(
                f"decay_rate is {self.decay_rate!r}",
                "use 0.0 (no decay) to 1.0 (worth nothing at the end of its TTL)",
            )
        if not is_int(self.delay_ms, 0, limits.DURATION_MS_MAX):
            raise InvalidMessage(
                f"delay_ms is {self.delay_ms!r}",
                f"use whole milliseconds from 0 to {limits.DURATION_MS_MAX}",
            )
        if self.replicas is not None and not is_int(self.replicas, 1, limits.REPLICAS_MAX):
            raise InvalidMessage(
                f"replicas is {self.replicas!r}", f"use 1 to {limits.REPLICAS_MAX}"
            )


def _no_bytes(body: object) -> InvalidMessage:
    action = "encode it, for text: .encode()"
    if isinstance(body, bytes | bytearray | memoryview):
        action = "copy it: bytes(body)"
    return InvalidMessage(f"body is {type(body).__name__}, not bytes", action)


_NO_TEXT: Final = "holds half of a surrogate pair, which UTF-8 cannot hold"
_NO_TEXT_ACTION: Final = "decode the text it came from with errors='replace'"


def _no_header(name: object, value: object) -> InvalidMessage:
    told = f"the name of header {name!r:.80} is {type(name).__name__}"
    if isinstance(name, str):
        told = f"the value of header {name!r:.80} is {type(value).__name__}"
    return InvalidMessage(f"{told}, not str", "names and values are strings; encode other values")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessage("headers is not a mapping", "use a dict of str to str")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _no_header(name, value)
        if not (name.isascii() and value.isascii()) and not (is_text(name) and is_text(value)):
            raise InvalidMessage(f"header {name!a:.80} {_NO_TEXT}", _NO_TEXT_ACTION)


def _check_text(field: str, value: object) -> None:
    if value is None and field != "type":
        return
    if not isinstance(value, str) or not 0 < len(value) <= limits.NAME_CHARS_MAX:
        raise InvalidMessage(
            f"{field} is {value!r}"[:200],
            f"use a string of 1 to {limits.NAME_CHARS_MAX} characters",
        )
    if not value.isascii() and not is_text(value):
        raise InvalidMessage(f"{field} {_NO_TEXT}", _NO_TEXT_ACTION)


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a publisher gets back per message once its confirm level holds."""

    id: str
    duplicate: bool = False


class Timing(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One processing of a message: where, which attempt, how long, how it ended."""

    node: str
    attempt: int
    duration_ms: int
    outcome: str


class Kept(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a message is kept on the devices of a node."""

    #: How often it was leased, and reads a day, weighted by how long ago they were.
    access_count: int
    access_rate: float
    #: High is faded.
    decay_score: float
    #: The tier it is read from.
    tier: str
    copies: tuple[str, ...]
    copies_acked: int
    #: Devices that have confirmed its removal; of a message that is there, none.
    removals_acked: int
    #: How many copies it should have.
    replica_target: int


#: In the node's log alone, and nobody has read it.
IN_LOG: Final = Kept(
    access_count=0,
    access_rate=0.0,
    decay_score=0.0,
    tier="log",
    copies=("log",),
    copies_acked=1,
    removals_acked=0,
    replica_target=1,
)


class _Score(Protocol):
    def at(self, age_ms: float, access_rate: float) -> float: ...


class InLog(msgspec.Struct, frozen=True, gc=False):
    """How messages of a batch are kept that nobody reads and only the node's log has."""

    at_ms: int
    #: The parameters of the decay score.
    score: _Score

    def of(self, access_count: int, enqueued_at_ms: int) -> Kept:
        """How one of them is kept."""
        score = self.score.at(self.at_ms - enqueued_at_ms, 0.0)
        return msgspec.structs.replace(IN_LOG, access_count=access_count, decay_score=score)


class _Shown(msgspec.Struct, frozen=True, gc=False):
    """A message that is shown, with how it is kept."""

    @property
    def as_kept(self) -> Kept:
        """How it is kept."""
        kept: Kept | InLog = getattr(self, "kept", IN_LOG)
        if isinstance(kept, InLog):
            return kept.of(getattr(self, "attempt", 1) - 1, getattr(self, "enqueued_at_ms", 0))
        return kept

    @property
    def access_count(self) -> int:
        """How often it was leased."""
        return self.as_kept.access_count

    @property
    def access_rate(self) -> float:
        """Reads a day, weighted by how long ago they were."""
        return self.as_kept.access_rate

    @property
    def decay_score(self) -> float:
        """How faded it is; high is faded."""
        return self.as_kept.decay_score

    @property
    def tier(self) -> str:
        """The tier it is read from."""
        return self.as_kept.tier

    @property
    def copies(self) -> tuple[str, ...]:
        """The devices that have it."""
        return self.as_kept.copies

    @property
    def copies_acked(self) -> int:
        """How many devices have confirmed a copy."""
        return self.as_kept.copies_acked

    @property
    def removals_acked(self) -> int:
        """How many devices have confirmed its removal."""
        return self.as_kept.removals_acked

    @property
    def replica_target(self) -> int:
        """How many copies it should have."""
        return self.as_kept.replica_target


class Peeked(_Shown, frozen=True, gc=False):
    """A message as `peek` shows it: nothing changes by looking."""

    id: str
    body: bytes
    headers: Headers
    state: str
    attempt: int
    failures: int
    importance: int
    current_importance: float
    band: int
    ttl_ms: int | None
    decay_rate: float
    enqueued_at_ms: int
    deadline_ms: int | None
    latency_history: tuple[Timing, ...]
    type: str = "BYTE"
    kept: Kept = IN_LOG


class Lease(_Shown, frozen=True, gc=False):
    """A message handed to one consumer until `deadline_ms`; the token settles it."""

    id: str
    body: bytes
    headers: Headers
    token: str
    attempt: int
    failures: int
    importance: int
    current_importance: float
    band: int
    ttl_ms: int | None
    decay_rate: float
    enqueued_at_ms: int
    deadline_ms: int
    latency_history: tuple[Timing, ...]
    type: str = "BYTE"
    kept: Kept | InLog = IN_LOG


class Removal(msgspec.Struct, frozen=True, gc=False):
    """The record of a message that left its queue other than by ack."""

    id: str
    queue: str
    reason: str
    at_ms: int
    importance: int
    current_importance: float
    enqueued_at_ms: int
    failures: int
    attempts: int
    bytes: int
    moved_to: str | None = None


class Evicted(msgspec.Struct, frozen=True):
    """What giving up a device came to."""

    device: str
    #: How many copies it had, and how many messages it alone had: they are gone, on the record.
    copies: int
    messages_lost: int
    #: How many messages only it had that were copied elsewhere first.
    drained: int = 0
    #: What takes it back: that it answers again, or that it is admitted.
    until: Literal["return", "admit"] = "return"


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """Copies on their way to a device, or from it, since there was always one under way."""

    done: int
    left: int
    since_ms: int
    #: How fast it goes, over the last seconds, and how long it takes on like that.
    per_s: float
    left_ms: int | None
    #: Of what comes to a device; what is left is reckoned from what came.
    bytes: int | None = None
    bytes_per_s: float | None = None
    bytes_left: int | None = None


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A device as people see it: what it is, how it is doing, what it has."""

    name: str
    kind: str
    where: str
    tier: str
    durable: bool
    failure_domain: str
    cost_per_gib_month: float
    used_bytes: int
    capacity_bytes: int
    free_percent: float
    latency_ms: float
    #: 0 (good) to -100, as rules see it, and what each measure takes of it.
    status: float
    parts: dict[str, float]
    #: Whether it is chosen and called at all.
    usable: bool
    circuit: Literal["closed", "open", "half_open"]
    #: Since when it can, or cannot, be used.
    since_ms: int
    calls: int
    errors: int
    last_error: str
    last_error_at_ms: int | None
    #: What waits to be written there.
    pending_bytes: int
    copies: int
    #: Copies that are kept although their messages are not there: nothing says that they left.
    unclaimed: int = 0
    #: Copies on their way to it or from it, and how far they are.
    moves: int
    arriving: Moving | None = None
    leaving: Moving | None = None
    #: Whether it is used, is being drained, or was given up by an operator.
    standing: Literal["used", "draining", "evicted"] = "used"
    #: While it is drained: messages that are only there.
    undrained: int = 0
    #: Since when it is given up, and what takes it back: that it answers, or an operator.
    evicted_at_ms: int | None = None
    evicted_until: Literal["return", "admit"] | None = None


class AdaptSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When rates of newly published messages rise and fall, by how long consumers take."""

    raise_above_ms: float = 1_000.0
    lower_below_ms: float = 500.0
    step: float = 1.25
    dwell_ms: int = 10_000
    factor_min: float = 1.0
    factor_max: float = 8.0
    window: int = 256

    def __post_init__(self) -> None:
        make_plain(self, self.__struct_fields__)
        for field, (low, high) in _ADAPT_BOUNDS.items():
            value = getattr(self, field)
            if not (is_int if field in _ADAPT_WHOLE else is_number)(value, low, high):
                kind = "whole number" if field in _ADAPT_WHOLE else "number"
                raise InvalidSpec(
                    f"adapt.{field} is {value!r:.80}", f"use a {kind} from {low} to {high}"
                )
        if not 0 <= self.lower_below_ms < self.raise_above_ms:
            raise InvalidSpec(
                "adapt.lower_below_ms must be below adapt.raise_above_ms",
                "keep the two thresholds apart so that the factor does not flap",
            )
        if not (self.step > 1 and 0 < self.factor_min <= 1 <= self.factor_max):
            raise InvalidSpec(
                "adapt needs step > 1 and factor_min <= 1 <= factor_max", "see docs/decay.md"
            )


_ADAPT_WHOLE: Final = frozenset({"dwell_ms", "window"})
_ADAPT_BOUNDS: Final = {
    "raise_above_ms": (0, limits.DURATION_MS_MAX),
    "lower_below_ms": (0, limits.DURATION_MS_MAX),
    "step": (1, 1_000),
    "dwell_ms": (0, limits.DURATION_MS_MAX),
    "factor_min": (0, 1),
    "factor_max": (1, 1_000_000),
    "window": (1, 1_000_000),
}


#: Names of the fields of a specification that count; None: all of them.
Fields = Iterable[str] | None


class _Name(msgspec.Struct, frozen=True):
    name: str


class Scored(_Name, frozen=True, kw_only=True):
    """The parameters of the decay score, of a queue or a topic.

    Without `score_per_day` and `score_high` it is only shown (`policy.decay.Score`).
    """

    score_base: float = 0.0
    score_per_day: float | None = None
    score_access_bonus: float = 0.0
    score_medium: float | None = None
    score_high: float | None = None


class QueueSpec(Scored, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue promises. A plain `QueueSpec("q")` is a durable FIFO.

    Raises:
        InvalidSpec: a field is outside its limits; the detail names it.
    """

    partitions: int = 1
    default_importance: int = 5
    decay_rate: float = 0.0
    decay_unit_ms: int = 3_600_000
    default_ttl_ms: int | None = None
    band_width: float = 1.0
    stale_threshold: float = 1.0
    on_stale: OnStale = "drop"
    fair_share: int = 0
    lease_timeout_ms: int = 30_000
    #: None: 16 where there is a dead queue, else as many as it takes; 0: as many as it takes.
    max_attempts: int | None = None
    retry_delay_ms: int = 1_000
    failure_penalty: int = 0
    requeue: Requeue = "tail"
    dead_queue: str | None = None
    retention_ms: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    cache_bytes: int = limits.QUEUE_CACHE_BYTES
    cache_enabled: bool = True
    page_to_disk: bool = True
    adapt: AdaptSpec | None = None
    evaluate_every_ms: int = 60_000
    on_faded: OnFaded = "archive"
    min_copies: int = 1
    #: How long a device may take for a copy that a publish waits for, before another is asked.
    copy_timeout_ms: int = 5_000
    max_replicas: int | None = None
    tiers: tuple[str, ...] = ()
    #: Where messages are kept that no rule is true of; None is the node's log.
    default_device: str | None = None
    #: Patterns of clients whose messages only consumers with that permission are given.
    privileged: tuple[str, ...] = ()

    @classmethod
    def fifo(cls, name: str, **changes: Any) -> QueueSpec:
        """First in, first out, kept until consumed: what a plain queue is elsewhere."""
        return _preset(cls, name, {}, changes)

    @classmethod
    def fresh_first(cls, name: str, **changes: Any) -> QueueSpec:
        """Newest and most important first; what nobody took within the hour goes stale."""
        return _preset(cls, name, {"decay_rate": 1.0, "band_width": 0.0}, changes)

    @classmethod
    def deadline(cls, name: str, *, ttl_ms: int, **changes: Any) -> QueueSpec:
        """Worth its full importance at first and nothing at the end of its TTL."""
        return _preset(cls, name, {"decay_rate": 1.0, "default_ttl_ms": ttl_ms}, changes)

    @property
    def failures_max(self) -> int:
        """After how many failures a message is dead; 0: it is tried for ever."""
        usual = _FAILURES_MAX if self.dead_queue else 0
        return usual if self.max_attempts is None else self.max_attempts

    def __post_init__(self) -> None:
        make_plain(self, self.__struct_fields__)
        for field in ("tiers", "privileged"):
            value = getattr(self, field)
            if isinstance(value, list | tuple):
                msgspec.structs.force_setattr(self, field, tuple(map(plain, value)))
        check_name("queue", self.name)
        _refuse("queue", self, _spec_problem(self))


def _refuse(kind: str, spec: Scored, problem: tuple[str, str] | None) -> None:
    if problem is not None:
        field, action = problem
        told = f"{getattr(spec, field)!r:.80}"
        raise InvalidSpec(f"{kind} {spec.name!r}: {field} is {told}", action)


#: Of a queue whose `max_attempts` says nothing, and that has a dead queue.
_FAILURES_MAX: Final = 16
_DEAD: Final = ".dead"


def _preset(
    cls: type[QueueSpec], name: str, preset: dict[str, Any], changes: dict[str, Any]
) -> QueueSpec:
    room = limits.NAME_CHARS_MAX - len(_DEAD)
    if "dead_queue" not in changes and len(str(name)) > room:
        raise InvalidSpec(
            f"queue name {name!r:.80} leaves no room for {_DEAD}, the end of its dead queue's",
            f"use at most {room} characters, or name another dead_queue",
        )
    return cls(name, **{"dead_queue": f"{name}{_DEAD}", **preset, **changes})


#: Bounds of the fields of queues and topics; also told to who declares a queue over a network.
SPEC_WHOLE: Final = {
    "partitions": (1, limits.PARTITIONS_MAX),
    "default_importance": (limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX),
    "decay_unit_ms": (1, limits.DURATION_MS_MAX),
    "fair_share": (0, 1_000_000),
    "lease_timeout_ms": (1, limits.DURATION_MS_MAX),
    "retry_delay_ms": (0, limits.DURATION_MS_MAX),
    "failure_penalty": (0, limits.IMPORTANCE_MAX),
    "cache_bytes": (0, 1 << 62),
    "min_copies": (1, limits.REPLICAS_MAX),
    "copy_timeout_ms": (1, limits.DURATION_MS_MAX),
    "evaluate_every_ms": (1, limits.DURATION_MS_MAX),
}
SPEC_WHOLE_OR_NONE: Final = {
    "default_ttl_ms": (1, limits.DURATION_MS_MAX),
    "max_attempts": (0, limits.FAILURES_MAX),
    "retention_ms": (1, limits.DURATION_MS_MAX),
    "max_age_ms": (1, limits.DURATION_MS_MAX),
    "max_messages": (1, 1 << 48),
    "max_bytes": (1, 1 << 62),
    "max_replicas": (1, limits.REPLICAS_MAX),
}
_CHOICES: Final = {
    "on_stale": ("drop", "dead_letter"),
    "overflow": ("reject", "drop_lowest", "dead_letter"),
    "requeue": ("tail", "original"),
    "on_faded": ("archive", "remove", "dead_letter"),
}
_SWITCHES: Final = ("cache_enabled", "page_to_disk")
#: A message has at most IMPORTANCE_MAX / this many bands, each with an instant to leave it at.
BAND_WIDTH_MIN: Final = 0.01
SPEC_FLOATS: Final = {
    "band_width": (0.0, 10.0),
    "stale_threshold": (0.0, 10.0),
    "decay_rate": (0.0, 1.0),
    "score_base": (-1e9, 1e9),
    "score_per_day": (-1e9, 1e9),
    "score_access_bonus": (-1e9, 1e9),
    "score_medium": (-1e9, 1e9),
    "score_high": (-1e9, 1e9),
}
#: Those that may be left open: `policy.decay.Score` says what follows.
SPEC_FLOATS_OR_NONE: Final = ("score_per_day", "score_medium", "score_high")


def _number_problem(spec: Scored) -> tuple[str, str] | None:
    """Of a queue or a topic, the first number that is outside its bounds, and what to use."""
    for field in spec.__struct_fields__:
        value = getattr(spec, field)
        if value is None and field in (*SPEC_WHOLE_OR_NONE, *SPEC_FLOATS_OR_NONE):
            continue
        whole = SPEC_WHOLE.get(field) or SPEC_WHOLE_OR_NONE.get(field)
        if whole is not None and not is_int(value, *whole):
            return field, f"use a whole number from {whole[0]} to {whole[1]}"
        bounds = SPEC_FLOATS.get(field)
        if bounds is not None and not is_number(value, *bounds):
            return field, f"use a number from {bounds[0]:g} to {bounds[1]:g}"
    return None


def _spec_problem(spec: QueueSpec) -> tuple[str, str] | None:
    problem = _number_problem(spec)
    if problem is not None:
        return problem
    if 0 < spec.band_width < BAND_WIDTH_MIN:
        return "band_width", f"use 0 for the exact value, or a number from {BAND_WIDTH_MIN} to 10"
    for field, choices in _CHOICES.items():
        if getattr(spec, field) not in choices:
            return field, f"use one of {', '.join(choices)}"
    return _parts_problem(spec)


def _parts_problem(spec: QueueSpec) -> tuple[str, str] | None:
    for field in _SWITCHES:
        if not isinstance(getattr(spec, field), bool):
            return field, "use True or False"
    adapt: object = spec.adapt
    if adapt is not None and not isinstance(adapt, AdaptSpec):
        return "adapt", "use AdaptSpec(..), or None for rates as they were published"
    for field in ("tiers", "privileged"):
        if not isinstance(getattr(spec, field), tuple):
            return field, "use a tuple of names, of one name: (name,)"
    return _names_problem(spec)


def _names_problem(spec: QueueSpec) -> tuple[str, str] | None:
    device: object = spec.default_device
    if device is not None and not (isinstance(device, str) and DEVICE_NAME.fullmatch(device)):
        return "default_device", DEVICE_NAME_IS
    for tier in spec.tiers:
        check_name("tier", tier)
    for pattern in spec.privileged:
        check_name("privileged client", pattern)
    if spec.dead_queue is not None:
        check_name("dead queue", spec.dead_queue)
        if spec.dead_queue == spec.name:
            return "dead_queue", "name another queue, a queue cannot be its own dead queue"
    return None


class TopicSpec(Scored, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that publishes to every queue subscribed to it, sharing one stored body."""

    max_age_ms: int | None = None

    def __post_init__(self) -> None:
        make_plain(self, self.__struct_fields__)
        check_name("topic", self.name)
        _refuse("topic", self, _number_problem(self))


def check_spec(spec: object, kind: type[QueueSpec | TopicSpec]) -> None:
    """Refuse to declare anything else."""
    if not isinstance(spec, kind):
        raise InvalidSpec(
            f"a {kind.__name__} can be declared, not {type(spec).__name__}", f"{kind.__name__}('q')"
        )


def check_name(kind: str, name: object) -> None:
    """Refuse a queue or topic name that cannot be shown, typed or stored."""
    if not isinstance(name, str) or not 0 < len(name) <= limits.NAME_CHARS_MAX:
        raise InvalidSpec(
            f"{kind} name {name!r:.80} is not usable",
            f"use a string of 1 to {limits.NAME_CHARS_MAX} characters",
        )
    if not name.isprintable() or name != name.strip():
        raise InvalidSpec(
            f"{kind} name {name!r:.80} is not usable",
            "use printable characters without space at either end",
        )
