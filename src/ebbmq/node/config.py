"""Settings of a broker and its server: defaults that are safe, a TOML file that is read strictly.

What stands at the top of the file, its devices, `[placement]` and `[[rules]]` are about the store
and count wherever it is opened; `[http]`, `[log]` and `[pipeline]` are about the server. Every
default is durable, bounded, authenticated and on this machine only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from ebbmq import choices, limits
from ebbmq.errors import InvalidSpec
from ebbmq.feed import memory
from ebbmq.model import check_name
from ebbmq.node.devices import settings as device_settings
from ebbmq.node.devices.settings import HIDDEN, DeviceConfig
from ebbmq.policy.rules.choose import Combine, Kind, Strategy
from ebbmq.policy.rules.spec import RuleSpec
from ebbmq.spelling import get_close_matches

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET: Final = "secret"  # noqa: S105  # the mark of a setting, not one
#: A setting that is never shown, not in the log and not in an error.
Secret = Annotated[str, msgspec.Meta(extra={_SECRET: True})]


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http]`: where the server listens, and how much it takes from one caller and from all."""

    host: str = "127.0.0.1"
    port: int = 8_080
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_key_password: Secret | None = None
    #: Tokens then travel readable: only behind something that encrypts.
    insecure_plain_http: bool = False
    connections_max: int = 10_000
    request_bytes_max: int = 16 * limits.MIB
    #: Bodies of all requests that are not answered yet.
    pending_bytes_max: int = 256 * limits.MIB
    #: From the first byte of a request to its last.
    receive_timeout_ms: int = 30_000
    idle_timeout_ms: int = 75_000
    #: How long a stop waits for requests that are being answered.
    drain_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        _check_ranges(self, "http.", _HTTP_RANGES)
        if not self.host or self.host != self.host.strip():
            raise InvalidSpec(
                f"http.host is {self.host!r}",
                "use an address or a name, for example 127.0.0.1; 0.0.0.0 means every address",
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSpec(
                "http.tls_certificate and http.tls_key belong together, one is missing",
                "give the paths of both PEM files, or neither",
            )


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: what the server writes to standard error."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[placement]`: how the weights of rules become a choice, and how fast messages move.

    See policy.rules.choose.Strategy.
    """

    #: What moving messages that nobody waits for may take of the devices.
    move_bytes_per_s: int = 64 * limits.MIB
    #: A device that cannot be used for so long has lost its copies: others are made.
    repair_after_ms: int = 30_000

    strategy: Kind = "first_match"
    combine: Combine = "mean"
    bias: float = Strategy().bias
    softness: float = Strategy().softness

    def __post_init__(self) -> None:
        _check_ranges(self, "placement.", _PLACEMENT_RANGES)
        self.choice()

    def choice(self) -> Strategy:
        """The strategy asked for.

        Raises:
            InvalidSpec: a setting is outside its limits.
        """
        return Strategy(
            kind=self.strategy, combine=self.combine, bias=self.bias, softness=self.softness
        )


class FeedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[feed]`: what happens to messages, written as Parquet into a lake; none without `lake`."""

    #: A directory, relative to the data directory unless absolute, or the URL of an object store.
    lake: str | None = None
    #: Of an object store, as obstore names them.
    options: dict[str, Secret] | None = None
    #: How long what happened may take to be seen in the lake.
    every_ms: int = 10_000
    #: What waits in RAM; when it is full, events are left out and counted.
    buffer_bytes: int = 64 * limits.MIB
    #: What the node's files may take in the lake; the oldest go. 50 bytes a message are enough.
    bytes_max: int = limits.GIB
    #: How often all messages that are there are written down; 0: never.
    snapshot_every_ms: int = 600_000
    #: How often the lake is looked at for plans and rates of the pipeline; 0: only when told.
    plans_every_ms: int = 30_000

    def __post_init__(self) -> None:
        _check_ranges(self, "feed.", _FEED_RANGES)
        if self.lake is not None and not self.lake.strip():
            raise InvalidSpec("feed.lake is empty", "give a directory or a URL, or leave it out")


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline]`: how often the server has Spark look at its lake; never without `every_ms`."""

    every_ms: int = 0
    #: Where Spark runs, and how much memory it may take on this machine.
    master: str = "local[*]"
    memory: str = "1g"
    #: Anything else, by Spark's own names.
    conf: dict[str, str] = {}
    #: What a month of all that is kept may cost with a plan; without, there is no bound.
    budget: float | None = None
    #: A run that takes longer is ended.
    timeout_ms: int = 3_600_000

    def __post_init__(self) -> None:
        _check_ranges(self, "pipeline.", _PIPELINE_RANGES)
        if 0 < self.every_ms < _PIPELINE_EVERY_MS_MIN:
            raise InvalidSpec(
                f"pipeline.every_ms is {self.every_ms}",
                f"use {_PIPELINE_EVERY_MS_MIN} or more, or 0 for never",
            )
        if not memory.is_enough(self.memory):
            raise InvalidSpec(f"pipeline.memory is {self.memory!r:.80}", memory.USE)
        if self.budget is not None and not 0 <= self.budget < math.inf:
            raise InvalidSpec(
                f"pipeline.budget is {self.budget!r}",
                "use what a month may cost, 0 or more, or leave it out for no bound",
            )


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set; unknown keys are refused."""

    node: str = "local"
    #: Who publishes and changes rules where the broker is used in the process: CLIENT_ID of rules.
    client: str = "local"
    segment_bytes: int = limits.SEGMENT_BYTES
    cache_bytes: int = limits.NODE_CACHE_BYTES
    checkpoint_every_facts: int = limits.CHECKPOINT_EVERY_FACTS
    upkeep_every_ms: int = 250
    http: HttpConfig = msgspec.field(default_factory=HttpConfig)
    log: LogConfig = msgspec.field(default_factory=LogConfig)
    #: `[devices.NAME]`: where copies of bodies are kept beside the node's own log.
    devices: dict[str, DeviceConfig] = {}
    placement: PlacementConfig = msgspec.field(default_factory=PlacementConfig)
    feed: FeedConfig = msgspec.field(default_factory=FeedConfig)
    pipeline: PipelineConfig = msgspec.field(default_factory=PipelineConfig)
    rules: tuple[RuleSpec, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self, "", _RANGES)
        check_name("node", self.node)
        check_name("client", self.client)
        if len(self.node.encode()) > limits.NODE_NAME_BYTES_MAX:
            raise InvalidSpec(
                f"node name {self.node!r:.80} is not usable",
                f"use at most {limits.NODE_NAME_BYTES_MAX} bytes of UTF-8",
            )


_HTTP_RANGES: Final = {
    "port": (0, 65_535),
    "connections_max": (1, 1_000_000),
    "request_bytes_max": (limits.KIB, 128 * limits.MIB),
    "pending_bytes_max": (limits.KIB, 64 * limits.GIB),
    "receive_timeout_ms": (1, limits.DAY_MS),
    "idle_timeout_ms": (1, limits.DAY_MS),
    "drain_timeout_ms": (0, limits.DAY_MS),
}
_PLACEMENT_RANGES: Final = {
    "move_bytes_per_s": (limits.KIB, 1 << 40),
    "repair_after_ms": (0, limits.DAY_MS),
}
_FEED_RANGES: Final = {
    "every_ms": (10, limits.DAY_MS),
    "buffer_bytes": (64 * limits.KIB, 64 * limits.GIB),
    "bytes_max": (64 * limits.KIB, 1 << 50),
    "snapshot_every_ms": (0, 365 * limits.DAY_MS),
    "plans_every_ms": (0, limits.DAY_MS),
}
#: It is counted from the end of a run, and Spark takes longer than that to start.
_PIPELINE_EVERY_MS_MIN: Final = 1_000
_PIPELINE_RANGES: Final = {
    "every_ms": (0, 365 * limits.DAY_MS),
    "timeout_ms": (1_000, 365 * limits.DAY_MS),
}
_RANGES: Final = {
    "segment_bytes": (64 * limits.KIB, limits.GIB),
    "cache_bytes": (0, 1 << 62),
    "checkpoint_every_facts": (1, 1 << 62),
    "upkeep_every_ms": (1, limits.DAY_MS),
}


def _check_ranges(section: msgspec.Struct, where: str, ranges: dict[str, tuple[int, int]]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(section, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidSpec(f"{where}{name} is {value!r}", f"use a whole number, {low} to {high}")


def load(config: Config | dict[str, Any] | str | Path | None) -> Config:
    """Make a Config of what a caller gave: nothing, a Config, a dict, or the path of a TOML file.

    Raises:
        InvalidSpec: the file is missing or not TOML, or a key or value is not known.
    """
    if config is None:
        return Config()
    if isinstance(config, Config):
        return config
    if isinstance(config, str | Path):
        config = _read(Path(config))
    given: object = config
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise InvalidSpec(
            f"the configuration is {type(given).__name__}",
            "give a Config, a dict of settings by their names, or the path of a TOML file",
        )
    _check_keys(config, Config, "")
    if "devices" in config:
        config = {**config, "devices": device_settings.read(config["devices"])}
    try:
        return msgspec.convert(config, Config)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidSpec):
            raise error.__cause__ from None
        what, _, name = str(error).partition(" - at `$.")
        name = name.rstrip("`")
        action = choices.hint(Config, name, "correct the value")
        raise InvalidSpec(f"configuration key {name!r}: {what}", action) from error


