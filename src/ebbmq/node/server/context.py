"""What every part of the server needs: one broker, its settings, who may do what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    #: Set when the server is told to stop: publishes are refused, settling goes on.
    draining: bool = False
