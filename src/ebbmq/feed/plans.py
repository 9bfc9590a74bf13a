"""Plans: what the pipeline advises brokers to do with copies; a broker checks each before it acts.

A row is what `policy.placement.Pin` holds: a target and a tier for one message, for a generation
and a version of the queue's parameters, until an instant. A row that is outdated changes nothing.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from ebbmq.feed.table import Column, Table, optional

Action = Literal["repair", "promote", "add_copy", "move", "archive", "drop_copy"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)

PLANS: Final = Table(
    "plans",
    1,
    (
        Column("node", "text", "the node that keeps the message"),
        Column("queue", "text", "its queue"),
        Column("partition", "int32", "its partition in the queue"),
        Column("message_id", "text", "the id the publisher was told"),
        Column("generation", "int32", "leases granted so far; with another the row is outdated"),
        Column("action", "text", "repair, promote, add_copy, move, archive or drop_copy"),
        optional("from_tier", "text", "where it is: of its copies the first in the queue's order"),
        optional("to_tier", "text", "where it should be; absent without tiers"),
        Column("target", "int32", "copies it should have"),
        Column("bytes", "int64", "that are to be written; 0 for what only goes"),
        optional("freed_bytes", "int64", "that go from where it is"),
        Column("value", "float64", "what it is worth: the most valuable come first"),
        Column("reason", "text", "why, for people"),
        Column("policy_version", "int64", "of the queue's parameters it was judged by"),
        Column("decided_at_ms", "int64", "when; a crossing after that outdates the row"),
        Column("until_ms", "int64", "how long the advice holds"),
    ),
)
