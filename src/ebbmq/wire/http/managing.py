"""What travels over HTTP about queues, topics and the server itself: the JSON of management.

`QueueForm` and `TopicForm` are the specifications; the name stands in the path, and may stand in
the body too, so that what was read can be changed and sent back.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ebbmq import limits
from ebbmq.errors import InvalidSpec
from ebbmq.model import (
    BAND_WIDTH_MIN,
    SPEC_FLOATS,
    SPEC_FLOATS_OR_NONE,
    SPEC_WHOLE,
    SPEC_WHOLE_OR_NONE,
    DeviceStatus,
    QueueSpec,
    Removal,
    Scored,
    TopicSpec,
)
from ebbmq.wire.http.forms import ShortText

REMOVALS_COUNT_MAX: Final = 10_000
_REMOVALS_COUNT: Final = 1_000

#: Milliseconds of queue time: 48 bits, as in a message's row.
Instant = Annotated[int, Meta(ge=0, le=(1 << 48) - 1)]
MessageId = Annotated[str, Meta(pattern="^[0-9a-f]{1,8}-[0-9a-f]{1,12}$")]
RemovalReason = Literal[
    "stale",
    "expired",
    "retention",
    "max_attempts",
    "overflow",
    "purged",
    "deleted",
    "damaged",
    "redriven",
    "lost",
    "faded",
]


class _Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A request's body or query: a field that is not known is refused by name."""


def _bounded(name: str, kind: Any) -> Any:
    """A field's type with its bounds, so that they can be read before they are met."""
    if name in SPEC_WHOLE_OR_NONE:
        low, high = SPEC_WHOLE_OR_NONE[name]
        return Annotated[int, Meta(ge=low, le=high)] | None
    if name in SPEC_FLOATS_OR_NONE:
        return Annotated[float, Meta(ge=SPEC_FLOATS[name][0], le=SPEC_FLOATS[name][1])] | None
    if name in {"dead_queue", "default_device"}:
        return ShortText | None
    if name in {"privileged", "tiers"}:
        return tuple[ShortText, ...]
    if name == "band_width":
        either = {"anyOf": [{"maximum": 0}, {"minimum": BAND_WIDTH_MIN}]}
        return Annotated[kind, Meta(ge=0.0, le=SPEC_FLOATS[name][1], extra_json_schema=either)]
    bounds = SPEC_WHOLE.get(name) or SPEC_FLOATS.get(name)
    return Annotated[kind, Meta(ge=bounds[0], le=bounds[1])] if bounds else kind


def _left_out(name: str, kind: Any, default: Any) -> Any:
    """A field's type where it may be left out; its default is only told."""
    told = Meta(extra_json_schema={"default": msgspec.to_builtins(default)})
    return Annotated[_bounded(name, kind) | UnsetType, told]


def _form(name: str, spec: type[Scored], doc: str) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = [("name", ShortText | None, None)]
    for field in msgspec.structs.fields(spec)[1:]:
        fields.append((field.name, _left_out(field.name, field.type, field.default), UNSET))
    return msgspec.defstruct(
        name, fields, bases=(_Request,), namespace={"__doc__": doc}, kw_only=True
    )


_STAYS: Final = "what is left out stays as it is, and takes its default in one that is made."
QueueForm: Final = _form("QueueForm", QueueSpec, f"PUT and PATCH /v1/queues/{{queue}}; {_STAYS}")
TopicForm: Final = _form("TopicForm", TopicSpec, f"PUT and PATCH /v1/topics/{{topic}}; {_STAYS}")


S = TypeVar("S", QueueSpec, TopicSpec)


def spec_of(kind: type[S], path: str, form: msgspec.Struct) -> tuple[S, list[str]]:
    """The specification a form and its path mean together, and the fields that the form names.

    Raises:
        InvalidSpec: a field is outside its limits; the detail names it.
    """
    given = {name: getattr(form, name) for name in form.__struct_fields__}
    fields = {name: value for name, value in given.items() if value is not UNSET}
    name = fields.pop("name", None)
    if name is not None and name != path:
        raise InvalidSpec(
            f"the path names {path!r:.80}, the body {name!r:.80}",
            "leave `name` out of the body, or give the same",
        )
    return kind(path, **fields), list(fields)


class DepthForm(msgspec.Struct, omit_defaults=True):
    """Messages of a queue by state; in doubt only where there are any."""

    ready: int
    leased: int
    scheduled: int
    replicating: int
    dying: int
    in_doubt: int = 0


class CacheForm(msgspec.Struct):
    """Bodies of a queue in RAM, and how often they were there when asked for."""

    bytes: int
    hits: int
    misses: int


