"""What does a durable publish cost? 1 KiB bodies, batches of 100 and single messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.load import BATCH, KIB, fifo_messages, fifo_spec, open_with, publish_us, summary
from bench.row import Row, at_most, stated

if TYPE_CHECKING:
    from bench.run import Run


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
        batched = summary(in_batches)
        single = summary(publish_us(broker, singles, "written"))
    settings = {"confirm": "written", "body": KIB, "messages": total}
    return [
        at_most(
            "publish, batches of 100, per message",
            batched.median,
            "us",
            5,
            **settings,
            **batched.as_settings(),
        ),
        stated(
            "publish, one by one, per message",
            single.median,
            "us",
            **settings,
            **single.as_settings(),
        ),
    ]
