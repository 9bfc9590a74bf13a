"""Traffic to try policies on: what was published, and how long working on it takes."""

from __future__ import annotations

from typing import Final

from ebbmq.feed.table import Column, Table, optional

TRACE: Final = Table(
    "trace",
    1,
    (
        Column("queue", "text", "where it was published"),
        Column("at_ms", "int64", "when it was published"),
        optional("importance", "int32", "1 to 10; absent for the queue's default"),
        optional("ttl_ms", "int64", "as its publisher gave it; absent for the queue's"),
        optional("decay_rate", "float64", "as its publisher gave it; absent for the queue's"),
        optional("delay_ms", "int64", "how long it waits before it can be leased"),
        Column("bytes", "int64", "headers and body"),
        Column("service_ms", "float64", "how long a consumer works on it"),
        optional("failures", "int32", "how often working on it fails before it succeeds"),
        optional("useful_ms", "int64", "done later than this after its publish, it is late"),
        optional("consumers", "int32", "messages its queue's consumers worked on at once"),
    ),
)
