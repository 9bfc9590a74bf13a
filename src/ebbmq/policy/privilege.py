"""Privileged messages: what some clients published, only consumers with a permission are given.

Who published a message is what the broker authenticated, never what a header says: a header named
CLIENT_ID is a header like any other.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_privileged(client: str, patterns: Iterable[str]) -> bool:
    """Whether what a client publishes to a queue with these patterns is privileged there."""
    return any(fnmatchcase(client, pattern) for pattern in patterns)
