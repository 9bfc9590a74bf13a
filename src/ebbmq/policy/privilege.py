"""Privileged messages: what some clients published, only consumers with a permission may lease.

Who published a message is what the broker authenticated, never what a header says: a header named
CLIENT_ID is a header like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection


class Privilege(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of these clients need this permission to be consumed."""

    clients: frozenset[str]
    permission: str

    def covers(self, client_id: str | None) -> bool:
        """Whether messages of this client are privileged; an unknown client's never are."""
        return client_id is not None and client_id in self.clients


def may_consume(
    client_id: str | None, permissions: Collection[str], privileges: Collection[Privilege]
) -> bool:
    """Whether a consumer with these permissions may lease what that client published."""
    return all(each.permission in permissions for each in privileges if each.covers(client_id))
