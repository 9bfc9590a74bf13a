"""Who may use a server: users.json in its data directory, names with hashed tokens and scopes.

{"users": {"shop": {"token_sha256": "..", "publish": ["orders.*"], "consume": [], "manage": []}}}

Written whole, beside the old file, and renamed over it, so that whoever reads sees one or the other
and a change shows as another inode. Only the owner may read it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from ebbmq import limits
from ebbmq.errors import ClientError, InvalidSpec, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Scope = Literal["publish", "consume", "manage"]
#: What a user may be given: the scopes, and a permission beside them.
Right = Literal["publish", "consume", "manage", "privileged"]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
FILE_NAME: Final = "users.json"
TOKEN_PREFIX: Final = "ebb_"  # noqa: S105  # lets people and secret scanners tell what it is
TOKEN_BYTES: Final = 32
USERS_MAX: Final = 10_000
PATTERNS_MAX: Final = 1_000


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a user: the hash of the token, and queue patterns per scope."""

    token_sha256: str
    publish: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()
    #: Queues of which it is also given what privileged clients published.
    privileged: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    users: dict[str, User] = {}


def hash_token(token: bytes) -> str:
    """The hash a token is kept as.

    A plain SHA-256 is right here: a token is 256 random bits, so there is nothing to guess that a
    slow, salted hash would protect, and every request can afford it.
    """
    return hashlib.sha256(token).hexdigest()


class Users:
    """The users of one data directory; every change is on disk when the call returns."""

    def __init__(self, data: str | Path) -> None:
        self._data = Path(data)
        self.path = self._data / FILE_NAME
        self._path_text = str(self.path)

    def version(self) -> tuple[int, int, int] | None:
        """What changes whenever the file does; None while there is no file."""
        try:
            # Asked with every request, and Path.stat takes three times as long.
            found = os.stat(self._path_text)  # noqa: PTH116
        except FileNotFoundError:
            return None
        except OSError as error:
            return -1, error.errno or 0, 0
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> dict[str, User]:
        """Every user by name.

        Raises:
            StorageFailed: the file cannot be read or is not what `ebbmq users` writes.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_File).users
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageFailed(
                f"cannot read {self.path}: {error.strerror}", "let the server's user read it"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageFailed(
                f"{self.path} is not valid: {error}",
                "correct it, or delete it and add the users again with `ebbmq users add`",
            ) from error

    def add(self, name: str, patterns: Mapping[Right, tuple[str, ...]]) -> str:
        """Add a user and return the token, which is not kept and cannot be shown again.

        Raises:
            InvalidSpec: the name or a pattern is not usable, or no scope is given.
            ClientError: code `user_exists`: there is one of that name.
        """
        _check_name(name)
        _check_patterns(patterns)
        token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        with self._changing() as users:
            if name in users:
                raise ClientError(
                    f"there is a user {name!r} already",
                    "remove it first, which ends its token, or choose another name",
                    code="user_exists",
                )
            if len(users) >= USERS_MAX:
                raise ClientError(
                    f"there are {USERS_MAX} users, which is the limit", "remove some first"
                )
            users[name] = User(
                token_sha256=hash_token(token.encode()),
                publish=patterns.get("publish", ()),
                consume=patterns.get("consume", ()),
                manage=patterns.get("manage", ()),
                privileged=patterns.get("privileged", ()),
            )
        return token

    def remove(self, name: str) -> int:
        """Remove a user, whose token is refused from this moment; returns how many are left.

        Raises:
            ClientError: code `unknown_user`: there is none of that name.
        """
        with self._changing() as users:
            if name not in users:
                raise ClientError(
                    f"no user {name!r} in {self._data}",
                    "ebbmq users list shows them",
                    code="unknown_user",
                )
            del users[name]
            return len(users)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        """The users to change; held against other processes that change them, then written."""
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            directory = os.open(self._data, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _unwritable(self._data, error) from error
        try:
            # A file of its own: a broker that has the directory open holds the lock on that.
            with (self._data / "users.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                users = self.read()
                yield users
                self._write(msgspec.json.format(msgspec.json.encode(_File(users)), indent=2))
                os.fsync(directory)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            os.close(directory)

    def _write(self, data: bytes) -> None:
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        # Made with its mode, so that there is no moment in which others could open it.
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "wb", closefd=False) as stream:
                stream.write(data)
            os.fsync(file)
        finally:
            os.close(file)
        beside.replace(self.path)


def _check_name(name: str) -> None:
    usable = 0 < len(name) <= limits.NAME_CHARS_MAX and name.isprintable() and name == name.strip()
    if not usable:
        raise InvalidSpec(
            f"user name {name!r:.80} is not usable",
            f"use 1 to {limits.NAME_CHARS_MAX} printable characters without space at either end",
        )


def _check_patterns(patterns: Mapping[Right, tuple[str, ...]]) -> None:
    asked = [pattern for right in RIGHTS for pattern in patterns.get(right, ())]
    if not any(patterns.get(scope) for scope in SCOPES):
        raise InvalidSpec(
            "a user without any scope could do nothing",
            "give at least one of --publish, --consume, --manage with a queue pattern, "
            "for example --publish 'orders.*'",
        )
    if len(asked) > PATTERNS_MAX:
        raise InvalidSpec(f"{len(asked)} patterns", f"use at most {PATTERNS_MAX}")
    for pattern in asked:
        if not 0 < len(pattern) <= limits.NAME_CHARS_MAX or not pattern.isprintable():
            raise InvalidSpec(
                f"queue pattern {pattern!r:.80} is not usable",
                "use a queue's name, or a pattern such as 'orders.*' or '*'",
            )


def _unwritable(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"cannot write {path}: {error.strerror}",
        "check that this user may write there and that the disk has room",
    )
