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


def test_a_command_that_asks_a_server_loads_no_broker_and_no_other_command() -> None:
    not_needed = ("ebbmq.node.broker", "numpy", "ebbmq.cli.demo")
    story = "import sys; from ebbmq.cli.main import cli; cli.commands['publish']"
    story += f"; print([n for n in {not_needed} if n in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", story], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "[]"


def test_the_checksum_is_that_of_the_whole_library() -> None:
    for data in (b"", b"123456789", bytes(range(256)) * 64):
        assert checksum.crc32c(data) == crc32c.crc32c(data)
    assert checksum.crc32c(b"123456789") == 0xE3069283


#: Loading it takes twenty milliseconds, at whatever moment something asks for it first.
STORY = """
import sys, tempfile
from ebbmq import Broker, Message, QueueSpec
from ebbmq.testing import ManualClock

clock = ManualClock()
with tempfile.TemporaryDirectory() as data:
    for _ in range(2):
        with Broker.open(data, clock=clock) as broker:
            broker.declare(QueueSpec("q", retry_delay_ms=0, lease_timeout_ms=1_000))
            lasting = [Message(b"b" * n, importance=1 + n % 10) for n in range(300)]
            fading = [Message(b"f", ttl_ms=60_000, decay_rate=0.5 + n / 600) for n in range(300)]
            broker.publish("q", lasting + fading)
            leases = broker.lease("q", count=400)
            broker.ack("q", [lease.token for lease in leases[::3]])
            broker.retry("q", [lease.token for lease in leases[1::3]])
            clock.advance(59_000)
            broker.engine.checkpoint()
    print([name for name in ("numpy.ma",) if name in sys.modules])
"""


def test_nothing_that_takes_long_to_load_is_loaded_in_the_middle_of_work() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", STORY], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == "[]"
