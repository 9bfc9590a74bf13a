"""EbbMQ: a message queue whose messages lose importance as they age.

The brokers are imported when first used, so that code which needs only the nouns, the policies or
the partition does not load an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbmq.errors import (
    ClosedBroker,
    DirectoryInUse,
    EbbError,
    InvalidMessage,
    InvalidSpec,
    LeaseLost,
    Overloaded,
    QueueFull,
    StorageFailed,
    UnknownQueue,
)
from ebbmq.model import (
    AdaptSpec,
    Lease,
    Message,
    Peeked,
    QueueSpec,
    Receipt,
    Removal,
    Timing,
    TopicSpec,
)

if TYPE_CHECKING:
    from ebbmq.node.async_broker import AsyncBroker
    from ebbmq.node.broker import Broker

__version__ = "0.1.0"

__all__ = [
    "AdaptSpec",
    "AsyncBroker",
    "Broker",
    "ClosedBroker",
    "DirectoryInUse",
    "EbbError",
    "InvalidMessage",
    "InvalidSpec",
    "Lease",
    "LeaseLost",
    "Message",
    "Overloaded",
    "Peeked",
    "QueueFull",
    "QueueSpec",
    "Receipt",
    "Removal",
    "StorageFailed",
    "Timing",
    "TopicSpec",
    "UnknownQueue",
]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        return import_module("ebbmq.node.broker").Broker
    if name == "AsyncBroker":
        return import_module("ebbmq.node.async_broker").AsyncBroker
    raise AttributeError(f"module 'ebbmq' has no attribute {name!r}")
