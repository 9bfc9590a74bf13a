"""Who calls, and what they may do: users with tokens, or anybody on this machine (ADR 0011).

1. Without users, only callers from this machine are let in, and they may do everything. What a
   proxy or a web page sends comes from this machine, too, but not from its people: it is refused.
2. With users, every caller needs a token, also from this machine.
3. A scope is held for the queues that one of its patterns matches; `topic:NAME` matches topics, and
   `*` alone matches every queue, every topic and the server as a whole.
4. What a caller has no scope for does not exist for that caller, whether it exists or not.
"""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq import limits
from ebbmq.errors import Forbidden, StorageFailed, Unauthenticated, UnknownQueue
from ebbmq.node.leasing import Consumer
from ebbmq.node.log import log
from ebbmq.node.server.users import SCOPES, Scope, User, Users, hash_token

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

EVERYTHING: Final = "*"
_TOPIC: Final = "topic:"
_BEARER: Final = b"bearer "
_FORWARDED: Final = frozenset((b"forwarded", b"x-forwarded-for", b"x-real-ip"))
_USE_A_TOKEN: Final = (
    "send one made by `ebbmq users add`: the header `Authorization: Bearer TOKEN`, "  # noqa: S105
    "token= in Python, --token-file on the command line"
)
_REMEMBERED: Final = 4_096
#: Longer than any address with the name of its interface.
_ADDRESS_CHARS_MAX: Final = 128
_DECLARE: Final = "declare it first, or use another token"


class Caller(msgspec.Struct, frozen=True):
    """An authenticated client: its name, and the patterns it holds each scope for."""

    name: str
    user: User


#: Whoever calls from this machine while there are no users.
LOCAL: Final = Caller(
    "local",
    User(
        token_sha256="",
        publish=(EVERYTHING,),
        consume=(EVERYTHING,),
        manage=(EVERYTHING,),
        privileged=(EVERYTHING,),
    ),
)


