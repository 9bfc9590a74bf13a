"""Rates: the decay factors the pipeline advises for newly published messages, from all latencies.

A row is what `PUT /v1/queues/{queue}/decay-factor` takes. It is for every node that has the queue;
a node whose own consumers ask for a larger factor keeps that, and after `until_ms` the row counts
no more.
"""

from __future__ import annotations

from typing import Final

from ebbmq.feed.table import Column, Table, optional

RATES: Final = Table(
    "rates",
    1,
    (
        Column("queue", "text", "the queue, on whichever nodes it is"),
        Column("factor", "float64", "what rates of new messages are multiplied by; 1: nothing"),
        Column("decided_at_ms", "int64", "when; a row that was decided later replaces this one"),
        Column("until_ms", "int64", "how long it counts"),
        Column("reason", "text", "why, for people"),
        optional("mean_ms", "float64", "how long the leases it was judged by lasted"),
        optional("p95_ms", "float64", "95 of 100 leases were shorter"),
        Column("samples", "int64", "leases it was judged by"),
        optional("stepped_at_ms", "int64", "when leases last asked for a step; 0: never"),
    ),
)
