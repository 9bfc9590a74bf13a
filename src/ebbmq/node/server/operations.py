"""Every operation of the HTTP interface in one table, whoever answers it; the manual's source."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from ebbmq.feed import advice
from ebbmq.model import DeviceStatus, Evicted, Timing
from ebbmq.node.server.asking import NoFields
from ebbmq.policy.rules.explain import Explanation
from ebbmq.policy.rules.spec import RulesView, RuleView
from ebbmq.wire.http import forms, managing, plans, rules

Scope = Literal["publish", "consume", "manage"]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one path: what it does, takes and answers."""

    method: Literal["get", "put", "patch", "post", "delete"]
    path: str
    name: str
    group: str
    summary: str
    #: The scope a token needs for the queue or topic; None: any token, or what `needs` says.
    scope: Scope | None = None
    needs: str = ""
    query: type[msgspec.Struct] = NoFields
    body: type[msgspec.Struct] | None = None
    #: Whether a request without a body is taken for an empty one.
    may_be_empty: bool = False
    answer: type[msgspec.Struct] | None = None
    #: Statuses of success beside 200; {204} alone has no answer.
    statuses: tuple[int, ...] = (200,)
    media_type: str = "application/json"
    example: str = ""


class PeekQuery(msgspec.Struct):
    """GET /v1/queues/{queue}/messages."""

    count: forms.Count = 10
    state: forms.State = "ready"
    #: Whether to look is an access, which the decay score of the queue may count.
    counted: bool = False
    #: In order of arrival, of the partition of this id: what came after it ..
    after: managing.MessageId | None = None
    #: .. and not after this one.
    up_to: managing.MessageId | None = None


#: As many digits as a number in a query may have.
_Number = Annotated[int, msgspec.Meta(ge=0, le=999_999_999_999)]


class ReadLeaseQuery(msgspec.Struct, rename={"first": "from", "last": "to"}):
    """GET /v1/queues/{queue}/leases/{name}: numbers of leases, from 0."""

    first: _Number = 0
    last: _Number | None = None


class DecisionView(msgspec.Struct):
    """Something that was decided about the copies of a message, or happened to them."""

    at_ms: int
    event: str
    device: str
    #: As the feed has it.
    reason: str
    #: All of it but the instant, as a sentence.
    text: str


class PinnedView(msgspec.Struct):
    """The plan of the pipeline that a message is held to."""

    run: str
    action: str
    target: int
    tier: str | None
    decided_at_ms: int
    until_ms: int


class MovingView(msgspec.Struct, rename={"to_devices": "to", "from_devices": "from"}):
    """Devices that are yet to have a copy, and those that are yet to forget theirs."""

    to_devices: list[str]
    from_devices: list[str]


class MessageView(msgspec.Struct, omit_defaults=True):
    """Where a message is, or why it left; which fields there are depends on `state`.

    Those from `access_count` on are there where the broker has devices.
    """

    id: str
    queue: str | None
    state: Literal[
        "scheduled", "replicating", "ready", "leased", "dying", "in_doubt", "removed", "gone",
        "unknown",
    ]  # fmt: skip
    reason: str | None = None
    at_ms: int | None = None
    importance: int | None = None
    current_importance: float | None = None
    #: In which band it is now.
    band: int | None = None
    failures: int | None = None
    #: Leases granted so far: of a message that is there, and of one that left.
    attempt: int | None = None
    attempts: int | None = None
    enqueued_at_ms: int | None = None
    #: As it counts; null without one.
    ttl_ms: int | None = None
    #: As it counts, the adaptive factor included.
    decay_rate: float | None = None
    #: Until when it is leased, or when it can be if it is scheduled; else null.
    deadline_ms: int | None = None
    privileged: bool | None = None
    bytes: int | None = None
    segment: int | None = None
    #: Its last leases that failed: node, attempt, duration, outcome.
    latency_history: list[Timing] | None = None
    type: str | None = None
    #: Only for who may lease it.
    headers: dict[str, str] | None = None
    damaged: bool | None = None
    moved_to: str | None = None
    access_count: int | None = None
    access_rate: float | None = None
    decay_score: float | None = None
    tier: str | None = None
    #: Devices that have a copy.
    copies: list[str] | None = None
    copies_acked: int | None = None
    replica_target: int | None = None
    removals_acked: int | None = None
    #: Of a message that left: devices that are yet to forget it.
    removals_waiting: list[str] | None = None
    #: What was decided about its copies, oldest first, also before the last start.
    decisions: list[DecisionView] | None = None
    #: Older decisions may have been given up for newer ones, of whatever message.
    decisions_since_ms: int | None = None
    pinned: PinnedView | None = None
    moving: MovingView | None = None


