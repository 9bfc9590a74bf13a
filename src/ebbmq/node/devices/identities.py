"""Which device in a directory is the one of a name: `devices.json` of the data directory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec

from ebbmq.errors import StorageFailed
from ebbmq.node.directory import write_durably

if TYPE_CHECKING:
    from pathlib import Path

#: Guards the files: ports open their devices, and operators give some up, at the same time.
_CHANGING: Final = threading.Lock()


class Identities:
    """What the data directory remembers of devices that are in a directory."""

    def __init__(self, data: Path) -> None:
        self._path = data / "devices.json"

    def names(self) -> list[str]:
        """Every device that was ever open and not given up."""
        with _CHANGING:
            return sorted(self._read())

    def get(self, name: str) -> bytes | None:
        """The identity the device of that name had, if it was ever open."""
        with _CHANGING:
            return self._read().get(name)

    def note(self, name: str, identity: bytes) -> None:
        """Remember it."""
        with _CHANGING:
            known = self._read()
            if known.get(name) != identity:
                write_durably(self._path, msgspec.json.encode({**known, name: identity}))

    def forget(self, name: str) -> None:
        """Let the next device of that name be a new one; for a device that is lost."""
        with _CHANGING:
            known = self._read()
            if known.pop(name, None) is not None:
                write_durably(self._path, msgspec.json.encode(known))

    def _read(self) -> dict[str, bytes]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, bytes])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageFailed(
                f"{self._path} cannot be read: {error}", "restore it from a backup, or delete it"
            ) from error


def known_devices(data: Path) -> list[str]:
    """The devices in directories that a store was used with."""
    return Identities(data).names()
