"""What does a durable publish cost? 1 KiB bodies, batches of 100 and single messages."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ebbmq.bench.load import BATCH, KIB, fifo_messages, fifo_spec, open_with, publish_us
from ebbmq.bench.row import Row, at_most, stated

if TYPE_CHECKING:
    from ebbmq.bench.run import Run


def measure(run: Run) -> list[Row]:
    """Median per message at `written`, in batches and one by one."""
    total = run.scale(200_000, 20_000)
    messages = fifo_messages(total, KIB)
    batches = [messages[at : at + BATCH] for at in range(0, total, BATCH)]
    singles = [[message] for message in messages[: total // 10]]
    with open_with(run.fresh("publish"), fifo_spec()) as broker:
        in_batches = []
        for part in range(10):
            in_batches += publish_us(broker, batches[part::10], "written")
            run.progress("batches of 100", part + 1, 10)
        one_by_one = publish_us(broker, singles, "written")
    settings = {"confirm": "written", "body": KIB, "messages": total}
    return [
        at_most(
            "publish, batches of 100, per message",
            statistics.median(in_batches),
            "us",
            5,
            **settings,
            mean_us=round(statistics.fmean(in_batches), 2),
            p99_us=round(statistics.quantiles(in_batches, n=100)[98], 2),
        ),
        stated(
            "publish, one by one, per message",
            statistics.median(one_by_one),
            "us",
            **settings,
        ),
    ]
