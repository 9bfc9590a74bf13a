"""The contract of a device: where copies of bodies are kept, beside or instead of the node's log.

A device knows keys and bytes. What a message is, how many copies it should have and where, is
decided elsewhere; a device keeps what it is given, gives it back unchanged or says that it cannot,
and forgets what it is told to forget. tests/integration/test_devices.py runs on every device.
"""

from __future__ import annotations

import enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

import msgspec

from ebbmq import errors, model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Kind = Literal["memory", "file", "sql", "grid", "object"]


class Key(NamedTuple):
    """A body's name on every device: stores that share a device never meet."""

    store: bytes  # 16 bytes, the uuid of the data directory the message belongs to
    pid: int
    seq: int


class Properties(NamedTuple):
    """What an archive shows of a message beside its body; other devices do not look at it."""

    queue: str
    importance: int
    enqueued_at_ms: int
    dead_at_ms: int | None = None  # the end of its TTL
    decay_rate: float = 0.0
    headers_bytes: int = 0  # so much of the payload is the headers block in front of the body


class Copy(NamedTuple):
    """A body to keep; `crc` is the CRC32C taken at intake, so that damage on any way shows."""

    key: Key
    payload: bytes
    crc: int
    properties: Properties | None = None


class Stored(NamedTuple):
    """One line of a scan."""

    key: Key
    payload_bytes: int
    crc: int


class Lack(enum.Enum):
    """Why a device does not give a body."""

    MISSING = "missing"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  # its disk fails there, which does not prove that the bytes are wrong


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """How a device is just now; `latency_ms` is that of one small write as durable as a put."""

    ok: bool
    used_bytes: int
    capacity_bytes: int
    latency_ms: float
    detail: str = ""
    #: Copies it came upon and cannot give as they were put: to be made anew, or deleted.
    damaged: tuple[Key, ...] = ()
    #: Another one after each start at which the device may have lost what it had.
    started: str = ""


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device is, as far as placement cares.

    Raises:
        InvalidSpec: a field is outside its limits; the detail names it.
    """

    name: str
    tier: str
    durable: bool
    failure_domain: str  # devices of one domain fail together: two copies there count as one
    capacity_bytes: int
    cost_per_gib_month: float = 0.0
    readers: tuple[str, ...] = ("*",)  # patterns of clients that may be given bodies kept here
    slowness: int = 0  # by its kind, 0 the fastest

    def __post_init__(self) -> None:
        for field in ("name", "tier", "failure_domain"):
            model.check_name(f"device {field.replace('_', ' ')}", getattr(self, field))
        if self.capacity_bytes < 1:
            raise errors.InvalidSpec(
                f"device {self.name!r}: capacity_bytes is {self.capacity_bytes!r}",
                "use a whole number of bytes above 0",
            )
        if not 0 <= self.cost_per_gib_month < float("inf"):
            raise errors.InvalidSpec(
                f"device {self.name!r}: cost_per_gib_month is {self.cost_per_gib_month!r}",
                "use 0 or more, in one currency for all devices",
            )
        for pattern in self.readers:
            model.check_name(f"device {self.name!r}: reader", pattern)

    def may_read(self, client: str) -> bool:
        """Whether that client may be given a body from this device."""
        return any(fnmatchcase(client, pattern) for pattern in self.readers)


class DeviceFull(errors.EbbError):
    """The device has no room for the batch and has kept nothing of it; choose another."""

    code: ClassVar[str] = "device_full"


class MissingPackage(errors.EbbError):
    """A device of this kind needs a package that is not installed."""

    code: ClassVar[str] = "missing_package"


class Device(Protocol):
    """Keeps copies of bodies; calls come from one thread at a time.

    Every method raises `StorageFailed` when the device fails or is closed. What a failed call has
    done is then unknown, which is harmless: each of them may be repeated, here or elsewhere.
    """

    @property
    def spec(self) -> DeviceSpec:
        """What this device is."""
        ...

    def put_many(self, copies: Sequence[Copy]) -> None:
        """Keep the copies; on a durable device they survive power loss once this returns.

        Putting a key again replaces its copy, so a repeated put is harmless and a repair is a put.

        Raises:
            DeviceFull: nothing of the batch was kept.
        """
        ...

    def get_many(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The bodies in the order of the keys, each checked against its checksum.

        A body that is not there or not what was put is a `Lack`; the others are given all the same.
        """
        ...

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Forget the copies; on a durable device they do not come back once this returns.

        Absent keys are fine, and there is always room for a delete.
        """
        ...

    def scan(self, store: bytes) -> Iterable[Stored]:
        """Every copy of that store as of the call, in no particular order, bytes not read."""
        ...

    def probe(self) -> Probe:
        """Try the device and measure; a failing device is an answer here, not an error."""
        ...

    def close(self) -> None:
        """Let go of files and memory; what a durable device has kept, stays. May be repeated."""
        ...
