"""What loading the broker brings along: a restart waits for all of it."""

from __future__ import annotations

import subprocess
import sys

import crc32c

from ebbmq import checksum

#: Parts of the standard library that are large and that an embedded broker does not use.
NOT_NEEDED = (
    "asyncio",
    "difflib",
    "email",
    "http",
    "importlib.metadata",
    "json",
    "pyarrow",
    "shutil",
    "ssl",
    "subprocess",
    "tomllib",
    "zipfile",
)


def test_an_embedded_broker_loads_nothing_large_that_it_does_not_use() -> None:
    story = f"import sys, ebbmq.node.broker; print([n for n in {NOT_NEEDED} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", story], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "[]"


def test_the_checksum_is_that_of_the_whole_library() -> None:
    for data in (b"", b"123456789", bytes(range(256)) * 64):
        assert checksum.crc32c(data) == crc32c.crc32c(data)
    assert checksum.crc32c(b"123456789") == 0xE3069283
