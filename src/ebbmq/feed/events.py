"""What happened to messages: the events a node tells, one row each, in the order they happened."""

from __future__ import annotations

from typing import Final, Literal, get_args

from ebbmq.feed.table import Column, Table, optional

Event = Literal[
    "published",
    "scheduled",
    "leased",
    "acked",
    "retried",
    "released",
    "lease_expired",
    "stale",
    "expired",
    "removed",
    "dead_lettered",
    "peeked",
    "placed",
    "asked",
    "archived",
    "copied",
    "moved",
    "refused",
    "lost",
    "dropped",
    "pinned",
    "unpinned",
    "gap",
]
NAMES: Final[tuple[str, ...]] = get_args(Event)

#: The first that happens to a message in its queue.
ARRIVALS: Final = frozenset({"published", "scheduled"})
#: After one of these nothing more happens to a message in its queue.
LAST: Final = frozenset({"acked", "stale", "expired", "removed", "dead_lettered"})
#: A message was read: its access rate rises, and falls again if the lease failed.
READS: Final = frozenset({"leased", "peeked"})
FAILURES: Final = frozenset({"retried", "lease_expired"})
#: What happens to copies; it leaves a message where it is in its queue.
COPIES: Final = frozenset(
    {
        "placed",
        "asked",
        "archived",
        "copied",
        "moved",
        "refused",
        "lost",
        "dropped",
        "pinned",
        "unpinned",
    }
)
#: Their reason begins with the cause; what follows a comma is of one message, such as its score.
SCORED: Final = frozenset({"asked", "archived", "dropped", "pinned"})
#: Of no message, so without queue and id: events before it were left out, and `reason` says how
#: many. They have their numbers, which are missing.
GAP: Final = "gap"
#: What a publisher may say, else the queue's own counts; `given` names them in this order.
GIVEN: Final = ("importance", "ttl_ms", "decay_rate")
NOTHING: Final = "nothing"
#: What ends a lease.
SETTLES: Final = frozenset({"acked", "retried", "released", "lease_expired"})

EVENTS: Final = Table(
    "events",
    1,
    (
        Column("node", "text", "the node that tells it"),
        Column("boot", "int64", "which start of that node: its epoch"),
        Column("seq", "int64", "1, 2, 3 .. within a boot; what is missing was left out"),
        Column("at_ms", "int64", "when, by the node's clock that its messages' ages run on"),
        Column("queue", "text", "the queue of the message"),
        Column("partition", "int32", "its partition in the queue"),
        Column("message_id", "text", "the id the publisher was told"),
        Column("generation", "int32", "leases granted so far, this one included"),
        Column("event", "text", "what happened: one of the events"),
        optional("reason", "text", "why, where an event can have several causes"),
        optional("importance", "int32", "1 to 10, as published"),
        optional("decay_rate", "float64", "as it counts, the adaptive factor included"),
        optional("ttl_ms", "int64", "as it counts; absent without one"),
        optional("delay_ms", "int64", "how long it waits before it can be leased"),
        optional("bytes", "int64", "headers and body"),
        optional("failures", "int32", "leases that failed so far"),
        optional("enqueued_at_ms", "int64", "when it was first published"),
        optional("latency_ms", "int64", "how long a lease lasted, where one ended"),
        optional("consumer", "text", "who leased it"),
        optional("device", "text", "where, for what happens to copies"),
        optional("decay_score", "float64", "how faded it was, for what happens to copies"),
        optional("given", "text", "of a publish: which of GIVEN it said itself, or NOTHING"),
        optional("given_decay_rate", "float64", "of a publish: the rate it said, if it did"),
    ),
)
