"""What every part of the server needs: one broker, its settings, who may do what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ebbmq.wire.http import faults

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from ebbmq.errors import EbbError
    from ebbmq.node.async_broker import AsyncBroker
    from ebbmq.node.config import Config
    from ebbmq.node.server.access import Access
    from ebbmq.node.server.pipeline import Pipeline


#: Refusals that alerts ask for: counted from the start, so that the first one is a change.
_WATCHED: Final = (
    (401, "unauthenticated"),
    (403, "forbidden"),
    (408, "too_slow"),
    (413, "too_large"),
    (429, "overloaded"),
    (429, "queue_full"),
    (503, "draining"),
    (503, "storage_failed"),
    (503, "too_many_connections"),
)


@dataclass(slots=True)
class Context:
    """Shared by all requests; only the loop's thread reads and changes it."""

    broker: AsyncBroker
    config: Config
    access: Access
    started_at_ms: int
    #: The pipeline, where the server runs it.
    pipeline: Pipeline | None = None
    #: Set by `drain`: publishes and leases are refused, settling goes on.
    draining: bool = False
    #: Requests that are being received or answered, and answers that are not read yet.
    pending_bytes: int = 0
    #: Requests that may take long and end early when the server stops: polls and redrives.
    ending: set[asyncio.Future[Any]] = field(default_factory=set)

    #: Requests that were answered with an error, by its status and code.
    refused: Counter[tuple[int, str]] = field(
        default_factory=lambda: Counter(dict.fromkeys(_WATCHED, 0))
    )

    def note_refusal(self, error: EbbError) -> None:
        """Count a request that is answered with an error."""
        self.refused[faults.status_of(error), error.code] += 1

    def drain(self) -> None:
        """Take no more messages and answer those who wait for one with nothing."""
        self.draining = True
        for work in self.ending:
            work.cancel()
