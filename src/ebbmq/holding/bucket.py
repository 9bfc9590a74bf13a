"""An object store through obstore: S3, GCS, Azure, a local directory or memory, by its address.

What is put is read back and compared before it counts as stored: until then another copy of a
message may be the only good one. A local directory is synced as well, which obstore does not do.
"""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import crc32c
import obstore
from obstore import store as stores
from obstore.exceptions import AlreadyExistsError, BaseError

from ebbmq import limits
from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.holding.contract import DeviceFull
from ebbmq.holding.reserve import Reserve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Bodies nearer to each other than this are fetched together.
_COALESCE_BYTES: Final = 64 * 1024
#: Hidden, so that neither listings of ours nor Spark take it for an object.
_RESERVE: Final = ".reserve"
_RESERVE_BYTES: Final = 1024 * 1024
_NO_SPACE: Final = "(os error 28)"


class Object(NamedTuple):
    """One line of a listing."""

    path: str
    size: int


class Level(NamedTuple):
    """What is directly under a prefix."""

    directories: Sequence[str]
    objects: Sequence[Object]


class Bucket:
    """Objects under one address; paths are relative to it."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, timeout_ms: int = 10_000
    ) -> None:
        """Name the place; nothing is asked of it yet.

        Args:
            url: `s3://bucket/prefix`, `gs://..`, `az://..`, `file:///directory`, `memory:///`.
            options: what obstore takes for that kind, such as `endpoint` or `access_key_id`.
            timeout_ms: how long to wait for one request.

        Raises:
            InvalidSpec: the address or an option cannot be used.
            StorageFailed: the local directory cannot be made.
        """
        options = dict(options or {})
        parts = urlsplit(url)
        self.where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        self.root = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._reserve = None if self.root is None else Reserve(self.root / _RESERVE, _RESERVE_BYTES)
        self.is_volatile = parts.scheme == "memory"
        client: dict[str, Any] = {
            "timeout": timedelta(milliseconds=timeout_ms),
            "connect_timeout": timedelta(milliseconds=timeout_ms),
        }
        if any(options.get(name, "").startswith("http://") for name in ("endpoint", "base_url")):
            client["allow_http"] = True
        retry = {"max_retries": 2, "retry_timeout": timedelta(milliseconds=timeout_ms)}
        remote = {} if self.root or self.is_volatile else {"client_options": client}
        if remote:
            remote["retry_config"] = retry
        try:
            if self.root is not None:
                self.root.mkdir(parents=True, exist_ok=True)
            if self._reserve is not None:
                self._reserve.hold()
            connect: Any = stores.from_url
            self._store = connect(url, **options, **remote)
        except OSError as error:
            raise self._failed("making the directory", error) from error
        except (BaseError, ValueError, TypeError) as error:
            raise InvalidSpec(
                f"the object store {self.where} cannot be used: {_in_words(error)}",
                "see the options that obstore takes for this kind of address",
            ) from error

    def put(self, path: str, data: bytes) -> None:
        """Store a new object and see that it is there as it was given.

        Raises:
            DeviceFull: there is no space.
            StorageFailed: it is not there, not the same, or there was one of that name.
        """
        try:
            self.create(path, data)
            self._sync(path)
            stored = obstore.get(self._store, path).bytes()
        except AlreadyExistsError as error:
            raise StorageFailed(
                f"{path} in {self.where} was written by somebody else",
                "see that no second broker runs on a copy of this data directory",
            ) from error
        except (BaseError, OSError) as error:
            raise self._failed(f"putting {path}", error) from error
        if len(stored) != len(data) or crc32c.crc32c(stored) != crc32c.crc32c(data):
            self.delete([path])
            raise StorageFailed(
                f"{path} in {self.where} is not what was put there", "check that storage"
            )

    def create(self, path: str, data: bytes) -> None:
        """Send a new object, nothing more; raises what obstore raises."""
        obstore.put(self._store, path, data, mode="create", use_multipart=False)

    def put_whatever_the_space(self, path: str, data: bytes) -> None:
        """Put a small object; on a full local disk in the space reserved for that."""
        if self._reserve is not None:
            self._reserve.hold()
        try:
            self.put(path, data)
        except DeviceFull:
            if self._reserve is None:
                raise
            self._reserve.release()
            self.delete([path])
            self.put(path, data)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes | None:
        """An object or a part of it; None if there is no such object."""
        try:
            if end is None:
                return bytes(obstore.get(self._store, path).bytes())
            return bytes(obstore.get_range(self._store, path, start=start, end=end))
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._failed(f"reading {path}", error) from error

    def get_ranges(
        self, path: str, starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[memoryview] | None:
        """Parts of an object; None if there is no such object, or it is too short."""
        if not starts:
            return []
        try:
            found = obstore.get_ranges(
                self._store, path, starts=starts, ends=ends, coalesce=_COALESCE_BYTES
            )
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            if self._size(path) < max(ends):
                return None
            raise self._failed(f"reading {path}", error) from error
        return [memoryview(part) for part in found]

    def list(self, prefix: str) -> Iterator[Object]:
        """Every object under a prefix."""
        return chain.from_iterable(self.pages(prefix))

    def pages(self, prefix: str) -> Iterator[Sequence[Object]]:
        """Every object under a prefix, about as many at a time as a service gives with a request.

        The next request is made when the next page is asked for, however late.
        """
        try:
            for batch in obstore.list(self._store, prefix, chunk_size=limits.SHARED_PAGE_COUNT):
                yield [Object(found["path"], found["size"]) for found in batch]
        except (BaseError, OSError) as error:
            raise self._failed(f"listing {prefix}", error) from error

    def level(self, prefix: str) -> Level:
        """What is directly under a prefix, without listing what is below."""
        try:
            found = obstore.list_with_delimiter(self._store, prefix)
        except (BaseError, OSError) as error:
            raise self._failed(f"listing {prefix}", error) from error
        return Level(
            [path.rstrip("/") for path in found["common_prefixes"]],
            [Object(each["path"], each["size"]) for each in found["objects"]],
        )

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; absent ones are fine."""
        for path in paths:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise self._failed(f"deleting {path}", error) from error

    def overwrite(self, path: str, data: bytes) -> None:
        """Store an object whatever was there; for a probe."""
        try:
            obstore.put(self._store, path, data, use_multipart=False)
            self._sync(path)
        except (BaseError, OSError) as error:
            raise self._failed(f"writing {path}", error) from error

    def sweep(self, prefix: str) -> None:
        """Delete what an interrupted put left in a local directory, which listings do not show."""
        if self.root is None:
            return
        for left in (self.root / prefix).rglob("*#*"):
            left.unlink(missing_ok=True)

    def _sync(self, path: str) -> None:
        if self.root is None:
            return
        place = self.root / path
        for one in (place, *place.parents):
            descriptor = os.open(one, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if one == self.root:
                return

    def _size(self, path: str) -> int:
        try:
            return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            return 0
        except (BaseError, OSError) as error:
            raise self._failed(f"looking at {path}", error) from error

    def _failed(self, doing: str, error: Exception) -> StorageFailed | DeviceFull:
        if _NO_SPACE in str(error):
            return DeviceFull(
                f"{doing} in {self.where} failed: its disk is full",
                "choose another device, or free space on that disk",
            )
        return StorageFailed(
            f"{doing} in {self.where} failed: {_in_words(error)}",
            "see that the address, the bucket and the credentials are right and the service runs",
            code="device_unreachable" if "error sending request" in str(error) else None,
        )


def _in_words(error: Exception) -> str:
    """What obstore says, without what it says to its own developers."""
    text = str(error).partition("Debug source")[0]
    return " ".join(text.split())[:400] or type(error).__name__
