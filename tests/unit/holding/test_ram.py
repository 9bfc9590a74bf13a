"""What is left of RAM is what the machine and the control group have left, whichever is less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ebbmq.holding.ram import available_bytes

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = "MemTotal: 100 kB\nMemAvailable:      60 kB\nSwapTotal: 50 kB\nSwapFree: 40 kB\n"


STAT = "anon 9\nfile 9000\nactive_file 2000\ninactive_file 3000\n"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 102_400),
        ({"memory.max": "max", "memory.current": "5", "memory.stat": STAT}, 102_400),
        ({"memory.max": "50000", "memory.current": "20000", "memory.stat": ""}, 30_000),
        ({"memory.max": "50000", "memory.current": "20000", "memory.stat": STAT}, 35_000),
        ({"memory.max": "50000", "memory.current": "60000", "memory.stat": STAT}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "7000",
                "memory/memory.usage_in_bytes": "1000",
                "memory/memory.stat": "",
            },
            6_000,
        ),
    ],
)
def test_the_machine_and_the_group_both_bound_it(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path / "groups") == left


def test_where_nothing_is_said_there_is_enough(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") >= 1 << 60


def test_this_machine_says_something() -> None:
    assert 0 < available_bytes() < 1 << 60
