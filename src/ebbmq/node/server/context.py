"""What every part of the server needs: one broker, its settings, who may do what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from ebbmq.node.async_broker import AsyncBroker
    from ebbmq.node.config import Config
    from ebbmq.node.server.access import Access


@dataclass(slots=True)
class Context:
    """Shared by all requests; only the loop's thread reads and changes it."""

    broker: AsyncBroker
    config: Config
    access: Access
    started_at_ms: int
    #: Set by `drain`: publishes and leases are refused, settling goes on.
    draining: bool = False
    #: Requests that are being received or answered, and answers that are not read yet.
    pending_bytes: int = 0
    #: Requests that may take long and end early when the server stops: polls and redrives.
    ending: set[asyncio.Future[Any]] = field(default_factory=set)

    def drain(self) -> None:
        """Take no more messages and answer those who wait for one with nothing."""
        self.draining = True
        for work in self.ending:
            work.cancel()
