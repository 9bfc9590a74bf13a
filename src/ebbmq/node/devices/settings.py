"""`[devices.NAME]` of the configuration: which devices there are, and what each is like.

The node's own log is the device `log`; its section says only what it is worth and what it costs.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, Final, get_args
from urllib.parse import parse_qs, urlsplit

import msgspec

from ebbmq import choices, limits
from ebbmq.errors import InvalidSpec
from ebbmq.holding.contract import DeviceSpec, Kind
from ebbmq.model import DEVICE_NAME, DEVICE_NAME_IS
from ebbmq.plain import is_text
from ebbmq.policy.rules.properties import ARCHIVE
from ebbmq.policy.status import StatusSpec
from ebbmq.spelling import get_close_matches

LOG: Final = "log"
DEVICES_MAX: Final = 64
HIDDEN: Final = "(hidden)"
_UNBOUNDED: Final = 1 << 62
#: How kinds compare where nothing else tells them apart.
_SLOWNESS: Final = {"memory": 0, LOG: 2, "grid": 2, "file": 2, "sql": 3, "object": ARCHIVE}
_LOCAL: Final = ("file", "sql", "object")
#: Kinds that may be on a server or in a store, and the port that counts where an address has none.
_PORTS: Final = {"sql": ":5432", "grid": ":6379", "object": ""}
_OF_THE_LOG: Final = ("tier", "failure_domain", "capacity_bytes", "cost_per_gib_month", "status")


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[devices.NAME]`: a device, how to reach it, and how it is judged."""

    kind: Kind | None = None
    url: str = ""
    #: Relative to the data directory unless absolute; a file device has devices/NAME if unset.
    directory: str = ""
    #: Of an object store, as obstore names them.
    options: dict[str, str] = {}
    capacity_bytes: int | None = None
    #: Devices of one speed and price share a tier; its kind if unset.
    tier: str = ""
    #: Unset: whether its kind is by nature; a grid only if it is told so.
    durable: bool | None = None
    #: Devices of one domain fail together; each is one of its own if unset.
    failure_domain: str = ""
    cost_per_gib_month: float = 0.0
    readers: tuple[str, ...] = ("*",)
    replicas: int = 0
    timeout_ms: int = 10_000
    #: A call that takes longer, for each MiB in it, is given up and the circuit opens.
    stall_ms: int = 5_000
    status: StatusSpec = StatusSpec()

    def spec(self, name: str) -> DeviceSpec:
        """What placement is told about the device.

        Raises:
            InvalidSpec: a field is outside its limits.
        """
        # Addresses are told in the feed.
        if not is_text(self.url):
            raise InvalidSpec(
                f"device {name!r}: url is {public_url(self.url)!a:.80}",
                "a URL is text; write other bytes in it as %XX",
            )
        return DeviceSpec(
            name=name,
            tier=self.tier or self.kind or LOG,
            durable=self._is_durable(),
            failure_domain=self.failure_domain or name,
            capacity_bytes=_UNBOUNDED if self.capacity_bytes is None else self.capacity_bytes,
            cost_per_gib_month=self.cost_per_gib_month,
            readers=self.readers,
            slowness=_SLOWNESS[self.kind or LOG],
        )

    def _is_durable(self) -> bool:
        if self.durable is not None:
            return self.durable
        return self.kind not in ("memory", "grid") and not self.url.startswith("memory:")


#: Every section as it stands when a file says nothing.
_DEFAULT: Final = DeviceConfig()


def read(tables: object) -> dict[str, DeviceConfig]:
    """Make the devices of what stands below [devices].

    Raises:
        InvalidSpec: a name, a key or a value is not usable; the detail says of which device.
    """
    if not isinstance(tables, dict):
        raise InvalidSpec(
            "configuration key 'devices' is a section, not a value",
            "write each device below a line [devices.NAME]",
        )
    if len(tables) > DEVICES_MAX:
        raise InvalidSpec(
            f"there are {len(tables)} devices, the limit is {DEVICES_MAX}", "remove some"
        )
    return {name: _read(name, table) for name, table in tables.items()}


def _read(name: object, table: object) -> DeviceConfig:
    if not isinstance(name, str) or not DEVICE_NAME.fullmatch(name):
        raise InvalidSpec(
            f"device name {name!r:.80} is not usable",
            DEVICE_NAME_IS,
        )
    if isinstance(table, DeviceConfig):
        return table
    if not isinstance(table, dict):
        raise InvalidSpec(
            f"configuration key 'devices.{name}' is a section, not a value",
            f"write its settings below a line [devices.{name}]",
        )
    _check_keys(name, table)
    try:
        config = msgspec.convert(table, DeviceConfig)
        config.spec(name)
    except InvalidSpec as error:
        told = error.detail.removeprefix(f"device {name!r}: ")
        raise InvalidSpec(f"device {name!r}: {told}", error.action) from None
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        action = choices.hint(DeviceConfig, key, "correct the value")
        raise InvalidSpec(f"configuration key 'devices.{name}.{key}': {what}", action) from None
    return config


