"""Damaged bytes: every message is delivered as it was published or named in a report."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import StorageFailed
from ebbmq.node import declaring, doctor
from ebbmq.testing import ManualClock
from tests.crash.journal_records import forget_checkpoints, give_back, young
from tests.crash.reports import certain, named
from tests.crash.worker import CONFIG

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

QUEUES = ("a", "b", "c")
FLIPS = 160


#: Checkpoints never, so that everything is read from the journal, which is never compacted.
NEVER = CONFIG | {"checkpoint_every_facts": 10**9}
CALM = NEVER | {"upkeep_every_ms": 86_400_000}


@dataclass
class Contents:
    """What a data directory holds, and what was acked in it (synced).

    The last bytes of a log that was not closed cannot be told from a torn tail: `provable` says,
    for the file they are in, how far damage can be told as damage.
    """

    directory: Path
    live: dict[str, bytes] = field(default_factory=dict)
    acked: dict[str, bytes] = field(default_factory=dict)
    provable: dict[str, int] = field(default_factory=dict)
    is_compacted: bool = True
    queues: list[str] = field(default_factory=lambda: list(QUEUES))
    #: Messages that are there only to prove that earlier ones were synced.
    proofs: set[str] = field(default_factory=set)


@pytest.fixture(scope="module", params=["closed", "killed", "killed long after its checkpoint"])
def contents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """A directory with several segments and all kinds of facts, as its broker left it."""
    root = tmp_path_factory.mktemp("damage")
    contents = Contents(root / "data")
    contents.is_compacted = request.param != "killed long after its checkpoint"
    config = CONFIG if contents.is_compacted else NEVER
    chance = random.Random(7)
    clock = ManualClock(time.time_ns() // 1_000_000)
    for life in range(3):
        with Broker.open(contents.directory, config, clock) as broker:
            for name in QUEUES:
                broker.declare(QueueSpec(name, retry_delay_ms=0, max_attempts=0))
            broker.declare_topic(TopicSpec("news"))
            broker.subscribe("news", "a")
            for number in range(40):
                if number == 20:
                    contents.queues.append(f"of life {life}")
                    broker.declare(QueueSpec(contents.queues[-1], retry_delay_ms=0, max_attempts=0))
                    broker.subscribe("news", contents.queues[-1])
                _work(broker, contents, chance, f"{life}.{number}")
                if contents.is_compacted and number % 5 == 4:
                    broker.engine.upkeep()
            if life == 2 and request.param != "closed":
                _leave_as_killed(broker, contents, root / "killed")
    return contents


def _leave_as_killed(broker: Broker, contents: Contents, target: Path) -> None:
    """Files copied while nothing happens are what a kill -9 at this moment leaves."""
    last = _last_segment(contents.directory)
    contents.provable[last.name] = len(last.read_bytes().rstrip(b"\0"))
    broker.declare(QueueSpec("end"))
    for _ in range(2):
        proof = Message(b"later records prove that earlier ones were synced")
        contents.proofs.add(broker.publish("end", [proof])[0].id)
    shutil.copytree(contents.directory, target)
    contents.directory = target


def _last_segment(directory: Path) -> Path:
    young = (directory / "journal").glob("young-*")
    return max(path for path in young if path.read_bytes().strip(b"\0"))


def _work(broker: Broker, contents: Contents, chance: random.Random, key: str) -> None:
    queue = chance.choice(contents.queues)
    bodies = [f"{key}.{i} ".encode() + chance.randbytes(chance.choice((0, 50, 3_000)))
              for i in range(chance.randint(1, 8))]  # fmt: skip
    messages = [Message(body) for body in bodies]
    if chance.random() < 0.2:
        told = broker.publish_topic("news", messages, confirm="synced")
    else:
        told = {queue: broker.publish(queue, messages, confirm="synced")}
    for receipts in told.values():
        contents.live.update((r.id, body) for r, body in zip(receipts, bodies, strict=True))
    queue = chance.choice(contents.queues)
    leases = broker.lease(queue, count=4)
    done, failed = leases[:3], leases[3:]
    broker.ack(queue, [lease.token for lease in done], confirm="synced")
    broker.retry(queue, [lease.token for lease in failed])
    for lease in done:
        contents.acked[lease.id] = contents.live.pop(lease.id)


def _judge(contents: Contents, directory: Path) -> tuple[bool, str]:
    """Open a damaged copy and compare; returns whether anything was reported."""
    _put_back_identity(contents, directory)
    report = doctor.examine(directory, lambda done, total: None)
    told = named(report.problems)
    got: dict[str, bytes] = {}
    faulty: set[str] = set()
    with Broker.open(directory, config=CONFIG) as broker:
        for queue in contents.queues:
            for partition in broker.stats(queue)["partitions"]:
                if partition["state"] == "faulty":
                    faulty.add(partition["id"])
            for lease in broker.lease(queue, count=10_000):
                assert lease.id not in got, f"{lease.id} twice"
                got[lease.id] = lease.body
            told |= {removal.id for removal in broker.removals(queue)}
        damage = broker.health()["damage"]
        told |= named(damage)
    known = contents.live | contents.acked
    for id_, body in got.items():
        assert known.get(id_) == body, f"{id_} was never published like that"
    invented = named(certain(damage + report.problems)) - known.keys() - contents.proofs
    assert not invented, f"named and never there: {sorted(invented)}; {report.problems}"
    # A partition that is set apart as a whole is a report about all of its messages.
    apart = {id_ for id_ in contents.live if id_.partition("-")[0] in faulty}
    lost = contents.live.keys() - got.keys() - told - apart
    assert not lost, f"lost and not named: {sorted(lost)}; reported: {report.problems}"
    # An ack whose record lost even its header cannot be named, but its loss is never silent.
    back = (got.keys() & contents.acked.keys()) - told
    assert not back or report.problems, f"acked, back, and nothing said: {sorted(back)}"
    return not report.clean, "; ".join(report.problems)


def _put_back_identity(contents: Contents, directory: Path) -> None:
    """Where store.json is not as it was, it says so, or the store opens as ever."""
    right = (contents.directory / "store.json").read_bytes()
    if (directory / "store.json").read_bytes() == right:
        return
    try:
        is_refused = doctor.examine(directory).unusable
    except StorageFailed:
        is_refused = True
    if is_refused:
        with pytest.raises(StorageFailed, match=r"store\.json"):
            Broker.open(directory, config=CONFIG)
        (directory / "store.json").write_bytes(right)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)


def _flip(contents: Contents, path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    used = contents.provable.get(path.name, len(bytes(data).rstrip(b"\0")) or len(data))
    data[chance.randrange(used)] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def test_an_intact_directory_is_clean(contents: Contents, tmp_path: Path) -> None:
    shutil.copytree(contents.directory, tmp_path / "data")
    is_damaged, problems = _judge(contents, tmp_path / "data")
    assert not is_damaged, problems


@pytest.mark.parametrize("flips", [1, 2])
@pytest.mark.parametrize("part", range(4))
def test_after_bit_flips_every_message_is_intact_or_named(
    contents: Contents, tmp_path: Path, part: int, flips: int
) -> None:
    chance = random.Random(f"{part} {flips}")
    for number in range(FLIPS // 8):
        copy = tmp_path / str(number)
        shutil.copytree(contents.directory, copy)
        if number % 2:
            forget_checkpoints(copy)
        flipped = [chance.choice(_files(copy)) for _ in range(flips)]
        for path in flipped:
            _flip(contents, path, chance)
        try:
            _judge(contents, copy)
        except AssertionError as error:
            raise AssertionError(
                f"flip {number} in {[p.name for p in flipped]}: {error}"
            ) from error
        shutil.rmtree(copy)


def test_whatever_bit_of_the_identity_is_flipped_no_message_is_lost(
    contents: Contents, tmp_path: Path
) -> None:
    chance = random.Random(3)
    for number in range(8):
        copy = tmp_path / str(number)
        shutil.copytree(contents.directory, copy)
        _flip(contents, copy / "store.json", chance)
        is_damaged, problems = _judge(contents, copy)
        assert not is_damaged, problems


@pytest.mark.parametrize(
    "tail", ["random", "zeros then random", "an older part of the log", "half a record"]
)
def test_a_torn_tail_is_cut_off_and_nothing_else(
    contents: Contents, tmp_path: Path, tail: str
) -> None:
    chance = random.Random(tail)
    copy = tmp_path / "data"
    shutil.copytree(contents.directory, copy)
    last = _last_segment(copy)
    data = last.read_bytes()
    used = (len(data.rstrip(b"\0")) + 7) // 8 * 8
    garbage = {
        "random": chance.randbytes(300),
        "zeros then random": bytes(64) + chance.randbytes(300),
        "an older part of the log": data[: min(used, 400)],
        "half a record": data[40:120],
    }[tail]
    last.write_bytes((data[:used] + garbage).ljust(len(data), b"\0"))
    _judge(contents, copy)
    with Broker.open(copy, config=CONFIG) as broker:
        (receipt,) = broker.publish("a", [Message(b"after")])
    with Broker.open(copy, config=CONFIG) as broker:
        assert receipt.id in [lease.id for lease in broker.lease("a", count=10_000)]


def test_without_checkpoints_nothing_is_lost_and_nothing_acked_comes_back(
    contents: Contents, tmp_path: Path
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(contents.directory, copy)
    assert len(contents.acked) > len(contents.live) / 2
    if contents.is_compacted:
        assert not (copy / "journal" / "young-0000000001.seg").exists(), "nothing was reclaimed"
    forget_checkpoints(copy)
    _judge(contents, copy)


@pytest.mark.parametrize(
    ("left", "size"),
    [("closed", 0), ("closed", 39), ("closed", 30_001), ("killed", 20_000), ("killed", 30_001)],
)
def test_a_sealed_segment_that_was_cut_short_costs_what_was_cut_off(
    tmp_path: Path, left: str, size: int
) -> None:
    with Broker.open(tmp_path / "closed", NEVER) as broker:
        broker.declare(QueueSpec("q"))
        bodies = [b"this is body number %03d" % number + bytes(3_000) for number in range(40)]
        ids = [broker.publish("q", [Message(body)])[0].id for body in bodies]
        shutil.copytree(tmp_path / "closed", tmp_path / "killed")
    directory = tmp_path / left
    segment = directory / "journal" / "young-0000000001.seg"
    before = segment.read_bytes()
    os.truncate(segment, size)
    starts = {id_: before.find(body) for id_, body in zip(ids, bodies, strict=True)}
    lost = {id_ for id_, start in starts.items() if start >= 0 and start + len(bodies[0]) > size}
    assert lost
    assert named(doctor.examine(directory).problems) == lost
    with Broker.open(directory, NEVER) as broker:
        assert {lease.id for lease in broker.lease("q", count=100)} == set(ids) - lost
        assert named(broker.health()["damage"]) == lost
        broker.publish("q", [Message(b"it goes on")])
    with Broker.open(directory, NEVER) as broker:
        assert [lease.body for lease in broker.lease("q", count=100)] == [b"it goes on"]


def _damage_header_of(directory: Path, body: bytes) -> None:
    """Flip bits in the header of the record that holds a body published alone, past mending."""
    for path in (directory / "journal").glob("young-*"):
        data = bytearray(path.read_bytes())
        at = data.find(body)
        if at >= 0:
            # header 40, checksum of the rows 8, one row 64, then the body
            data[at - 64 - 8 - 40 + 5] ^= 1
            data[at - 64 - 8 - 40 + 20] ^= 6
            path.write_bytes(bytes(data))
            return
    raise AssertionError("no such body")


def test_messages_whose_record_lost_its_header_are_named_exactly(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, config=NEVER) as broker:
        broker.declare(QueueSpec("q"))
        receipts = [
            broker.publish("q", [Message(b"this is body number %d" % i)])[0] for i in range(20)
        ]
        shutil.copytree(directory, copy)
    for number in (3, 4, 11):
        _damage_header_of(copy, b"this is body number %d" % number)
    lost = {receipts[number].id for number in (3, 4, 11)}
    report = doctor.examine(copy, lambda done, total: None)
    assert lost == named(report.problems) & {receipt.id for receipt in receipts}
    with Broker.open(copy, config=NEVER) as broker:
        got = {lease.id for lease in broker.lease("q", count=100)}
        assert got == {receipt.id for receipt in receipts} - lost
        assert lost <= named(broker.health()["damage"])
        (new,) = broker.publish("q", [Message(b"new")])
        assert new.id not in {receipt.id for receipt in receipts}


def test_a_header_with_one_flipped_bit_is_mended(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, config=NEVER) as broker:
        broker.declare(QueueSpec("q"))
        for i in range(20):
            broker.publish("q", [Message(b"this is body number %d" % i)])
        shutil.copytree(directory, copy)
    path = copy / "journal" / "young-0000000001.seg"
    data = bytearray(path.read_bytes())
    data[data.find(b"this is body number 11") - 64 - 8 - 40 + 5] ^= 1
    path.write_bytes(bytes(data))
    with Broker.open(copy, config=NEVER) as broker:
        bodies = {lease.body for lease in broker.lease("q", count=100)}
        assert bodies == {b"this is body number %d" % i for i in range(20)}
        assert broker.health()["damage"] == []


@pytest.mark.parametrize("contents", ["closed", "killed"], indirect=True)
def test_a_damaged_relocation_is_damage_and_not_a_torn_tail(
    contents: Contents, tmp_path: Path
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(contents.directory, copy)
    for path in (copy / "checkpoints").iterdir():
        path.unlink()
    last = max((copy / "journal").glob("old-*"))
    data = bytearray(last.read_bytes())
    data[len(bytes(data).rstrip(b"\0")) - 20] ^= 1
    last.write_bytes(bytes(data))
    is_damaged, problems = _judge(contents, copy)
    assert is_damaged, problems


def test_a_store_whose_only_message_is_damaged_opens_and_names_it(tmp_path: Path) -> None:
    with Broker.open(tmp_path, config=CONFIG) as broker:
        broker.declare(QueueSpec("q"))
        (receipt,) = broker.publish("q", [Message(b"the only body")])
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    for path in (tmp_path / "journal").iterdir():
        path.write_bytes(path.read_bytes().replace(b"the only body", b"the only bodi"))
    with Broker.open(tmp_path, config=CONFIG) as broker:
        assert named(broker.health()["damage"]) == {receipt.id}
        assert broker.lease("q") == []
        assert broker.stats("q")["depth"]["ready"] == 0
        told = broker.why(receipt.id)
        (removal,) = broker.removals("q")
    assert (removal.id, removal.reason, removal.bytes) == (receipt.id, "damaged", 13)
    assert told["state"] == "removed"
    assert told["reason"] == "damaged"
    with Broker.open(tmp_path, config=CONFIG) as broker:
        assert broker.health()["damage"] == []
        assert broker.removals("q") == [removal]


def test_a_body_damaged_since_the_last_checkpoint_is_named_when_it_is_delivered(
    tmp_path: Path,
) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    bodies = [b"this is body number %03d" % number for number in range(60)]
    with Broker.open(directory, config=NEVER) as broker:
        broker.declare(QueueSpec("q"))
        receipts = broker.publish("q", [Message(body) for body in bodies[:20]])
        broker.engine.checkpoint()
        for at in (20, 40):
            receipts += broker.publish("q", [Message(body) for body in bodies[at : at + 20]])
        broker.publish("q", [Message(b"a later record proves that earlier ones were synced")])
        shutil.copytree(directory, copy)
    path = copy / "journal" / "young-0000000001.seg"
    path.write_bytes(path.read_bytes().replace(bodies[25], bodies[25].upper()))
    report = doctor.examine(copy, lambda done, total: None)
    assert named(report.problems) == {receipts[25].id}
    with Broker.open(copy, config=NEVER) as broker:
        got = {lease.id: lease.body for lease in broker.lease("q", count=100)}
        assert named(broker.health()["damage"]) == {receipts[25].id}
    expected = {r.id: body for r, body in zip(receipts, bodies, strict=True)}
    del expected[receipts[25].id]
    assert expected.items() <= got.items()
    assert receipts[25].id not in got


def test_leases_beside_a_damaged_one_are_read_again_under_the_tokens_they_were_granted_with(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    bodies = [b"body %d " % number + b"x" * 3_000 for number in range(3)]
    with Broker.open(directory) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=3_600_000))
        broker.publish("q", [Message(body) for body in bodies])
        granted = broker.lease("q", 3, name="n")
    path = directory / "journal" / "young-0000000001.seg"
    path.write_bytes(path.read_bytes().replace(bodies[1], bodies[1].upper()))
    with Broker.open(directory) as broker:
        again = broker.read_lease("q", "n")
        assert [lease.token for lease in again] == [granted[0].token, granted[2].token]
        assert [lease.body for lease in again] == [bodies[0], bodies[2]]
        assert named(broker.health()["damage"]) == {granted[1].id}
        broker.ack("q", [lease.token for lease in again])
        assert sum(broker.stats("q")["depth"].values()) == 0


def test_what_left_after_a_checkpoint_and_went_with_its_segments_is_no_damage(
    tmp_path: Path,
) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, CALM) as broker:
        broker.declare(QueueSpec("q"))
        for number in range(100):
            broker.publish("q", [Message(b"%1500d" % number)], confirm="written")
        broker.engine.checkpoint()
        leases = broker.lease("q", count=100)
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
        for number in range(200):
            broker.publish("q", [Message(b"%1500d" % number)], confirm="written")
        leases = broker.lease("q", count=200)
        broker.ack("q", [lease.token for lease in leases[:150]], confirm="synced")
        give_back(broker, lambda: young(directory)[0] > 4)
        shutil.copytree(directory, copy)
    assert doctor.examine(copy).problems == []
    with Broker.open(copy, CALM) as broker:
        assert broker.health()["damage"] == []
        assert broker.stats("q")["depth"]["leased"] == 50


def test_a_segment_that_goes_while_a_queue_is_declared_is_not_missed(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, CALM) as broker:
        engine = broker.engine
        broker.declare(QueueSpec("q"))
        for number in range(100):
            broker.publish("q", [Message(b"%1500d" % number)], confirm="written")
        leases = broker.lease("q", count=100)
        broker.ack("q", [lease.token for lease in leases], confirm="synced")
        take_in, numbers = engine.journal.before_commit, iter(range(100))

        def declare_another() -> None:
            assert take_in is not None
            take_in()
            declaring.declare(engine, QueueSpec(f"declared by commit {next(numbers)}"))

        engine.journal.before_commit = declare_another
        give_back(broker, lambda: len(young(directory)) < 4)
        engine.journal.before_commit = take_in
        shutil.copytree(directory, copy)
    forget_checkpoints(copy)
    assert doctor.examine(copy).problems == []


def test_ids_published_since_the_last_checkpoint_are_remembered(tmp_path: Path) -> None:
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with Broker.open(directory, config=NEVER) as broker:
        broker.declare(QueueSpec("q"))
        broker.engine.checkpoint()
        first = broker.publish("q", [Message(b"x", id=f"order {n}") for n in range(10)])
        broker.publish("q", [Message(b"a later record proves that earlier ones were synced")])
        shutil.copytree(directory, copy)
    with Broker.open(copy, config=NEVER) as broker:
        again = broker.publish("q", [Message(b"x", id=f"order {n}") for n in range(10)])
    assert [receipt.id for receipt in again] == [receipt.id for receipt in first]
    assert all(receipt.duplicate for receipt in again)


@pytest.fixture
def told_to_all(tmp_path: Path) -> Path:
    """A directory without checkpoints in which one record holds what three queues were told."""
    with Broker.open(tmp_path) as broker:
        broker.declare_topic(TopicSpec("news"))
        for name in QUEUES:
            broker.declare(QueueSpec(name))
            broker.subscribe("news", name)
        broker.publish_topic("news", [Message(b"news %d " % n * 50) for n in range(20)])
        broker.publish("a", [Message(b"after it")])
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    return tmp_path


def flip_in_journal(directory: Path, body: bytes) -> None:
    path = directory / "journal" / "young-0000000001.seg"
    data = bytearray(path.read_bytes())
    data[data.index(body)] ^= 1
    path.write_bytes(data)


def test_a_damaged_body_of_a_topic_costs_that_message_and_no_other(told_to_all: Path) -> None:
    flip_in_journal(told_to_all, b"news 7 " * 50)
    with Broker.open(told_to_all) as broker:
        assert len(broker.health()["damage"]) == len(QUEUES)
        for name in QUEUES:
            got = [lease.body for lease in broker.lease(name, 100)]
            assert got[:19] == [b"news %d " % n * 50 for n in range(20) if n != 7]
        pids = {broker.stats(name)["partitions"][0]["id"] for name in QUEUES}
        named = {f"message {pid}-8 cannot be read" for pid in pids}
        assert set(broker.health()["damage"]) == named


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_damaged_in_a_publish_to_a_topic_nothing_is_invented(
    told_to_all: Path, seed: int
) -> None:
    path = told_to_all / "journal" / "young-0000000001.seg"
    data = bytearray(path.read_bytes())
    bodies = [b"news %d " % n * 50 for n in range(20)]
    # Before the bodies: sizes, counts and numbers of the parts, and rows.
    rows_at = data.index(bodies[0]) - 20 * 64 - 8
    table_at = rows_at - 3 * 24 - 8
    end = table_at + 80 if seed % 2 else rows_at + 8 + 20 * 64
    data[random.Random(seed).randrange(table_at, end)] ^= 1 << seed % 8
    path.write_bytes(data)
    with Broker.open(told_to_all) as broker:
        is_named = bool(broker.health()["damage"])
        for name in QUEUES:
            ids = {lease.id: lease.body for lease in broker.lease(name, 100)}
            assert is_named or len(ids) >= len(bodies)
            for identity, body in ids.items():
                number = int(identity.split("-")[1], 16) - 1
                assert body == ([*bodies, b"after it"])[number]
