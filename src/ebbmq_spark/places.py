"""Where files of a lake or an archive are: a directory, or an object store through obstore.

Only what is asked for is read: of a Parquet file in a store its footer and the columns wanted.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
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

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size of every file below a directory, in order."""

    def read(self, path: str) -> bytes:
        """A small file."""

    def open(self, path: str) -> pa.NativeFile:
        """A file of which parts are read."""


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

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See Files."""
        found = []
        for at, _, names in os.walk(self._root / prefix):
            for name in names:
                place = Path(at, name)
                # One that goes meanwhile is none of them.
                with contextlib.suppress(FileNotFoundError):
                    found.append((str(place.relative_to(self._root)), place.stat().st_size))
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

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See Files."""
        try:
            found = [
                (each["path"], each["size"])
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
        why = str(error).strip().splitlines()
        return StorageFailed(
            f"{doing} in {self.where} failed: {why[0][:200] if why else type(error).__name__}",
            "check the URL, the options of the store and that it can be reached",
        )
