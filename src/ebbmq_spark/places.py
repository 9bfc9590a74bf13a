"""Where files of a lake or an archive are: a directory, or an object store through obstore.

Only what is asked for is read: of a Parquet file in a store its footer and the columns wanted.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from typing_extensions import override

from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.feed.manifests import UnknownFeed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SCHEMES: Final = ("s3", "gs", "az", "memory")
#: How long others can read by a URL: a query may take as long, and what it was given is of no use
#: to anybody after that. What is signed with a key for a while ends with that key.
SIGNED_FOR: Final = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Place:
    """A lake or an archive: a directory or the URL of an object store."""

    address: str
    #: May hold keys and secrets.
    store: dict[str, str] = field(default_factory=dict, repr=False)


class Stored(NamedTuple):
    """What a store knows of an object: when it was written, by the store's clock, and its tag."""

    modified_ms: int
    tag: str | None


class Listed(NamedTuple):
    """A file as it is found: by its name from the root, with the tag that a store gives it."""

    path: str
    size: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where who is no part of us finds a file: a path or, of an object, a name and a URL."""

    path: str
    #: Whoever has it can read the object.
    url: str | None = field(default=None, repr=False)


class Unsigned(StorageFailed):
    """A store, or what it is used with, gives no URLs by which others can read."""


class Outrun(StorageFailed):
    """Somebody else wrote an object first."""


class Gone(StorageFailed):
    """A file that was to be read is there no more; nothing is damaged."""

    code = "gone"


def gone(path: str, where: str) -> Gone:
    """The error that names the file."""
    return Gone(
        f"{path} in {where} is there no more: it was compacted or let go after it was found",
        "read again: what took its place is found then",
    )


class Files(Protocol):
    """Files by their name from the root; to read one that is not there raises Gone."""

    where: str

    def list(self, prefix: str) -> Iterator[Listed]:
        """Every file below a directory, in order."""

    def read(self, path: str) -> bytes:
        """A small file."""

    def open(self, path: str) -> pa.NativeFile:
        """A file of which parts are read."""

    def addresses(self, paths: Sequence[str]) -> Sequence[Address]:
        """Where Spark's own reader finds files.

        Raises:
            Unsigned: nobody else can be let read them.
        """


def open_place(place: Place) -> Files:
    """The files of a place.

    Raises:
        InvalidSpec: the address is of no known kind, or an option cannot be used.
        UnknownFeed: there is no such directory.
    """
    root = directory_of(place)
    if root is not None:
        if not root.is_dir():
            raise UnknownFeed(
                f"there is no directory {root}", "name the one that nodes write to (option path)"
            )
        return Directory(root)
    if urlsplit(place.address).scheme not in _SCHEMES:
        raise InvalidSpec(
            f"option path is {place.address!r:.200}",
            f"use a directory, or a URL of {', '.join(_SCHEMES)}",
        )
    return Store(place)


def directory_of(place: Place) -> Path | None:
    """The directory that a place is, whether or not it is there; None for an object store."""
    parts = urlsplit(place.address)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else place.address)


class Directory:
    """Files in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.where = str(root)

    def list(self, prefix: str) -> Iterator[Listed]:
        """See Files."""
        found = []
        for at, _, names in os.walk(self._root / prefix):
            for name in names:
                place = Path(at, name)
                # One that goes meanwhile is none of them.
                with contextlib.suppress(FileNotFoundError):
                    found.append(Listed(str(place.relative_to(self._root)), place.stat().st_size))
        yield from sorted(found)

    def read(self, path: str) -> bytes:
        """See Files."""
        try:
            return self._inside(path).read_bytes()
        except FileNotFoundError as error:
            raise gone(path, self.where) from error

    def open(self, path: str) -> pa.NativeFile:
        """See Files."""
        try:
            return pa.memory_map(str(self._inside(path)))
        except FileNotFoundError as error:
            raise gone(path, self.where) from error

    def addresses(self, paths: Sequence[str]) -> Sequence[Address]:
        """See Files."""
        return [Address(str(self._root / path)) for path in paths]

    def _inside(self, path: str) -> Path:
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root):
            raise UnknownFeed(
                f"{path} is outside of {self.where}", "remove what names it: no node wrote it"
            )
        return place


