"""EbbMQ: a message queue whose messages lose importance as they age.

Brokers, clients and rules are imported when first used, so that code which needs only the nouns,
the policies or the partition does not load an engine, and a client does not either.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebbmq.errors import (
    ClosedBroker,
    DirectoryInUse,
    Draining,
    EbbError,
    Forbidden,
    InternalError,
    InvalidMessage,
    InvalidRequest,
    InvalidSpec,
    LeaseLost,
    Overloaded,
    QueueDiffers,
    QueueFull,
    RuleConflict,
    StorageFailed,
    TooLarge,
    TooSlow,
    Unauthenticated,
    UnknownDevice,
    UnknownPath,
    UnknownQueue,
    UnknownRule,
    UnknownRun,
    Unreachable,
)
from ebbmq.model import (
    AdaptSpec,
    DeviceStatus,
    Lease,
    Message,
    Moving,
    Peeked,
    QueueSpec,
    Receipt,
    Removal,
    Timing,
    TopicSpec,
)

if TYPE_CHECKING:
    from ebbmq.client.async_client import AsyncClient
    from ebbmq.client.client import Client
    from ebbmq.node.async_broker import AsyncBroker
    from ebbmq.node.broker import Broker
    from ebbmq.policy.rules.properties import Properties
    from ebbmq.policy.rules.spec import RuleSpec

__version__ = "0.1.0"

__all__ = [
    "AdaptSpec",
    "AsyncBroker",
    "AsyncClient",
    "Broker",
    "Client",
    "ClosedBroker",
    "DeviceStatus",
    "DirectoryInUse",
    "Draining",
    "EbbError",
    "Forbidden",
    "InternalError",
    "InvalidMessage",
    "InvalidRequest",
    "InvalidSpec",
    "Lease",
    "LeaseLost",
    "Message",
    "Moving",
    "Overloaded",
    "Peeked",
    "Properties",
    "QueueDiffers",
    "QueueFull",
    "QueueSpec",
    "Receipt",
    "Removal",
    "RuleConflict",
    "RuleSpec",
    "StorageFailed",
    "Timing",
    "TooLarge",
    "TooSlow",
    "TopicSpec",
    "Unauthenticated",
    "UnknownDevice",
    "UnknownPath",
    "UnknownQueue",
    "UnknownRule",
    "UnknownRun",
    "Unreachable",
]

_LAZY = {
    "AsyncBroker": "ebbmq.node.async_broker",
    "AsyncClient": "ebbmq.client.async_client",
    "Broker": "ebbmq.node.broker",
    "Client": "ebbmq.client.client",
    "Properties": "ebbmq.policy.rules.properties",
    "RuleSpec": "ebbmq.policy.rules.spec",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ebbmq' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
        raise ImportError("a client needs httptools: pip install 'ebbmq[client]'") from error