def _check_keys(given: dict[str, Any], section: type[msgspec.Struct], where: str) -> None:
    kinds = get_type_hints(section)
    for key, value in given.items():
        if key not in kinds:
            raise InvalidSpec(f"configuration key {where + key!r} is not known", _hint(key, where))
        if isinstance(kinds[key], type) and issubclass(kinds[key], msgspec.Struct):
            if not isinstance(value, dict):
                raise InvalidSpec(
                    f"configuration key {key!r} is a section, not a value",
                    f"write its settings below a line [{key}]",
                )
            _check_keys(value, kinds[key], f"{where}{key}.")
        elif key == "rules" and not where:
            _check_rules(value)


def _check_rules(tables: Any) -> None:
    if not isinstance(tables, list | tuple):
        raise InvalidSpec(
            "configuration key 'rules' is not a list of tables", "write [[rules]] above each rule"
        )
    fields = RuleSpec.__struct_fields__
    for number, table in enumerate(tables):
        for key in table if isinstance(table, dict) else ():
            if key not in fields:
                near = get_close_matches(key, fields, 1)
                raise InvalidSpec(
                    f"configuration key 'rules[{number}].{key}' is not known",
                    f"did you mean {near[0]!r}?" if near else f"a rule has {', '.join(fields)}",
                )