class _Ranges(io.RawIOBase):
    """An object as Python's files are, for Arrow; its parts are fetched as they are read."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return int(self._opened.tell())

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._opened.seek(offset, whence))

    @override
    def read(self, size: int | None = -1) -> bytes:
        return bytes(self._opened.read(None if size is None or size < 0 else size))


class Store:
    """Objects under one URL."""

    def __init__(self, place: Place) -> None:
        import obstore  # noqa: PLC0415  # who reads a directory does without
        from obstore import store as stores  # noqa: PLC0415
        from obstore.exceptions import (  # noqa: PLC0415
            AlreadyExistsError,
            BaseError,
            PreconditionError,
        )

        self._obstore: Any = obstore
        self._failures = (BaseError, OSError)
        self._lost = (AlreadyExistsError, PreconditionError)
        parts = urlsplit(place.address)
        self.where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        names = {name.lower().removeprefix("aws_"): value for name, value in place.store.items()}
        self._is_public = names.get("skip_signature", "false").lower() not in ("false", "0", "")
        client = {}
        addresses = (place.store.get(name, "") for name in ("endpoint", "base_url"))
        if any(each.startswith("http://") for each in addresses):
            client["allow_http"] = True
        connect: Any = stores.from_url
        more = {"client_options": client} if client else {}
        try:
            self._store = connect(place.address, **place.store, **more)
        except (BaseError, ValueError, TypeError) as error:
            # What went wrong may quote an option, which may be a secret.
            named = ", ".join(place.store) or "none"
            raise InvalidSpec(
                f"the object store {self.where} cannot be used ({type(error).__name__})",
                f"see the options that obstore takes for this kind of URL; given are: {named}",
            ) from None

    def list(self, prefix: str) -> Iterator[Listed]:
        """See Files."""
        try:
            found = [
                Listed(each["path"], each["size"], each["e_tag"])
                for page in self._obstore.list(self._store, prefix)
                for each in page
            ]
        except self._failures as error:
            raise self._failed(f"listing {prefix}", error) from None
        yield from sorted(found)

    def directories(self, prefix: str) -> Sequence[str]:
        """The names one step below a prefix that have something below them, in order."""
        try:
            found = self._obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        except self._failures as error:
            raise self._failed(f"listing {prefix}", error) from None
        return sorted(each.rstrip("/") for each in found)

    def read(self, path: str) -> bytes:
        """See Files."""
        found = self.read_if_there(path)
        if found is None:
            raise gone(path, self.where)
        return found

    def read_if_there(self, path: str) -> bytes | None:
        """A small object; None if there is none."""
        try:
            return bytes(self._obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except self._failures as error:
            raise self._failed(f"reading {path}", error) from None

    def open(self, path: str) -> pa.NativeFile:
        """See Files."""
        try:
            return pa.PythonFile(_Ranges(self._obstore.open_reader(self._store, path)), mode="r")
        except FileNotFoundError:
            raise gone(path, self.where) from None
        except self._failures as error:
            raise self._failed(f"opening {path}", error) from None

    def addresses(self, paths: Sequence[str]) -> Sequence[Address]:
        """See Files: URLs that let whoever has them read, for SIGNED_FOR."""
        if self._is_public:
            # It has no credentials, and would be looked for where machines of a cloud have them.
            raise self._unsigned("requests to it are not signed")
        urls = dict(zip(paths, self._sign(paths), strict=True))
        # For GCS it takes a percent sign of a name for the begin of an escape.
        astray = [path for path, url in urls.items() if not _is_of(url, path)]
        quoted = self._sign([path.replace("%", "%25") for path in astray])
        urls |= zip(astray, quoted, strict=True)
        if not all(_is_of(urls[path], path) for path in astray):
            raise self._unsigned("those that are made name other objects")
        where = self.where.replace("://", "/", 1).rstrip("/")
        return [Address(f"/{where}/{path}", urls[path]) for path in paths]

    def _sign(self, paths: Sequence[str]) -> Sequence[str]:
        try:
            urls: Sequence[str] = self._obstore.sign(self._store, "GET", paths, SIGNED_FOR)
        except (*self._failures, ValueError, TypeError) as error:
            raise self._unsigned(_first_line(error)) from None
        return urls

    def _unsigned(self, why: str) -> Unsigned:
        return Unsigned(
            f"no URLs can be signed for objects in {self.where}: {why}",
            "use a key that can sign, such as that of an account",
        )

    def head(self, path: str) -> Stored | None:
        """What is known of an object; None if there is none."""
        try:
            found = self._obstore.head(self._store, path)
        except FileNotFoundError:
            return None
        except self._failures as error:
            raise self._failed(f"looking at {path}", error) from None
        return Stored(int(found["last_modified"].timestamp() * 1_000), found["e_tag"])

    def write(self, path: str, data: bytes, mode: Any = "overwrite") -> str | None:
        """Store an object as a whole; returns its tag.

        Args:
            path: its name.
            data: what it holds.
            mode: `create`, or the tag of the object that it replaces; else whatever was there.

        Raises:
            Outrun: there was one already, or another one than was named.
            StorageFailed: it could not be written.
        """
        how = mode if mode in ("create", "overwrite") else {"e_tag": mode}
        try:
            done = self._obstore.put(self._store, path, data, mode=how, use_multipart=False)
        except self._lost as error:
            raise Outrun(
                f"{path} in {self.where} was written by somebody else", "look at who writes there"
            ) from error
        except self._failures as error:
            raise self._failed(f"writing {path}", error) from None
        tag: str | None = done["e_tag"]
        return tag

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; one that is not there is fine."""
        for path in paths:
            try:
                self._obstore.delete(self._store, path)
            except FileNotFoundError:
                continue
            except self._failures as error:
                raise self._failed(f"deleting {path}", error) from None

    def _failed(self, doing: str, error: Exception) -> StorageFailed:
        return StorageFailed(
            f"{doing} in {self.where} failed: {_first_line(error)}",
            "check the URL, the options of the store and that it can be reached",
        )


def _is_of(url: str, path: str) -> bool:
    """Whether a URL is that of an object."""
    return unquote(urlsplit(url).path).endswith(f"/{path}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