def _check_keys(name: str, table: dict[str, Any]) -> None:
    known = DeviceConfig.__struct_fields__ if name != LOG else _OF_THE_LOG
    where = f"configuration key 'devices.{name}."
    for key in table:
        if key in known:
            continue
        if name == LOG and key in DeviceConfig.__struct_fields__:
            raise InvalidSpec(
                f"{where}{key}' is not for the node's own log, which is always called {LOG!r}",
                f"give another device another name; {LOG!r} takes {', '.join(_OF_THE_LOG)}",
            )
        near = get_close_matches(key, known, 1)
        raise InvalidSpec(
            f"{where}{key}' is not known",
            f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}",
        )
    status, parts = table.get("status", {}), StatusSpec.__struct_fields__
    for key in status if isinstance(status, dict) else ():
        if key not in parts:
            near = get_close_matches(key, parts, 1)
            raise InvalidSpec(
                f"{where}status.{key}' is not known",
                f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(parts)}",
            )
    if name != LOG:
        _check_place(name, table)


def _check_place(name: str, table: dict[str, Any]) -> None:
    """What must be there to find the device, said with an example."""
    kind, kinds = table.get("kind"), get_args(Kind)
    if kind not in kinds:
        near = get_close_matches(kind, kinds, 1) if isinstance(kind, str) else []
        raise InvalidSpec(
            f"device {name!r} has no kind" if kind is None else f"device {name!r}: kind {kind!r}",
            f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(kinds)}",
        )
    if "capacity_bytes" not in table:
        raise InvalidSpec(
            f"device {name!r} has no capacity_bytes",
            "say how much may be kept there, for example capacity_bytes = 10_737_418_240",
        )
    if table.get("directory") and (table.get("url") or kind not in _LOCAL):
        raise InvalidSpec(
            f"device {name!r} of kind {kind} has a directory"
            + (" and a url" if table.get("url") else ""),
            f"give one of both; a directory is for the kinds {', '.join(_LOCAL)}",
        )
    if kind in ("sql", "grid", "object") and not (table.get("url") or table.get("directory")):
        raise InvalidSpec(
            f"device {name!r} of kind {kind} has no address",
            "set url" if kind == "grid" else "set url, or directory for one on this machine",
        )
    for key in ("stall_ms", "timeout_ms"):
        value = table.get(key, 1)
        if not isinstance(value, int) or not 1 <= value <= limits.DAY_MS:
            raise InvalidSpec(f"device {name!r}: {key} is {value!r}", f"use 1 to {limits.DAY_MS}")


def shown(devices: dict[str, DeviceConfig]) -> dict[str, object]:
    """What is set of each device, by its full name, without secrets."""
    found: dict[str, object] = {}
    for name, config in devices.items():
        told: dict[str, object] = msgspec.structs.asdict(config)
        told["url"] = public_url(config.url)
        told["options"] = dict.fromkeys(config.options, HIDDEN)
        told["status"] = {
            key: value
            for key, value in msgspec.structs.asdict(config.status).items()
            if value != getattr(_DEFAULT.status, key)
        }
        found |= {
            f"devices.{name}.{key}": value
            for key, value in told.items()
            if value and value != getattr(_DEFAULT, key)
        }
    return found


def place_of(config: DeviceConfig | None) -> str:
    """The server or store that a device is on, without secrets; empty where only this node has it.

    Args:
        config: of the device; None where nothing is said of it.
    """
    if config is None or config.kind not in _PORTS or config.directory:
        return ""
    parts = urlsplit(config.url)
    if parts.scheme in ("file", "memory", "sqlite"):
        return ""
    hosts = parts.netloc.rpartition("@")[2]
    if config.kind == "object":
        endpoint = urlsplit(config.options.get("endpoint", ""))
        at = endpoint.netloc.rpartition("@")[2]
        store = f"{parts.scheme}://{hosts}{parts.path}".rstrip("/")
        return "" if _is_here(endpoint.hostname or "") else f"{store} at {at}" if at else store
    # PostgreSQL takes a host, or the directory of its socket, as a parameter, too.
    hosts = hosts or parse_qs(parts.query).get("host", [""])[0]
    if not hosts or "/" in hosts or _is_here(_without_port(hosts)):
        return ""
    port = "" if _without_port(hosts) != hosts else _PORTS[config.kind]
    return f"{config.kind} at {hosts.lower()}{port}{parts.path}".rstrip("/")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (name.endswith("]") or ":" not in name) else host


def _is_here(host: str) -> bool:
    """Whether a host is this machine, whichever that is."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def public_url(url: str) -> str:
    """An address without its password and without its query, which may have one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    if at and ":" in user:
        user = f"{user.partition(':')[0]}:{HIDDEN}"
    plain = parts._replace(netloc=f"{user}{at}{host}", query="", fragment="").geturl()
    return f"{plain}?{HIDDEN}" if parts.query or parts.fragment else plain
