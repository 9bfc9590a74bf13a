"""Steps: the last that was told of messages lately, so that a run can judge what comes next.

Every run writes the whole of it: of the last boot of each node, messages something happened to
within its last numbers.
"""

from __future__ import annotations

from typing import Final

from ebbmq.feed.table import Column, Table

#: Numbers of a boot, back from its last one, of which the steps are kept.
STEPS_KEPT: Final = 250_000

STEPS: Final = Table(
    "steps",
    1,
    (
        Column("node", "text", "the node that told it"),
        Column("boot", "int64", "which start of that node"),
        Column("queue", "text", "the queue of the message"),
        Column("message_id", "text", "the message"),
        Column("seq", "int64", "the number of the last event that changed where it stands"),
        Column("event", "text", "that event"),
    ),
)
