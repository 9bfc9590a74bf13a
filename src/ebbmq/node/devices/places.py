"""Where a device is, and that it is still the same one.

A device in a directory keeps its identity there (`device.json`), and the data directory remembers
it (`devices.json`). So a disk that is not mounted is a device that fails, not a new, empty one, and
nobody's directory is ever taken for another's. A lock keeps a second broker out.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from ebbmq.errors import DirectoryInUse, InvalidSpec, StorageFailed
from ebbmq.holding.contract import MissingPackage
from ebbmq.holding.opening import Where, open_device
from ebbmq.node.devices.identities import Identities
from ebbmq.node.devices.settings import DeviceConfig, public_url
from ebbmq.node.directory import lock, unlock, write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbmq.holding.contract import Device, DeviceSpec

_OF_THE_STORE: Final = ("journal", "checkpoints", "removals")


class _Identity(msgspec.Struct, frozen=True):
    """`device.json`: 16 bytes that are this device's for ever."""

    uuid: bytes


class Place:
    """How one device is opened, again after a failure; one thread uses it."""

    def __init__(
        self, spec: DeviceSpec, where: Where, directory: Path | None, identities: Identities
    ) -> None:
        self.spec = spec
        self.kind: str = where.kind
        #: Its log takes nothing more after a failure, until it is read in again.
        self.reopens = where.kind == "file"
        self.shown = str(directory) if directory is not None else public_url(where.url)
        self._where = where
        self._directory = directory
        self._identities = identities
        self._locks: list[int] = []

    @property
    def unique(self) -> str:
        """What two devices must not have in common."""
        if self._directory is not None:
            return str(self._directory)
        if self.kind == "memory" or self._where.url.startswith("memory:"):
            return f"memory {self.spec.name}"
        parts = urlsplit(self._where.url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=host).geturl() + self._where.options.get("endpoint", "")

    def open(self) -> Device:
        """The device.

        Raises:
            MissingPackage, InvalidSpec: it can never be opened as it is declared.
            StorageFailed, DirectoryInUse, DeviceFull: it cannot be opened just now.
        """
        try:
            identity = self._identify(self._directory) if self._directory else bytes(16)
            return open_device(self.spec, self._where, perf_counter, identity)
        except (InvalidSpec, MissingPackage) as error:
            self.release()
            told = error.detail.removeprefix(f"device {self.spec.name!r} ")
            raise type(error)(f"device {self.spec.name!r}: {told}", error.action) from error
        except OSError as error:
            self.release()
            raise StorageFailed(
                f"device {self.spec.name!r} in {self.shown} cannot be opened: {error.strerror}",
                "see that its disk is mounted and that this user may write there",
            ) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have the directory."""
        unlock(self._locks)

    def _identify(self, directory: Path) -> bytes:
        name, known = self.spec.name, self._identities.get(self.spec.name)
        path = directory / "device.json"
        if known is None:
            directory.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise StorageFailed(
                f"{directory} is not device {name!r} any more: it has no device.json",
                f"mount its disk; if it is lost for good, run `ebbmq devices evict {name}`",
            )
        self._take(directory)
        if not path.exists():
            write_durably(path, msgspec.json.encode(_Identity(secrets.token_bytes(16))))
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Identity).uuid
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageFailed(
                f"{path} is damaged: {error}", "restore it from a backup of this directory"
            ) from error
        if known not in (None, found):
            raise StorageFailed(
                f"{directory} is another device than {name!r} was when it was last open",
                "mount the right disk, or give the device another name",
            )
        self._identities.note(name, found)
        return found

    def _take(self, directory: Path) -> None:
        self.release()
        try:
            self._locks = lock(directory)
        except BlockingIOError as error:
            raise DirectoryInUse(
                f"another device or process has {directory} open",
                f"give device {self.spec.name!r} a directory of its own",
            ) from error


def places(devices: Mapping[str, DeviceConfig], data: Path) -> list[Place]:
    """Where each device is.

    Raises:
        InvalidSpec: an address is not usable, or two devices would be in one place.
    """
    identities = Identities(data)
    found = [_place(name, config, data, identities) for name, config in devices.items()]
    taken: dict[str, str] = {}
    for place in found:
        other = taken.setdefault(place.unique, place.spec.name)
        if other != place.spec.name:
            raise InvalidSpec(
                f"devices {other!r} and {place.spec.name!r} are both at {place.shown}",
                "give each device a place of its own: their copies have the same names",
            )
    return found


def _place(name: str, config: DeviceConfig, data: Path, identities: Identities) -> Place:
    assert config.kind is not None
    url, directory = config.url, None
    if config.kind == "file" and url:
        directory = Path(unquote(urlsplit(url).path))
    elif config.directory or config.kind == "file":
        directory = data / (config.directory or f"devices/{name}")
    if directory is not None:
        directory = directory.resolve()
        _check_apart(name, directory, data.resolve())
        url = _local_url(config.kind, directory)
    try:
        where = Where(
            kind=config.kind,
            url=url,
            options=config.options,
            replicas=config.replicas,
            timeout_ms=config.timeout_ms,
        )
    except InvalidSpec as error:
        raise InvalidSpec(f"device {name!r}: {error.detail}", error.action) from None
    return Place(config.spec(name), where, directory, identities)


def _local_url(kind: str, directory: Path) -> str:
    path = quote(str(directory))
    return f"sqlite://{path}/copies.db" if kind == "sql" else f"file://{path}"


def _check_apart(name: str, directory: Path, data: Path) -> None:
    own = [data / part for part in _OF_THE_STORE]
    if directory == data or any(directory.is_relative_to(part) for part in own):
        raise InvalidSpec(
            f"device {name!r} would be in {directory}, which is the store's own",
            f"use a directory beside those of the store, for example devices/{name}",
        )