_QUEUE: Final = "/v1/queues/{queue}"
_TOPIC: Final = "/v1/topics/{topic}"
_RULE: Final = "/v1/rules/{rule}"
_EVERYTHING: Final = "For everything: the pattern `*`."
_IF_MATCH: Final = (
    f"{_EVERYTHING} If-Match, or `version`, names the version it must not have changed after."
)

OPERATIONS: Final = (
    Operation(
        method="post",
        path=f"{_QUEUE}/messages",
        name="publish",
        group="Messages",
        summary="Publish messages; answered once they hold at the confirm level.",
        scope="publish",
        body=forms.PublishForm,
        answer=forms.ReceiptsForm,
        example='{"messages": [{"text": "hello", "importance": 9}]}',
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/leases",
        name="lease",
        group="Messages",
        summary="Lease up to `count` messages, waiting up to `wait_ms` for the first.",
        scope="consume",
        body=forms.LeaseRequest,
        may_be_empty=True,
        answer=forms.LeasesForm,
        example='{"count": 10, "wait_ms": 5000}',
    ),
    Operation(
        method="get",
        path=f"{_QUEUE}/leases/{{name}}",
        name="read_lease",
        group="Messages",
        summary="Read the leases of a named lease call again, while they are held.",
        scope="consume",
        query=ReadLeaseQuery,
        answer=forms.LeasesForm,
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/reads",
        name="read",
        group="Messages",
        summary="Read leased messages again by their tokens; what holds no lease is left out.",
        scope="consume",
        body=forms.ReadForm,
        answer=forms.LeasesForm,
        example='{"tokens": ["TOKEN"]}',
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/acks",
        name="ack",
        group="Messages",
        summary="Say that work is done; tokens that hold no lease are refused one by one.",
        scope="consume",
        body=forms.AckForm,
        answer=forms.AckedForm,
        example='{"tokens": ["TOKEN"]}',
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/retries",
        name="retry",
        group="Messages",
        summary="Say that work failed; the messages come back after a delay.",
        scope="consume",
        body=forms.RetryForm,
        answer=forms.RetriedForm,
        example='{"tokens": ["TOKEN"], "delay_ms": 1000}',
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/releases",
        name="release",
        group="Messages",
        summary="Hand leases back unused; no failure is counted and the place is kept.",
        scope="consume",
        body=forms.ReleaseForm,
        answer=forms.ReleasedForm,
        example='{"tokens": ["TOKEN"]}',
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/extensions",
        name="extend",
        group="Messages",
        summary="Have leases end `timeout_ms` from now.",
        scope="consume",
        body=forms.ExtendForm,
        answer=forms.ExtendedForm,
        example='{"tokens": ["TOKEN"], "timeout_ms": 60000}',
    ),
    Operation(
        method="get",
        path=f"{_QUEUE}/messages",
        name="peek",
        group="Messages",
        summary="Look at messages without leasing them; ready ones in delivery order.",
        scope="consume",
        query=PeekQuery,
        answer=forms.PeeksForm,
    ),
    Operation(
        method="post",
        path=f"{_TOPIC}/messages",
        name="publish_topic",
        group="Messages",
        summary="Publish messages to every queue subscribed to a topic: to all or to none.",
        scope="publish",
        body=forms.PublishForm,
        answer=forms.TopicReceiptsForm,
        example='{"messages": [{"text": "hello"}]}',
    ),
    Operation(
        method="get",
        path="/v1/messages/{id}",
        name="why",
        group="Messages",
        summary="Where a message is, or why it left.",
        needs="Messages of queues the token holds no scope for are unknown.",
        answer=MessageView,
    ),
    Operation(
        method="get",
        path="/v1/queues",
        name="list_queues",
        group="Queues",
        summary="Every queue with its specification and stats.",
        needs="Shows the queues the token holds a scope for.",
        answer=managing.QueuesForm,
    ),
    Operation(
        method="put",
        path=_QUEUE,
        name="declare",
        group="Queues",
        summary="Make a queue; one that is there must have the fields that are named.",
        scope="manage",
        body=managing.QueueForm,
        may_be_empty=True,
        answer=managing.QueueView,
        statuses=(200, 201),
        example='{"max_attempts": 5, "dead_queue": "orders.dead"}',
    ),
    Operation(
        method="patch",
        path=_QUEUE,
        name="change_queue",
        group="Queues",
        summary="Change the fields of a queue that are named.",
        scope="manage",
        body=managing.QueueForm,
        may_be_empty=True,
        answer=managing.QueueView,
        example='{"max_attempts": 5}',
    ),
    Operation(
        method="get",
        path=_QUEUE,
        name="show_queue",
        group="Queues",
        summary="One queue: its specification, depth, ages, rates and totals.",
        needs="Any scope for the queue.",
        answer=managing.QueueView,
    ),
    Operation(
        method="delete",
        path=_QUEUE,
        name="delete_queue",
        group="Queues",
        summary="Remove a queue and everything in it, on the record.",
        scope="manage",
        statuses=(204,),
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/pause",
        name="pause",
        group="Queues",
        summary="Grant no more leases; publishing and settling go on.",
        scope="manage",
        body=NoFields,
        may_be_empty=True,
        answer=managing.PausedForm,
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/resume",
        name="resume",
        group="Queues",
        summary="Grant leases again.",
        scope="manage",
        body=NoFields,
        may_be_empty=True,
        answer=managing.PausedForm,
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/purge",
        name="purge",
        group="Queues",
        summary="Remove every message that is not leased, on the record.",
        scope="manage",
        body=NoFields,
        may_be_empty=True,
        answer=managing.PurgedForm,
    ),
    Operation(
        method="post",
        path=f"{_QUEUE}/redrive",
        name="redrive",
        group="Queues",
        summary="Move ready messages of a dead queue back to where they came from, or to `to`.",
        scope="manage",
        needs="Also the scope publish for the queues they go to.",
        body=managing.RedriveForm,
        may_be_empty=True,
        answer=managing.RedrivenForm,
        example='{"rate": 50}',
    ),
    Operation(
        method="put",
        path=f"{_QUEUE}/decay-factor",
        name="set_decay_factor",
        group="Queues",
        summary="Multiply the decay rates of messages published until an instant.",
        scope="manage",
        body=managing.DecayFactorForm,
        answer=managing.DecayFactorView,
        example='{"factor": 2, "until_ms": 1893456000000}',
    ),
    Operation(
        method="get",
        path=f"{_QUEUE}/removals",
        name="removals",
        group="Queues",
        summary="What left the queue other than by ack, and why; oldest first, in pages.",
        scope="consume",
        query=managing.RemovalsQuery,
        answer=managing.RemovalsForm,
    ),
    Operation(
        method="get",
        path="/v1/topics",
        name="list_topics",
        group="Topics",
        summary="Every topic with the queues subscribed to it.",
        needs="Shows the topics and queues the token holds a scope for.",
        answer=managing.TopicsForm,
    ),
    Operation(
        method="put",
        path=_TOPIC,
        name="declare_topic",
        group="Topics",
        summary="Make a topic; one that is there must have the fields that are named.",
        scope="manage",
        body=managing.TopicForm,
        may_be_empty=True,
        answer=managing.TopicView,
        statuses=(200, 201),
    ),
    Operation(
        method="patch",
        path=_TOPIC,
        name="change_topic",
        group="Topics",
        summary="Change the fields of a topic that are named; subscriptions stay.",
        scope="manage",
        body=managing.TopicForm,
        may_be_empty=True,
        answer=managing.TopicView,
    ),
    Operation(
        method="get",
        path=_TOPIC,
        name="show_topic",
        group="Topics",
        summary="One topic with the queues subscribed to it.",
        needs="Any scope for the topic.",
        answer=managing.TopicView,
    ),
    Operation(
        method="delete",
        path=_TOPIC,
        name="delete_topic",
        group="Topics",
        summary="Remove a topic and its subscriptions; what queues got from it stays in them.",
        scope="manage",
        statuses=(204,),
    ),
    Operation(
        method="put",
        path=f"{_TOPIC}/queues/{{queue}}",
        name="subscribe",
        group="Topics",
        summary="Have a queue get what is published to a topic from now on.",
        scope="manage",
        needs="For the topic and for the queue.",
        body=NoFields,
        may_be_empty=True,
        answer=managing.TopicView,
    ),
    Operation(
        method="delete",
        path=f"{_TOPIC}/queues/{{queue}}",
        name="unsubscribe",
        group="Topics",
        summary="Have a queue no longer get what is published to a topic.",
        scope="manage",
        needs="For the topic and for the queue.",
        answer=managing.TopicView,
    ),
    Operation(
        method="get",
        path="/v1/rules",
        name="list_rules",
        group="Rules",
        summary="Every storage rule, and the version of them all, which is also the ETag.",
        scope="manage",
        needs=_EVERYTHING,
        answer=RulesView,
    ),
    Operation(
        method="post",
        path="/v1/rules",
        name="add_rule",
        group="Rules",
        summary="Add a storage rule; it counts for what is published from then on.",
        scope="manage",
        needs=_EVERYTHING,
        body=rules.RuleForm,
        answer=RuleView,
        statuses=(201,),
        example='{"id": "W-001", "weight": 31, "device": "hdd", "when": "SIZE > 100"}',
    ),
    Operation(
        method="put",
        path="/v1/rules",
        name="put_rules",
        group="Rules",
        summary="Add or change many storage rules: all of them or none.",
        scope="manage",
        needs=_EVERYTHING,
        body=rules.RulesForm,
        answer=RulesView,
        example='{"rules": [{"id": "W-002", "weight": 60, "device": "hdd"}], "others": "keep"}',
    ),
    Operation(
        method="get",
        path="/v1/rules/audit",
        name="audit_rules",
        group="Rules",
        summary="Who changed which storage rule, and when; newest last.",
        scope="manage",
        needs=_EVERYTHING,
        query=rules.AuditQuery,
        answer=rules.ChangesForm,
    ),
    Operation(
        method="post",
        path="/v1/rules/explain",
        name="explain_rules",
        group="Rules",
        summary="Which devices a message would be kept on, and why each other one would not.",
        scope="manage",
        needs=_EVERYTHING,
        body=rules.ExplainForm,
        may_be_empty=True,
        answer=Explanation,
        example='{"message": {"size": 35, "type": "TEXT"}, "statuses": {"hdd": -10}}',
    ),
    Operation(
        method="post",
        path="/v1/rules/apply",
        name="apply_rules",
        group="Rules",
        summary="Ask the rules again for every stored message, and move those kept elsewhere.",
        scope="manage",
        needs=_EVERYTHING,
        body=NoFields,
        may_be_empty=True,
        answer=rules.AppliedForm,
    ),
    Operation(
        method="get",
        path=_RULE,
        name="show_rule",
        group="Rules",
        summary="One storage rule; its version is the ETag.",
        scope="manage",
        needs=_EVERYTHING,
        answer=RuleView,
    ),
    Operation(
        method="put",
        path=_RULE,
        name="put_rule",
        group="Rules",
        summary="Change a storage rule, enable or disable it, or add it.",
        scope="manage",
        needs=_IF_MATCH,
        query=rules.VersionQuery,
        body=rules.RuleChangeForm,
        answer=RuleView,
        statuses=(200, 201),
        example='{"enabled": false}',
    ),
    Operation(
        method="delete",
        path=_RULE,
        name="remove_rule",
        group="Rules",
        summary="Remove a storage rule that was added.",
        scope="manage",
        needs=_IF_MATCH,
        query=rules.VersionQuery,
        statuses=(204,),
    ),
    Operation(
        method="get",
        path="/v1/devices",
        name="list_devices",
        group="Devices",
        summary="Every device with its space, latency, status and circuit.",
        scope="manage",
        needs=_EVERYTHING,
        answer=managing.DevicesForm,
    ),
    Operation(
        method="get",
        path="/v1/devices/{device}",
        name="show_device",
        group="Devices",
        summary="One device.",
        scope="manage",
        needs=_EVERYTHING,
        answer=DeviceStatus,
    ),
    Operation(
        method="post",
        path="/v1/devices/{device}/probe",
        name="probe_device",
        group="Devices",
        summary="Try a device now; a success counts also while its circuit is open.",
        scope="manage",
        needs=_EVERYTHING,
        body=NoFields,
        may_be_empty=True,
        answer=DeviceStatus,
    ),
    Operation(
        method="post",
        path="/v1/devices/{device}/evict",
        name="evict_device",
        group="Devices",
        summary="Give up a device that is lost, or by force one that works, drained first.",
        scope="manage",
        needs=_EVERYTHING,
        body=managing.EvictForm,
        may_be_empty=True,
        answer=Evicted,
        example='{"force": false}',
    ),
    Operation(
        method="post",
        path="/v1/devices/{device}/admit",
        name="admit_device",
        group="Devices",
        summary="Take back a device that was evicted, or end its draining; it is compared first.",
        scope="manage",
        needs=_EVERYTHING,
        body=NoFields,
        may_be_empty=True,
        answer=DeviceStatus,
    ),
    Operation(
        method="get",
        path="/v1/plans",
        name="list_plans",
        group="Plans",
        summary="The last runs of the pipeline whose plans and rates were applied, with counts.",
        scope="manage",
        needs=_EVERYTHING,
        answer=advice.Plans,
    ),
    Operation(
        method="post",
        path="/v1/plans",
        name="apply_plans",
        group="Plans",
        summary="Apply plans and rates from the server's lake; what is outdated is refused.",
        scope="manage",
        needs=_EVERYTHING,
        body=plans.ApplyPlansForm,
        may_be_empty=True,
        answer=plans.AppliedPlansForm,
        example='{"run": "20261116T030000123Z"}',
    ),
    Operation(
        method="post",
        path="/v1/backup",
        name="backup",
        group="Server",
        summary="Copy the store, in use as it is, to a directory of the server's machine.",
        scope="manage",
        needs=_EVERYTHING,
        body=managing.BackupForm,
        answer=managing.BackedUpForm,
        example='{"target": "/var/backups/ebbmq-monday"}',
    ),
    Operation(
        method="get",
        path="/health/live",
        name="live",
        group="Server",
        summary="The process answers.",
        needs="No token.",
        answer=managing.LiveForm,
    ),
    Operation(
        method="get",
        path="/health/ready",
        name="ready",
        group="Server",
        summary="Whether to send work here; 503 with the problems if not.",
        needs="No token; with one for everything, details.",
        answer=managing.HealthForm,
        statuses=(200, 503),
    ),
    Operation(
        method="get",
        path="/metrics",
        name="metrics",
        group="Server",
        summary="Figures for Prometheus, as OpenMetrics.",
        needs="Shows the queues the token holds a scope for.",
        media_type="application/openmetrics-text",
    ),
)
