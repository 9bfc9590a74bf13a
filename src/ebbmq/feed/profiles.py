"""Profiles: what happened in a queue on a node in an hour, counted, with how long it took.

Every run writes the whole of it, of the hours that are kept: what the run before it knew, and what
happened since. Counts, sums and sketches of two parts of an hour add up to those of the hour.
"""

from __future__ import annotations

from typing import Final

from ebbmq.feed.table import Column, Table, optional

PROFILES: Final = Table(
    "profiles",
    1,
    (
        Column("queue", "text", "the queue; empty for a gap"),
        Column("node", "text", "the node that told it"),
        Column("hour_ms", "int64", "the instant the hour begins, by the node's clock"),
        Column("event", "text", "what happened: one of the events"),
        Column("reason", "text", "why, without scores; empty where there is one cause only"),
        Column("count", "int64", "how often"),
        Column("bytes", "int64", "of the messages it happened to, headers and bodies"),
        Column("access", "float64", "reads, each weighted by its age at the end of the hour"),
        Column("samples", "int64", "how many of them took a time that was told"),
        optional("mean_ms", "float64", "how long they took"),
        optional("p50_ms", "int64", "half of them were shorter"),
        optional("p95_ms", "int64", "95 of 100 were shorter"),
        optional("p99_ms", "int64", "99 of 100 were shorter"),
        optional("sketch", "bytes", "of their times: a KLL sketch of Apache DataSketches"),
        optional("counted_at_ms", "int64", "when it was last added to, by who counts"),
    ),
)