class RatesForm(msgspec.Struct):
    """Messages per second over the last seconds."""

    publish: float
    lease: float
    ack: float
    retry: float


class PartitionForm(msgspec.Struct):
    """One partition of a queue; `why` says what is wrong with a faulty one.

    `oldest_id` is of what is there, `newest_id` the last one given, whatever became of it.
    """

    id: str
    state: Literal["ok", "faulty"]
    why: str | None
    depth: int
    oldest_id: str | None = None
    newest_id: str | None = None


class StatsForm(msgspec.Struct):
    """Everything countable about a queue; `now_ms` is its time, which all instants are of.

    `store_id` tells the data directory of the server from every other.
    """

    queue: str
    now_ms: int
    depth: DepthForm
    by_importance: dict[int, int]
    oldest_age_ms: int
    bytes: int
    residency: Literal["normal", "paging", "paged"]
    cache: CacheForm
    rates: RatesForm
    totals: dict[str, int]
    since_open: dict[str, int]
    decay_factor: float
    paused: bool
    partitions: list[PartitionForm]
    #: The parameters of the decay score; unless it acts it is only shown.
    score: dict[str, float]
    score_acts: bool
    store_id: str | None = None


class QueueView(msgspec.Struct):
    """A queue: what it promises, and how it is doing."""

    spec: QueueSpec
    stats: StatsForm


class QueuesForm(msgspec.Struct):
    """GET /v1/queues: the queues the caller may see, by name."""

    queues: list[QueueView]


class PausedForm(msgspec.Struct):
    """The answer to pause and resume."""

    paused: bool


class PurgedForm(msgspec.Struct):
    """The answer to a purge."""

    purged: int


class RedriveForm(_Request):
    """POST /v1/queues/{queue}/redrive; without `ids`, everything that is ready."""

    to: ShortText | None = None
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    ids: Annotated[list[ShortText], Meta(max_length=limits.LEASE_COUNT_MAX)] | None = None


class RedrivenForm(msgspec.Struct):
    """The answer to a redrive."""

    redriven: int


class DecayFactorForm(_Request):
    """PUT /v1/queues/{queue}/decay-factor; `until_ms` is an instant of queue time."""

    factor: Annotated[float, Meta(gt=0, le=1_000_000)]
    until_ms: Instant
    run: Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)] = ""


class DecayFactorView(msgspec.Struct):
    """The factor that counts, the larger of the queue's own and the one set."""

    decay_factor: float


class RemovalsQuery(_Request):
    """GET /v1/queues/{queue}/removals; `after` is the last id of the page before."""

    reason: RemovalReason | None = None
    since_ms: Instant | None = None
    after: MessageId | None = None
    count: Annotated[int, Meta(ge=1, le=REMOVALS_COUNT_MAX)] = _REMOVALS_COUNT


class RemovalsForm(msgspec.Struct):
    """Removals, oldest first; with `more`, ask again with `since_ms` and `after` of the last."""

    removals: list[Removal]
    more: bool


class TopicView(msgspec.Struct):
    """A topic with the queues subscribed to it."""

    topic: str
    queues: list[str]
    max_age_ms: int | None
    score_base: float
    score_per_day: float | None
    score_access_bonus: float
    score_medium: float | None
    score_high: float | None


class TopicsForm(msgspec.Struct):
    """GET /v1/topics: the topics the caller may see."""

    topics: list[TopicView]


class DevicesForm(msgspec.Struct):
    """GET /v1/devices: every device, the node's own log first."""

    devices: list[DeviceStatus]


class EvictForm(_Request):
    """POST /v1/devices/{device}/evict; `force` gives up a device that answers, too.

    What only it has is copied first, unless `drain` is false.
    """

    force: bool = False
    drain: bool = True


class BackupForm(_Request):
    """POST /v1/backup; `target` is a new or empty directory on the server's machine."""

    target: Annotated[str, Meta(min_length=1, max_length=4_096)]


class BackedUpForm(msgspec.Struct):
    """The answer to a backup: bytes copied."""

    bytes: int


class ProblemForm(msgspec.Struct):
    """Something that keeps the server from being ready."""

    code: str
    detail: str


class HealthForm(msgspec.Struct):
    """GET /health/ready: whether to send work here, and why not.

    A device that cannot be used, a feed that cannot be written, or a pipeline that does not run, is
    told, and does not keep the server from taking work.
    """

    ready: bool
    problems: list[ProblemForm]
    damage: list[str]
    devices: list[str] = []
    feed: list[str] = []
    pipeline: list[str] = []


class LiveForm(msgspec.Struct):
    """GET /health/live: the process answers."""

    live: bool
