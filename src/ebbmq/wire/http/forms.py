"""What travels over HTTP: the JSON of every message verb, as structs that refuse unknown fields.

A body travels as `body_b64`, or as `text` when it was published as text: exactly one of the two.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ebbmq import limits
from ebbmq.model import Level, Receipt, Timing

Importance = Annotated[int, Meta(ge=limits.IMPORTANCE_MIN, le=limits.IMPORTANCE_MAX)]
Duration = Annotated[int, Meta(ge=0, le=limits.DURATION_MS_MAX)]
Timeout = Annotated[int, Meta(ge=1, le=limits.DURATION_MS_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
ShortText = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
Count = Annotated[int, Meta(ge=1, le=limits.LEASE_COUNT_MAX)]
Tokens = Annotated[list[str], Meta(max_length=limits.LEASE_COUNT_MAX)]
State = Literal["ready", "leased", "scheduled", "replicating", "dying"]


class _Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A request's body: a field that is not known is refused by name."""


class MessageForm(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, gc=False
):
    """A message to publish; what is left out takes the queue's default."""

    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    importance: Importance | None = None
    ttl_ms: Timeout | None = None
    decay_rate: Share | None = None
    delay_ms: Duration = 0
    headers: dict[str, str] | None = None
    id: ShortText | None = None
    key: ShortText | None = None
    replicas: Annotated[int, Meta(ge=1, le=limits.REPLICAS_MAX)] | None = None
    store: ShortText | None = None
    durable: bool = True
    type: ShortText | None = None


class PublishForm(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/messages and POST /v1/topics/{topic}/messages."""

    messages: Annotated[list[MessageForm], Meta(max_length=limits.BATCH_MESSAGES_MAX)]
    confirm: Level | None = None
    timeout_ms: Timeout | None = None


class LeaseRequest(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/leases."""

    count: Count = 1
    wait_ms: Duration = 0
    lease_timeout_ms: Timeout | None = None
    name: ShortText | None = None
    #: Answer with tokens alone; the messages are read by these, in parts and by whomever.
    tokens_only: bool = False


class ReadForm(_Request):
    """POST /v1/queues/{queue}/reads."""

    tokens: Tokens


class AckForm(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/acks."""

    tokens: Tokens
    confirm: Level = "written"


class RetryForm(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/retries."""

    tokens: Tokens
    delay_ms: Duration | None = None


class ReleaseForm(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/releases."""

    tokens: Tokens


class ExtendForm(_Request, omit_defaults=True):
    """POST /v1/queues/{queue}/extensions."""

    tokens: Tokens
    timeout_ms: Timeout


class ReceiptsForm(msgspec.Struct, gc=False):
    """The answer to a publish: one receipt per message, in order."""

    receipts: list[Receipt]


class TopicReceiptsForm(msgspec.Struct, gc=False):
    """The answer to a publish to a topic: the receipts of each queue subscribed to it."""

    receipts: dict[str, list[Receipt]]


class LeaseForm(msgspec.Struct, gc=False):
    """A lease as a consumer sees it; the field order is the one `codec` fills."""

    id: str
    headers: dict[str, str]
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
    type: str
    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    access_count: int | UnsetType = UNSET
    access_rate: float | UnsetType = UNSET
    decay_score: float | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    copies: tuple[str, ...] | UnsetType = UNSET
    copies_acked: int | UnsetType = UNSET
    removals_acked: int | UnsetType = UNSET
    replica_target: int | UnsetType = UNSET


class PeekForm(msgspec.Struct, gc=False):
    """A message as a peek shows it."""

    id: str
    headers: dict[str, str]
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
    type: str
    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    access_count: int | UnsetType = UNSET
    access_rate: float | UnsetType = UNSET
    decay_score: float | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    copies: tuple[str, ...] | UnsetType = UNSET
    copies_acked: int | UnsetType = UNSET
    removals_acked: int | UnsetType = UNSET
    replica_target: int | UnsetType = UNSET


class LeasesForm(msgspec.Struct, gc=False):
    """The answer to a lease call: as many as there were, up to the count asked for.

    `tokens` where only these were asked for; `next` is the number of the first lease of a name, or
    token, that did not fit into the answer.
    """

    leases: list[LeaseForm]
    tokens: list[str] | UnsetType = UNSET
    next: int | UnsetType = UNSET


class PeeksForm(msgspec.Struct, gc=False):
    """The answer to a peek."""

    messages: list[PeekForm]


class RefusedForm(msgspec.Struct, gc=False):
    """A token that was not applied, and why."""

    token: str
    code: str


class AckedForm(msgspec.Struct, gc=False):
    """The answer to an ack."""

    acked: int
    refused: list[RefusedForm]


class RetriedForm(msgspec.Struct, gc=False):
    """The answer to a retry."""

    retried: int
    refused: list[RefusedForm]


class ReleasedForm(msgspec.Struct, gc=False):
    """The answer to a release."""

    released: int
    refused: list[RefusedForm]


class ExtendedForm(msgspec.Struct, gc=False):
    """The answer to an extension."""

    extended: int
    refused: list[RefusedForm]


class FaultForm(msgspec.Struct, frozen=True, gc=False):
    """Every error: `code` is for programs, `detail` and `action` are for people."""

    code: str
    detail: str
    action: str = ""
