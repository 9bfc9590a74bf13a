"""From what a device is and where it is to the device: the only place that knows every kind.

A kind whose package is not installed is refused by name here; the packages are imported by the
modules of their kind only, and those only when such a device is opened.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import msgspec

from ebbmq.errors import InvalidSpec
from ebbmq.holding.contract import Device, DeviceSpec, Kind, MissingPackage
from ebbmq.holding.file import FileDevice
from ebbmq.holding.memory import MemoryDevice
from ebbmq.holding.sql import SqlDevice
from ebbmq.holding.sqlite import SqliteDatabase
from ebbmq.journal.disk import FileDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FORMS: Final = {
    "file": "file:///directory",
    "sql": "sqlite:///directory/file.db or postgresql://user@host/database",
    "grid": "valkey://host:port",
    "object": "s3://bucket/prefix, gs://.., az://.., file:///directory or memory:///",
}


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kind of a device and how to reach it; `options` are those of an object store.

    Raises:
        InvalidSpec: a field is outside its limits; the detail names it.
    """

    kind: Kind
    url: str = ""
    options: dict[str, str] = {}
    replicas: int = 0  # of a durable grid: how many replicas must have synced as well
    timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        if self.kind != "memory" and not urlsplit(self.url).scheme:
            raise InvalidSpec(
                f"a device of kind {self.kind} has no address", f"set url: {_FORMS[self.kind]}"
            )
        if self.replicas < 0 or self.timeout_ms < 1:
            raise InvalidSpec("replicas or timeout_ms is out of range", "use 0 or more, 1 or more")


def open_device(
    spec: DeviceSpec, where: Where, clock: Callable[[], float], identity: bytes = bytes(16)
) -> Device:
    """The device; only those on a local disk are looked at before their first call.

    Args:
        spec: what the device is.
        where: its kind and address.
        clock: seconds that never go back.
        identity: 16 bytes that are this device's for ever; a file device marks its log with them.

    Raises:
        MissingPackage: its kind needs an extra of EbbMQ that is not installed.
        InvalidSpec: the address is not one of its kind, or it cannot be as durable as it says.
        StorageFailed: its directory cannot be used.
    """
    durable = where.kind == "file"
    volatile = where.kind == "memory" or where.url.startswith("memory:")
    if (durable and not spec.durable) or (volatile and spec.durable):
        raise InvalidSpec(
            f"device {spec.name!r} of kind {where.kind}: durable is {spec.durable}",
            f"set durable = {'true' if durable else 'false'}",
        )
    with _named(where.kind):
        match where.kind:
            case "memory":
                return MemoryDevice(spec, clock)
            case "file":
                return FileDevice(spec, FileDisk(_path(where, "file")), identity, clock)
            case "sql":
                return _sql(spec, where, clock)
            case "grid":
                from ebbmq.holding.grid import GridDevice  # noqa: PLC0415  # an extra

                return GridDevice(
                    spec, where.url, clock, replicas=where.replicas, timeout_ms=where.timeout_ms
                )
            case "object":
                from ebbmq.holding.bucket import Bucket  # noqa: PLC0415  # an extra
                from ebbmq.holding.objects import ObjectDevice  # noqa: PLC0415

                bucket = Bucket(where.url, where.options, timeout_ms=where.timeout_ms)
                return ObjectDevice(spec, bucket, clock)


def _sql(spec: DeviceSpec, where: Where, clock: Callable[[], float]) -> Device:
    if urlsplit(where.url).scheme == "sqlite":
        path = _path(where, "sqlite")
        return SqlDevice(spec, SqliteDatabase(path, timeout_ms=where.timeout_ms), clock)
    if urlsplit(where.url).scheme not in ("postgresql", "postgres"):
        raise InvalidSpec("the address of a sql device cannot be used", f"use {_FORMS['sql']}")
    from ebbmq.holding.postgres import PostgresDatabase  # noqa: PLC0415  # an extra

    database = PostgresDatabase(where.url, clock, timeout_ms=where.timeout_ms)
    return SqlDevice(spec, database, clock)


def _path(where: Where, scheme: str) -> Path:
    parts = urlsplit(where.url)
    if parts.scheme != scheme or not parts.path:
        raise InvalidSpec(
            f"the address of a {where.kind} device cannot be used", f"use {_FORMS[where.kind]}"
        )
    return Path(unquote(parts.path))


@contextlib.contextmanager
def _named(kind: Kind) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingPackage(
            f"a device of kind {kind} needs the package {error.name or kind}, which cannot be "
            f"imported: {error}",
            f"pip install 'ebbmq[{kind}]'",
        ) from error