class Access:
    """Decides for one data directory; a change of its users counts from the next request on."""

    def __init__(self, data: str | Path) -> None:
        self._users = Users(data)
        self._version: tuple[int, int, int] | None = None
        self._by_hash: dict[str, Caller] = {}
        self._broken: str | None = None
        self.refresh()

    @property
    def has_users(self) -> bool:
        """Whether a token is asked of every caller."""
        self.refresh()
        return bool(self._by_hash) or self._broken is not None

    @property
    def problem(self) -> str | None:
        """Why nobody is let in, or None: users are as their file says."""
        self.refresh()
        return self._broken

    def refresh(self) -> None:
        """Read the users again if their file changed; an unreadable file lets nobody in."""
        version = self._users.version()
        if version == self._version:
            return
        try:
            users = self._users.read()
        except StorageFailed as error:
            log.error("users_unreadable", detail=error.detail, action=error.action)
            self._by_hash, self._broken = {}, error.detail
        else:
            self._by_hash = {user.token_sha256: Caller(name, user) for name, user in users.items()}
            self._broken = None
        self._version = version

    def caller(
        self,
        authorization: bytes | None,
        peer: str | None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> Caller:
        """Who sends a request.

        Args:
            authorization: the value of the header, if there is one.
            peer: the address the request comes from.
            headers: all headers, names in lower case; they tell who calls through this machine.

        Raises:
            Unauthenticated: no token where one is needed, or one that is not valid.
        """
        self.refresh()
        if authorization is not None:
            # Looked up by hash: how long it takes says nothing about tokens that exist.
            found = self._by_hash.get(hash_token(_token(authorization)))
            if found is None:
                raise Unauthenticated(
                    "the token is not valid", "it may have been removed; ask for one"
                )
            return found
        if self._by_hash or self._broken is not None:
            raise Unauthenticated("a token is needed", _USE_A_TOKEN)
        if peer is None or not is_loopback(peer):
            raise Unauthenticated(
                "there are no users, so only this machine may call",
                "add a user on the server with `ebbmq users add`, and send its token",
            )
        _check_local(headers)
        return LOCAL

    def check(self, caller: Caller, scope: Scope, queue: str | None) -> None:
        """Let the caller use a queue, or with None the server as a whole.

        Asked again after a wait, it also finds that the caller was removed meanwhile.

        Raises:
            Unauthenticated: the caller's token was removed.
            UnknownQueue: the caller may not know of the queue.
            Forbidden: the caller holds other scopes for it, not this one.
        """
        self._check_current(caller)
        if self.holds(caller, scope, queue):
            return
        if queue is not None and not self.may_see(caller, queue):
            raise UnknownQueue(f"no queue {queue!r}", _DECLARE)
        raise _forbidden(caller, scope, "this server" if queue is None else f"queue {queue!r}")

    def check_topic(self, caller: Caller, scope: Scope, topic: str) -> None:
        """Let the caller use a topic; see check."""
        self._check_current(caller)
        if _matches_topic(getattr(caller.user, scope), topic):
            return
        if not self.may_see_topic(caller, topic):
            raise UnknownQueue(f"no topic {topic!r}", _DECLARE)
        raise _forbidden(caller, scope, f"topic {topic!r}")

    def holds(self, caller: Caller, scope: Scope, queue: str | None) -> bool:
        """Whether the caller may use a queue, or with None the server as a whole; see check."""
        return _matches(getattr(caller.user, scope), queue)

    def consumer(self, caller: Caller, queue: str) -> Consumer:
        """Who leases from a queue, and whether that is given privileged messages."""
        return Consumer(caller.name, _matches(caller.user.privileged, queue))

    def may_see(self, caller: Caller, queue: str | None) -> bool:
        """Whether a queue, or with None the server as a whole, may be shown to the caller."""
        return any(self.holds(caller, scope, queue) for scope in SCOPES)

    def may_see_topic(self, caller: Caller, topic: str) -> bool:
        """Whether a topic may be shown to the caller."""
        return any(_matches_topic(getattr(caller.user, scope), topic) for scope in SCOPES)

    def told(self, caller: Caller, error: UnknownQueue) -> UnknownQueue:
        """The error as the caller may know it: its hint names nothing that may not be seen."""
        if error.near is None:
            return error
        kind, name = error.near
        sees = self.may_see_topic if kind == "topic" else self.may_see
        return error if sees(caller, name) else UnknownQueue(error.detail, _DECLARE)

    def _check_current(self, caller: Caller) -> None:
        self.refresh()
        if caller is LOCAL:
            if self._by_hash or self._broken is not None:
                raise Unauthenticated("a token is needed", _USE_A_TOKEN)
        elif self._by_hash.get(caller.user.token_sha256) != caller:
            raise Unauthenticated("the token was removed", "ask for another one")


def _check_local(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse what reaches a server without users through this machine, not from it.

    A proxy says for whom it calls. A web page shows in Origin; one whose name was pointed at this
    machine (DNS rebinding) shows in Host.
    """
    for name, value in headers:
        if (
            name in _FORWARDED
            or (name == b"host" and not _is_local_name(value))
            or (name == b"origin" and not _is_local_name(value.rpartition(b"//")[2]))
        ):
            raise Unauthenticated(
                f"there are no users, so only this machine may call, and the header "
                f"{name.decode('latin-1')} is of another",
                "call 127.0.0.1 or localhost directly, or add a user with `ebbmq users add`",
            )


def _is_local_name(authority: bytes) -> bool:
    text = authority.decode("latin-1")
    host = text[1:].partition("]")[0] if text[:1] == "[" else text.partition(":")[0]
    return host.lower() == "localhost" or is_loopback(host)


def _token(authorization: bytes) -> bytes:
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated("the Authorization header is not a bearer token", _USE_A_TOKEN)
    return authorization[len(_BEARER) :].strip()


def _forbidden(caller: Caller, scope: Scope, what: str) -> Forbidden:
    return Forbidden(
        f"user {caller.name!r} may not {scope} on {what}",
        f"use a token that holds the scope {scope} for it",
    )


def _matches(patterns: tuple[str, ...], queue: str | None) -> bool:
    if queue is None:
        return EVERYTHING in patterns
    return (_match if len(queue) <= limits.NAME_CHARS_MAX else _match_anew)(patterns, queue)


def _match_anew(patterns: tuple[str, ...], queue: str) -> bool:
    return any(
        fnmatchcase(queue, pattern) for pattern in patterns if not pattern.startswith(_TOPIC)
    )


def _matches_topic(patterns: tuple[str, ...], topic: str) -> bool:
    return (_match_topic if len(topic) <= limits.NAME_CHARS_MAX else _match_topic_anew)(
        patterns, topic
    )


def _match_topic_anew(patterns: tuple[str, ...], topic: str) -> bool:
    return EVERYTHING in patterns or any(
        fnmatchcase(topic, pattern.removeprefix(_TOPIC))
        for pattern in patterns
        if pattern.startswith(_TOPIC)
    )


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own; ::ffff:127.0.0.1 is, whatever ipaddress says."""
    return len(address) <= _ADDRESS_CHARS_MAX and _is_loopback(address)


def _is_loopback_anew(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback


# What is remembered comes from callers: all of it is short, so that it takes little memory.
_match = lru_cache(maxsize=_REMEMBERED)(_match_anew)
_match_topic = lru_cache(maxsize=_REMEMBERED)(_match_topic_anew)
_is_loopback = lru_cache(maxsize=_REMEMBERED)(_is_loopback_anew)
