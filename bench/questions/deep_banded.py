"""What changes with 10 M messages of 100 classes that decay?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import deep
from bench.load import FILL_BATCH, SMALL_CACHE_BYTES, banded_spec, classed_messages, open_with

if TYPE_CHECKING:
    from bench.row import Row
    from bench.run import Run


def measure(run: Run) -> list[Row]:
    """Bytes per message, lease + ack, a tick."""
    messages = classed_messages(FILL_BATCH, deep.BODY_BYTES)
    order = deep.Order("banded, 100 classes", banded_spec(SMALL_CACHE_BYTES), messages)
    shallow = deep.shallow_us(run, order)
    with open_with(run.fresh("deep"), order.spec) as broker:
        deep.warm_up(broker, order)
        return deep.fill_and_measure(run, broker, order, shallow)
