"""Every kind of file of a data directory, gone, emptied, cut or with a bit flipped.

Whatever was done to a file, each message that was confirmed is delivered; or, where a bit was
flipped, on record as damaged; or named and kept until a person gives it up; or the whole store is
refused by name. What was gone, emptied or cut and is put back brings every message back.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import EbbError
from ebbmq.journal import record
from ebbmq.journal.record import HEADER_BYTES, LINK
from ebbmq.journal.segment import name_of
from ebbmq.journal.walk import used_of
from ebbmq.node import doctor
from ebbmq.node.doctor import Report
from tests.crash.copies import wait_until_settled
from tests.crash.devices import MIB, SOON
from tests.crash.reports import certain, named
from tests.crash.test_damage import CALM
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.crash

DEVICE = {"kind": "file", "capacity_bytes": 16 * MIB, "status": SOON}
TWO_DEVICES = CALM | {
    "devices": {"disk": DEVICE, "spare": DEVICE},
    "rules": [{"id": "all", "weight": 9, "device": "disk", "when": "SIZE >= 0"}],
}
CONFIGS: dict[str, dict[str, Any]] = {"only in the log": CALM, "with a second copy": TWO_DEVICES}
#: What the walk goes through; the log of decisions is not in it.
FILES = {
    "identity": "store.json",
    "lock and lists of devices": "[!s]*",
    "checkpoints": "checkpoints/*",
    "removals": "removals/*",
    "files of devices": "devices/**/*",
}
SEGMENTS = ("segments before a checkpoint", "segments since a checkpoint", "the last segment")
KINDS = (*FILES, *SEGMENTS)
COUNT = 150
FLIPS = 5


@dataclass
class Store:
    """A data directory as its broker left it."""

    directory: Path
    config: dict[str, Any]
    live: dict[str, bytes] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    #: The segments in which facts that no checkpoint has begin, and in which the log ends.
    checkpoint: int = 0
    last: int = 0

    def open(self, directory: Path) -> Broker:
        return Broker.open(directory, self.config)

    def missing_in(self, found: Mapping[str, bytes]) -> set[str]:
        """Messages that are not among these as they were published."""
        return {identity for identity, body in self.live.items() if found.get(identity) != body}

    def files(self, kind: str) -> list[Path]:
        """The files of a kind; there may be none."""
        if kind in FILES:
            return self._matching(FILES[kind])
        segments = self._matching("journal/*")
        covered, last = self.checkpoint - 1, self.last - 1
        return (segments[:covered], segments[covered:last], segments[last:])[SEGMENTS.index(kind)]

    def is_unproven(self, kind: str) -> bool:
        """Whether nothing but the log itself says what is in segments of this kind."""
        if self.checkpoint < self.last:
            return kind in SEGMENTS[1:]
        return kind == SEGMENTS[2] and "devices" in self.config

    def _matching(self, pattern: str) -> list[Path]:
        paths = (path for path in self.directory.glob(pattern) if path.is_file())
        return sorted(path.relative_to(self.directory) for path in paths)


def _fill(broker: Broker, store: Store) -> None:
    copies = 2 if "devices" in store.config else 1
    broker.declare(QueueSpec("q", min_copies=copies))
    for number in range(COUNT):
        if number == COUNT // 2:
            broker.engine.checkpoint()
        (receipt,) = broker.publish("q", [Message(b"%1500d" % number)], confirm="synced")
        store.live[receipt.id] = b"%1500d" % number
        if number % 10 == 9:
            (lease,) = broker.lease("q")
            broker.ack("q", [lease.token], confirm="synced")
            store.acked.add(lease.id)
            del store.live[lease.id]
    broker.declare(QueueSpec("purged"))
    broker.publish("purged", [Message(b"goes")])
    broker.purge("purged")
    broker.engine.upkeep()


def _ends_with_mark(broker: Broker) -> bool:
    """Whether the last header on the disk says that everything before it was flushed."""
    segment = broker.engine.journal.position >> 32
    path = broker.engine.directory.path / "journal" / name_of(segment)
    data = path.read_bytes()
    offset = used_of(data) - HEADER_BYTES
    store = record.seed(broker.engine.directory.identity.uuid)
    header = record.parse(store, segment << 32 | offset, data, offset)
    return header is not None and header.kind == LINK and header.synced == header.position


@pytest.fixture(scope="module", params=CONFIGS)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CONFIGS[request.param]


@pytest.fixture(scope="module", params=["closed", "killed"])
def store(
    request: pytest.FixtureRequest, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Store:
    root = tmp_path_factory.mktemp("walk")
    store = Store(root / "data", config)
    with store.open(store.directory) as broker:
        _fill(broker, store)
        if "devices" in config:
            wait_until_settled(broker, "copies")
            broker.evict_device("spare", force=True)
        if request.param == "killed":
            wait_until(lambda: _ends_with_mark(broker), "the idle log has no mark")
            # What is there while nothing happens is what a kill -9 leaves.
            store.directory = shutil.copytree(store.directory, root / "killed")
        store.last = broker.engine.journal.position >> 32
        store.checkpoint = broker.engine.checkpoint_position >> 32
    if request.param == "closed":
        store.checkpoint = store.last
    return store


def _used(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: _used(data) // 2])


HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": _cut,
}


def _examine(directory: Path) -> Report:
    """What `ebbmq doctor` says of a store, also where it cannot read it at all."""
    try:
        return doctor.examine(directory)
    except EbbError as error:
        return Report(unusable=True, problems=[str(error)])


def _look(store: Store, directory: Path, *, is_flipped: bool) -> list[str]:
    """Open a harmed store; what it says or delivers and must not, or the other way round."""
    report = _examine(directory)
    try:
        broker = store.open(directory)
    except EbbError as error:
        return [] if str(directory) in error.detail and error.action else [f"refused as {error}"]
    wrong: list[str] = []
    with broker:
        leases = broker.lease("q", count=10 * COUNT)
        broker.release("q", [lease.token for lease in leases])
        found = {lease.id: lease.body for lease in leases}
        health = broker.health()
        removed = {each.id for each in broker.removals("q") if each.reason == "damaged"}
        told = named(certain(health["damage"])) & named(certain(report.problems))
        missed = store.missing_in(found)
        acked = {each for each in missed if "acked" in str(broker.why(each).get("reason"))}
    kept = (missed & told) - acked
    silent = missed - kept - (removed if is_flipped else set())
    if silent:
        wrong.append(f"{len(silent)} of {len(store.live)} are gone, as {min(silent)}")
    if kept and health["ready"] and not is_flipped:
        wrong.append(f"{len(kept)} are kept back, and health is ready")
    if missed and report.clean:
        wrong.append(f"{len(missed)} are not delivered, and doctor finds nothing")
    if found.keys() - store.live.keys() and report.clean:
        wrong.append("messages are there that were acked, and doctor finds nothing")
    return wrong


def _put_back(store: Store, directory: Path) -> list[str]:
    """What is not there when a file was put back."""
    try:
        broker = store.open(directory)
    except EbbError as error:
        return [f"put back, refused as {error}"]
    with broker:
        found = {lease.id: lease.body for lease in broker.lease("q", count=10 * COUNT)}
    missed = store.missing_in(found)
    return [f"put back, {len(missed)} are gone, as {min(missed)}"] if missed else []


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Callable[[], Path]:
    """Makes the store anew, for the next harm."""

    def make() -> Path:
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        return shutil.copytree(store.directory, tmp_path / "data")

    return make


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_file_is_missed_its_messages_are_and_it_can_be_put_back(
    store: Store, copy: Callable[[], Path], kind: str, harm: str
) -> None:
    if store.is_unproven(kind):
        pytest.skip("what no checkpoint names is not missed in full")
    wrong: list[str] = []
    for path in store.files(kind):
        directory = copy()
        HARMS[harm](directory / path)
        found = _look(store, directory, is_flipped=False)
        shutil.copy2(store.directory / path, directory / path)
        wrong += [f"{path}: {what}" for what in (*found, *_put_back(store, directory))]
    assert not wrong, "\n".join(wrong)


def _flips(data: bytes) -> Iterator[bytes]:
    """A file with one bit of it flipped, each time in another part of what is in it."""
    used = _used(data)
    for at in sorted({used * part // FLIPS for part in range(FLIPS)} if used else ()):
        changed = bytearray(data)
        changed[at] ^= 0x10
        yield bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_bit_is_flipped_every_message_is_delivered_or_named(
    store: Store, copy: Callable[[], Path], kind: str
) -> None:
    wrong: list[str] = []
    for path in store.files(kind):
        for number, changed in enumerate(_flips((store.directory / path).read_bytes())):
            directory = copy()
            (directory / path).write_bytes(changed)
            found = _look(store, directory, is_flipped=True)
            wrong += [f"{path}, flip {number}: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


def test_every_file_is_of_a_kind(store: Store) -> None:
    there = {path for path in store.directory.rglob("*") if path.is_file()}
    walked = {store.directory / path for kind in KINDS for path in store.files(kind)}
    assert {path.parent.name for path in there - walked} <= {"decisions"}
    has_devices, was_killed = "devices" in store.config, store.checkpoint < store.last
    assert bool(store.files("files of devices")) == has_devices
    assert bool(store.files("segments since a checkpoint")) == was_killed
    assert all(store.files(kind) for kind in ("checkpoints", "removals", SEGMENTS[0], SEGMENTS[2]))
