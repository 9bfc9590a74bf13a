"""The messages that are alive at an instant: the catalog snapshots a node writes now and then.

A snapshot carries what a plan needs, the access rate among it, so that planning joins nothing; and
`review_at_ms`, the instant before which nothing about a message can change by itself, so that most
runs of the pipeline skip most rows.
"""

from __future__ import annotations

from typing import Final

from ebbmq.feed.table import Column, Table, optional

STATES: Final = ("scheduled", "replicating", "ready", "leased", "dying")

CATALOG: Final = Table(
    "catalog",
    1,
    (
        Column("node", "text", "the node that keeps the message"),
        Column("boot", "int64", "which start of that node: its epoch"),
        Column("at_ms", "int64", "the instant of the snapshot"),
        Column("queue", "text", "its queue"),
        Column("partition", "int32", "its partition in the queue"),
        Column("message_id", "text", "the id the publisher was told"),
        Column("generation", "int32", "leases granted since it came into this queue"),
        Column("state", "text", "scheduled, replicating, ready, leased or dying"),
        Column("importance", "int32", "1 to 10, as published"),
        Column("decay_rate", "float64", "as it counts, the adaptive factor included"),
        optional("ttl_ms", "int64", "as it counts; absent without one"),
        Column("bytes", "int64", "headers and body"),
        Column(
            "attempts",
            "int32",
            "the same as generation: one that was dead-lettered or redriven begins at 0 again",
        ),
        Column("failures", "int32", "leases that failed"),
        Column("enqueued_at_ms", "int64", "when it was first published"),
        Column(
            "access_rate",
            "float64",
            "reads a day, as of access_at_ms; 0 where neither a score nor a rule depends on it",
        ),
        Column("access_at_ms", "int64", "when it was last read, 0 if never"),
        Column("decay_score", "float64", "how faded it is at the instant of the snapshot"),
        Column("durable", "bool", "whether it must survive a restart"),
        Column("replicas", "int32", "copies its publisher asked for"),
        Column("replica_target", "int32", "copies it should have"),
        Column("copies", "int32", "copies it has"),
        optional(
            "tier",
            "text",
            "of its copies the first in the queue's order of tiers; absent without tiers",
        ),
        Column("devices", "texts", "where its copies are, best first"),
        optional("review_at_ms", "int64", "when to look at it again; absent for never"),
        Column("policy_version", "int64", "of the queue's parameters it was judged by"),
    ),
)
