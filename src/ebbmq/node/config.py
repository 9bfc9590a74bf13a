"""Settings of a broker: defaults that are safe, a TOML file that is read strictly."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ebbmq import limits
from ebbmq.errors import InvalidSpec


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set; unknown keys are refused."""

    node: str = "local"
    segment_bytes: int = limits.SEGMENT_BYTES
    cache_bytes: int = limits.NODE_CACHE_BYTES
    checkpoint_every_facts: int = limits.CHECKPOINT_EVERY_FACTS
    upkeep_every_ms: int = 250

    def __post_init__(self) -> None:
        if not limits.KIB * 64 <= self.segment_bytes <= limits.GIB:
            raise InvalidSpec(
                f"segment_bytes is {self.segment_bytes}", "use 65536 (64 KiB) to 1073741824 (1 GiB)"
            )
        if self.cache_bytes < 0 or self.checkpoint_every_facts < 1 or self.upkeep_every_ms < 1:
            raise InvalidSpec(
                "cache_bytes, checkpoint_every_facts or upkeep_every_ms is out of range",
                "use 0 or more for cache_bytes and 1 or more for the others",
            )


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
    known = [field.name for field in msgspec.structs.fields(Config)]
    for key in config:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise InvalidSpec(f"configuration key {key!r} is not known", hint)
    try:
        return msgspec.convert(config, Config)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"configuration: {error}", "correct the value") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSpec(f"cannot read {path}: {error.strerror}", "check the path") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec(f"{path} is not TOML: {error}", "correct that line") from error