def _hint(key: str, where: str) -> str:
    """The section the key belongs to, else the nearest key of this section, else all of them."""
    known = list(settings(Config()))
    elsewhere = [name.rpartition(".")[0] for name in known if name.rpartition(".")[2] == key]
    if elsewhere:
        return f"it belongs into [{elsewhere[0]}]" if elsewhere[0] else "it belongs at the top"
    here = {name.removeprefix(where).partition(".")[0] for name in known if name.startswith(where)}
    near = get_close_matches(key, here, 1)
    if near:
        return f"did you mean {where + near[0]!r}?"
    return f"known keys: {', '.join(where + name for name in sorted(here))}"


def settings(config: Config, *, hide: bool = True) -> dict[str, Any]:
    """Every setting by its full name, such as `http.port`; secrets are hidden unless asked for."""
    return dict(_settings(config, "", hide=hide))


def _settings(section: msgspec.Struct, where: str, *, hide: bool) -> list[tuple[str, Any]]:
    kinds = get_type_hints(type(section), include_extras=True)
    found: list[tuple[str, Any]] = []
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if name == "devices" and hide:
            found += device_settings.shown(value).items()
        elif isinstance(value, msgspec.Struct):
            found += _settings(value, f"{where}{name}.", hide=hide)
        else:
            hidden = hide and value is not None and _is_secret(kinds[name])
            if hide and name == "rules" and not where:
                value = len(value)  # there may be thousands
            found.append((where + name, HIDDEN if hidden else value))
    return found


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some settings, by their full names, set anew.

    Raises:
        InvalidSpec: a value is outside its limits, or does not fit the others.
    """
    # Devices are taken as they are: of the node's log not every field may be written down.
    whole = {**msgspec.to_builtins(config), "devices": config.devices}
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        (whole[section] if section else whole)[key] = value
    return load(whole)


def _is_secret(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return any(
            isinstance(mark, msgspec.Meta) and (mark.extra or {}).get(_SECRET)
            for mark in get_args(kind)[1:]
        )
    return any(_is_secret(part) for part in get_args(kind))


def _read(path: Path) -> dict[str, Any]:
    # Who gives no file does not load what reads one.
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSpec(f"cannot read {path}: {error.strerror}", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path} is not TOML: {error}", "correct that line") from error
