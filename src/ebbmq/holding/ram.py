"""How much RAM this process can still get: of the machine, with its swap, and of its group."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_GROUPS: Final = Path("/sys/fs/cgroup")
#: Where a limit, what is used of it, and what that is, are in version 2 of control groups and in 1.
_LIMITS: Final = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
#: Copies of files, which the kernel gives up when somebody needs the RAM.
_GIVEN_UP: Final = ("active_file", "inactive_file")
_UNKNOWN: Final = 1 << 62


def available_bytes(meminfo: Path = _MEMINFO, groups: Path = _GROUPS) -> int:
    """What is left, as far as the system says; very much where it says nothing."""
    return max(0, min(_of_the_machine(meminfo), *(_of_group(groups, *each) for each in _LIMITS)))


def _of_the_machine(meminfo: Path) -> int:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return sum(int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree")) * 1024
    except (OSError, KeyError, ValueError):
        return _UNKNOWN


def _of_group(groups: Path, limit: str, used: str, stat: str) -> int:
    try:
        left = int((groups / limit).read_text()) - int((groups / used).read_text())
        lines = (line.partition(" ") for line in (groups / stat).read_text().splitlines())
        return left + sum(int(value) for name, _, value in lines if name in _GIVEN_UP)
    except (OSError, ValueError):
        return _UNKNOWN  # there is no such file, or it says that there is no limit
