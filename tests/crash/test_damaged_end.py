"""The last record of a store that was killed while idle: what a flush covered is never torn."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from ebbmq import Broker
from ebbmq.journal import record
from ebbmq.journal.record import HEADER_BYTES, LINK
from ebbmq.journal.segment import FIRST_POSITION, name_of
from ebbmq.journal.walk import used_of
from ebbmq.node import doctor
from ebbmq.node.directory import decode
from tests.crash.reports import named
from tests.serving import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

COUNT = 1_000
BODIES = [b"this is body number %03d" % number for number in range(COUNT)]
#: Where the rows of the record start, and the record itself, seen from its first body.
ROWS_BACK = 64 * COUNT
RECORD_BACK = ROWS_BACK + 8 + HEADER_BYTES

PUBLISH = """
import sys
from ebbmq import Broker, Message, QueueSpec
broker = Broker.open(sys.argv[1])
broker.declare(QueueSpec("q"))
bodies = [b"this is body number %03d" % number for number in range(1_000)]
broker.publish("q", [Message(body) for body in bodies], confirm="synced")
print("confirmed", flush=True)
sys.stdin.read()
"""


def ends_with_mark(directory: Path) -> bool:
    """Whether the last header on the disk says that everything before it was flushed."""
    store = record.seed(decode((directory / "store.json").read_bytes()).uuid)
    data = (directory / "journal" / name_of(1)).read_bytes()
    offset = used_of(data) - HEADER_BYTES
    header = record.parse(store, FIRST_POSITION | offset, data, offset)
    return header is not None and header.kind == LINK and header.synced == header.position


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a confirmed batch in its last record, killed once it was idle."""
    directory = tmp_path_factory.mktemp("idle") / "data"
    command = [sys.executable, "-c", PUBLISH, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"confirmed\n"
        wait_until(lambda: ends_with_mark(directory), "the idle log has no mark")
        process.send_signal(signal.SIGKILL)
    return directory


@pytest.fixture
def store(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "data")
    return tmp_path / "data"


def flip(store: Path, offset: int, bits: int = 1) -> None:
    """Turn bits of one byte, counted from the first body."""
    path = store / "journal" / name_of(1)
    data = bytearray(path.read_bytes())
    data[data.index(BODIES[0]) + offset] ^= bits
    path.write_bytes(data)


def bodies_of(broker: Broker) -> list[bytes]:
    return [lease.body for lease in broker.lease("q", COUNT)]


def test_one_bit_of_a_body_costs_that_message_which_is_on_record(store: Path) -> None:
    flip(store, 500 * len(BODIES[0]) + 3)
    examined = doctor.examine(store)
    command = [sys.executable, "-m", "ebbmq.cli", "doctor", "--data", str(store), "--json"]
    ran = subprocess.run(command, capture_output=True, check=False)
    with Broker.open(store) as broker:
        assert bodies_of(broker) == BODIES[:500] + BODIES[501:]
        (removal,) = broker.removals("q")
        assert removal.reason == broker.why(removal.id)["reason"] == "damaged"
        assert named(examined.problems) == named(broker.health()["damage"]) == {removal.id}
        assert broker.engine.torn_bytes == 0
    assert ran.returncode == 1
    assert removal.id in str(msgspec.json.decode(ran.stdout)["problems"])


@pytest.mark.parametrize("bit", range(0, 64 * 8, 73))
def test_one_bit_of_a_row_costs_nothing(store: Path, bit: int) -> None:
    flip(store, 64 * 300 + (bit >> 3) - ROWS_BACK, 1 << (bit & 7))
    with Broker.open(store) as broker:
        assert bodies_of(broker) == BODIES


@pytest.mark.parametrize("byte", range(0, HEADER_BYTES + 8, 7))
def test_one_bit_of_the_header_or_of_the_checksum_of_rows_costs_nothing(
    store: Path, byte: int
) -> None:
    flip(store, byte - RECORD_BACK)
    with Broker.open(store) as broker:
        assert bodies_of(broker) == BODIES


def test_rows_that_cannot_be_read_cost_their_messages_one_record_each(store: Path) -> None:
    flip(store, 64 * 300 - ROWS_BACK, 3)
    examined = doctor.examine(store)
    assert len(named(examined.problems)) == COUNT
    with Broker.open(store) as broker:
        assert bodies_of(broker) == []
        removals = broker.removals("q")
        assert {removal.reason for removal in removals} == {"damaged"}
        assert len(removals) == COUNT
        assert {removal.id for removal in removals} == named(broker.health()["damage"])
        assert broker.why(removals[0].id)["reason"] == "damaged"
        assert broker.engine.live == 0
    with Broker.open(store) as broker:
        assert broker.removals("q") == removals
        assert broker.health()["damage"] == []
