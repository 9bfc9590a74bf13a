"""Copies that a device, or the log itself, did not take, lost or damaged: what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import AsyncBroker, Broker, Message, QueueSpec, TopicSpec
from ebbmq.core import facts
from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import Overloaded
from ebbmq.journal import scan
from ebbmq.journal.disk import FileDisk
from ebbmq.node.keeping import reading
from ebbmq.node.outflow import parse_id
from tests.crash.copies import differences, wait_until_settled
from tests.crash.devices import MIB, SOON
from tests.crash.mounts import tmpfs
from tests.servers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.core.copies import Holding
    from ebbmq.model import DeviceStatus, Level
    from tests.crash.devices import Disks, Mood

pytestmark = pytest.mark.crash

BODY = b"a body that can be found " * 4
TO_A = {"id": "A", "weight": 90, "device": "a", "when": "IMPORTANCE >= 1"}
TO_B = {"id": "B", "weight": 80, "device": "b", "when": "IMPORTANCE >= 1"}


def open_broker(
    tmp_path: Path,
    *rules: dict[str, Any],
    devices: str = "ab",
    data: Path | None = None,
) -> Broker:
    file = {"kind": "file", "capacity_bytes": 8 * MIB, "status": SOON, "stall_ms": 60_000}
    file["tier"] = "cold"
    broker = Broker.open(
        data or tmp_path / "data",
        {
            "devices": {name: {**file, "directory": str(tmp_path / name)} for name in devices},
            "rules": list(rules),
            "placement": {"repair_after_ms": 100},
            "segment_bytes": MIB,
            "upkeep_every_ms": 20,
        },
    )
    broker.declare(QueueSpec("q", cache_enabled=False))
    wait_until(lambda: all(is_usable(broker, device) for device in devices), "opening")
    return broker


def is_usable(broker: Broker, device: str) -> bool:
    assert broker.engine.devices is not None
    return broker.engine.devices.states[device].usable


def holding(broker: Broker, message_id: str) -> Holding:
    with broker.engine.lock:
        return broker.engine.holdings.of(name_of(*parse_id(message_id)))


def is_refused(broker: Broker, message_id: str, device: str) -> bool:
    with broker.engine.lock:
        told = broker.engine.keeping.decisions.of(name_of(*parse_id(message_id)))
    return any(each.event == "refused" and each.device == device for each in told)


def publish(broker: Broker, *, replicas: int = 1) -> str:
    return broker.publish("q", [Message(BODY, replicas=replicas)])[0].id


def damage_log(tmp_path: Path) -> None:
    """Change a byte of the body wherever the log has it."""
    for path in (tmp_path / "data" / "journal").iterdir():
        at = path.read_bytes().find(BODY)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"A")


def test_a_body_that_is_damaged_in_the_log_is_read_from_its_other_copy(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path) as broker:
        message_id = publish(broker, replicas=2)
        wait_until(lambda: len(holding(broker, message_id).copies) == 2, "copying")
        damage_log(tmp_path)
        assert [lease.body for lease in broker.lease("q")] == [BODY]
        wait_until_settled(broker, "mending")
        assert len(holding(broker, message_id).copies) == 2
        assert broker.stats("q")["totals"]["damaged"] == 0


def test_what_a_device_does_not_take_stays_in_the_log_and_lacks_nothing(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        with disks["a"].being("unwritable"):
            message_id = publish(broker)
            wait_until(lambda: not holding(broker, message_id).pending, "failing")
        wait_until_settled(broker, "forgetting")
        assert holding(broker, message_id).copies == {LOG}


def test_a_body_comes_back_into_the_log_also_at_the_second_try(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, TO_A, TO_B) as broker:
        message_id = publish(broker, replicas=2)
        wait_until(lambda: holding(broker, message_id).copies == {"a", "b"}, "moving")
        wait_until_settled(broker, "moving")
        with disks["b"].being("failing"):
            with disks["a"].being("failing"):
                for device in ("a", "b"):
                    wait_until(lambda name=device: not is_usable(broker, name), "failing")
                wait_until(lambda: is_refused(broker, message_id, LOG), "trying")
            wait_until(lambda: LOG in holding(broker, message_id).copies, "coming home")
        assert [lease.body for lease in broker.lease("q")] == [BODY]


def test_a_copy_that_was_lacking_before_a_restart_is_made_after_it(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, devices="a") as broker, disks["a"].being("failing"):
        wait_until(lambda: not is_usable(broker, "a"), "failing")
        message_id = publish(broker, replicas=2)
    with open_broker(tmp_path, devices="a") as broker:
        wait_until(lambda: holding(broker, message_id).copies == {LOG, "a"}, "mending")


@pytest.mark.parametrize("moved", [True, False])
def test_a_message_that_is_damaged_in_a_closed_log_is_read_from_its_other_copy(
    tmp_path: Path, disks: Disks, *, moved: bool
) -> None:
    rules = (TO_A, TO_B) if moved else (TO_A,)
    with open_broker(tmp_path, *rules) as broker:
        message_id = publish(broker, replicas=2)
        wait_until_settled(broker, "moving")
        copies = holding(broker, message_id).copies
        assert (LOG in copies) is not moved
    shutil.rmtree(tmp_path / "data" / "checkpoints")
    damage_log(tmp_path)
    with open_broker(tmp_path, *rules) as broker:
        assert [lease.body for lease in broker.lease("q", wait_ms=5_000)] == [BODY]
        assert broker.health()["damage"] == []
        wait_until_settled(broker, "mending")
        assert len(holding(broker, message_id).copies) == 2


def test_a_repeated_publish_is_confirmed_only_when_the_first_has_its_copies(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("twice", min_copies=2))
        message = Message(BODY, id="a producer's id")
        with disks["a"].being("frozen"), disks["b"].being("frozen"):
            for _ in range(2):
                with pytest.raises(Overloaded) as refusal:
                    broker.publish("twice", [message], timeout_ms=50)
                assert refusal.value.code == "confirm_timeout"
                broker.publish("q", [Message(b"another")], confirm="written")
        (receipt,) = broker.publish("twice", [message])
        assert receipt.duplicate
        assert len(holding(broker, receipt.id).copies) == 2


def test_a_repeated_publish_waits_for_copies_that_were_lost_since(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, devices="a") as broker:
        broker.declare(QueueSpec("twice", min_copies=2))
        message = Message(BODY, id="a producer's id")
        (first,) = broker.publish("twice", [message])
        with disks["a"].being("frozen"):
            with broker.engine.lock:
                broker.engine.keeping.copies_lost("a", [name_of(*parse_id(first.id))])
            with pytest.raises(Overloaded) as refusal:
                broker.publish("twice", [message], timeout_ms=50)
            assert refusal.value.code == "confirm_timeout"
        (again,) = broker.publish("twice", [message])
        assert again.duplicate
        assert len(holding(broker, first.id).copies) == 2


@pytest.mark.parametrize("confirm", ["written", "synced"])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_publish_to_a_topic_is_confirmed_when_each_queue_has_its_copies(
    tmp_path: Path, disks: Disks, confirm: Level, *, awaited: bool
) -> None:
    with open_broker(tmp_path, devices="a") as broker:
        broker.declare(QueueSpec("twice", min_copies=2))
        broker.declare_topic(TopicSpec("news"))
        broker.subscribe("news", "twice")

        def publish(timeout_ms: int | None) -> None:
            if not awaited:
                broker.publish_topic("news", Message(BODY), confirm, timeout_ms)
                return

            async def call() -> None:
                await AsyncBroker(broker).publish_topic("news", Message(BODY), confirm, timeout_ms)

            asyncio.run(call())

        with disks["a"].being("frozen"):
            with pytest.raises(Overloaded) as refusal:
                publish(50)
            assert refusal.value.code == "confirm_timeout"
        publish(None)
        for seen in broker.peek("twice"):
            assert len(holding(broker, seen.id).copies) == 2


def test_copies_are_made_again_once_the_disk_of_the_log_has_space(
    tmp_path: Path, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    with tmpfs(tmp_path / "mnt", 4 * MIB) as directory:
        ballast = directory / "ballast"
        with open_broker(tmp_path, TO_A, TO_B, data=directory / "data") as broker:
            message_id = publish(broker, replicas=2)
            wait_until_settled(broker, "moving")
            with contextlib.suppress(OSError), ballast.open("wb", 0) as file:
                while file.write(bytes(512)):
                    pass
            with disks["b"].being("failing"):
                wait_until(lambda: "disk_full" in caplog.text, "finding no space")
                assert LOG not in holding(broker, message_id).copies
                ballast.unlink()
                wait_until(lambda: LOG in holding(broker, message_id).copies, "coming home")
            wait_until_settled(broker, "settling")
            assert [lease.body for lease in broker.lease("q")] == [BODY]


def test_a_copy_is_not_deleted_that_was_asked_for_since_it_was_taken_for_a_stray(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, devices="a") as broker:
        message_id = publish(broker)
        engine, name = broker.engine, name_of(*parse_id(message_id))
        with engine.lock:
            engine.keeping.apply([engine.holdings.set_target(name, 2)])
            engine.keeping.apply([engine.holdings.strays("a", [name])])
            engine.keeping.apply([engine.keeping.ask(name, "a")])
        assert engine.keeping.mover is not None
        engine.keeping.mover.wake()
        wait_until(lambda: "a" in holding(broker, message_id).copies, "copying")
        # The removal waits for the journal to be on the device.
        broker.publish("q", [Message(b"another")], confirm="synced")
        wait_until(lambda: engine.keeping.mover.waiting()["a"] == (0, 0), "deleting")
        assert differences(broker) == {}


FADING = QueueSpec(
    "fading",
    tiers=("fast", "cold"),
    score_per_day=86_400_000.0,  # a point each millisecond
    score_medium=1.0,
    score_high=1.0,
    evaluate_every_ms=1,
)


@pytest.mark.parametrize("mood", ["unwritable", "failing"])
def test_a_move_that_failed_is_made_once_the_device_is_well_again(
    tmp_path: Path, disks: Disks, mood: Mood
) -> None:
    with open_broker(tmp_path, devices="a") as broker, disks["a"].being(mood):
        broker.declare(FADING)
        ids = [each.id for each in broker.publish("fading", [Message(BODY)] * 3)]
        wait_until(lambda: not is_usable(broker, "a"), "failing")
        # What is looked at while the device is away was looked at for the last time by age.
        ids += [each.id for each in broker.publish("fading", [Message(BODY)] * 3)]
        wait_until(lambda: all(is_looked_at(broker, each) for each in ids), "looking")
        assert all(holding(broker, each).copies == {LOG} for each in ids)
        disks["a"].mood = "well"
        wait_until(lambda: all(holding(broker, each).copies == {"a"} for each in ids), "moving")


def test_a_move_that_failed_before_a_restart_is_made_after_it(tmp_path: Path, disks: Disks) -> None:
    with open_broker(tmp_path, devices="a") as broker, disks["a"].being("failing"):
        broker.declare(FADING)
        wait_until(lambda: not is_usable(broker, "a"), "failing")
        (receipt,) = broker.publish("fading", [Message(BODY)])
        wait_until(lambda: is_looked_at(broker, receipt.id), "looking")
    with open_broker(tmp_path, devices="a") as broker:
        wait_until(lambda: holding(broker, receipt.id).copies == {"a"}, "moving")


def is_looked_at(broker: Broker, message_id: str) -> bool:
    """Whether a message was looked at for its age."""
    pid, seq = parse_id(message_id) or (0, 0)
    with broker.engine.lock:
        reviews = broker.engine.keeping.reviewer.of(broker.engine.catalog.shards[pid])
        return all(cursor > seq for cursor in reviews.cursors.values())


def test_a_copy_for_which_another_leaves_while_it_is_made_is_read_back_first(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, devices="a") as broker, disks["a"].being("wrong"):
        engine = broker.engine
        with disks["a"].being("frozen"):
            message_id = publish(broker, replicas=2)
            name = name_of(*parse_id(message_id))
            with engine.lock:
                engine.keeping.apply([engine.holdings.set_target(name, 1)])
                engine.keeping.apply([engine.holdings.drop_copy(name, LOG)])
            assert holding(broker, message_id).leaving == {LOG}
        wait_until(lambda: is_refused(broker, message_id, "a"), "reading back")
        assert LOG in holding(broker, message_id).copies


def seen(broker: Broker, device: str) -> DeviceStatus:
    """A device as people see it."""
    return next(each for each in broker.devices() if each.name == device)


@pytest.mark.parametrize("mood", ["wrong", "nothing"])
def test_a_device_that_does_not_give_what_it_was_given_has_a_worse_status(
    tmp_path: Path, disks: Disks, mood: Mood
) -> None:
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        ids = [publish(broker, replicas=2) for _ in range(5)]
        wait_until(lambda: all(len(holding(broker, each).copies) == 2 for each in ids), "copying")
        before = seen(broker, "a")
        assert (before.status, before.errors, before.last_error) == (0, 0, "")
        shard = broker.engine.catalog.shards[parse_id(ids[0])[0]]
        with disks["a"].being(mood):
            reading.read(broker.engine, shard, [parse_id(each)[1] for each in ids])
            wait_until(lambda: seen(broker, "a").status < 0, "being seen")
        assert seen(broker, "a").errors > 0
        assert "of its copies were" in seen(broker, "a").last_error
        wait_until(lambda: seen(broker, "a").status == 0, "getting better")


def test_who_gives_one_body_of_a_move_wrong_is_not_trusted_with_the_others(
    tmp_path: Path, disks: Disks
) -> None:
    bodies = [b"%d " % number + BODY for number in range(5)]
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        # Neighbours are read at once, and the last byte of what was read is wrong.
        with disks["a"].being("wrong"):
            receipts = broker.publish("q", [Message(body) for body in bodies])
            for each in receipts:
                wait_until(lambda name=each.id: is_refused(broker, name, "a"), "reading back")
            assert {holding(broker, each.id).copies for each in receipts} == {frozenset({LOG})}
            assert [lease.body for lease in broker.lease("q", 5)] == bodies
            wait_until(lambda: seen(broker, "a").status < 0, "being seen")
            assert "1 of 5 copies" in seen(broker, "a").last_error
        wait_until_settled(broker, "deleting")
        assert differences(broker) == {}


def only_on_a(broker: Broker) -> str:
    """A message whose only copy is on a device."""
    message_id = publish(broker)
    wait_until(lambda: holding(broker, message_id).copies == {"a"}, "moving")
    wait_until_settled(broker, "moving")
    return message_id


def test_an_only_copy_that_is_read_wrong_is_not_given_up_at_once(
    tmp_path: Path, disks: Disks
) -> None:
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        message_id = only_on_a(broker)
        with disks["a"].being("wrong"):
            assert broker.lease("q") == []
            assert holding(broker, message_id).copies == {"a"}
            wait_until(lambda: "not as they were put" in seen(broker, "a").last_error, "being seen")
        (lease,) = broker.lease("q", wait_ms=30_000)
        assert (lease.body, lease.failures) == (BODY, 0)
        assert not broker.engine.keeping.doubts


def is_lost(broker: Broker) -> bool:
    return bool(broker.stats("q")["totals"]["lost"])


def test_an_only_copy_that_stays_wrong_is_given_up_on_the_record(
    tmp_path: Path, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbmq.node.keeping.doubting.DOUBT_MS", 500)
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        message_id = only_on_a(broker)
        with disks["a"].being("wrong"):
            wait_until(lambda: broker.lease("q") or is_lost(broker), "giving up")
        assert broker.lease("q") == []
        assert [each.id for each in broker.removals("q", reason="lost")] == [message_id]


def is_read(broker: Broker, device: str) -> bool:
    """Whether somebody has looked up where a body is, and may still ask that device."""
    readers = broker.engine.keeping.readers
    return readers.oldest(device) < readers.next


# Which device is asked first is for their latency to say: it is another one than most of these.
@pytest.mark.parametrize("dropped", ["a", "b", "c"])
def test_a_copy_is_dropped_only_after_those_have_read_who_may_ask_for_it(
    tmp_path: Path, disks: Disks, dropped: str
) -> None:
    later = {"id": "L", "weight": 99, "device": dropped, "when": "IMPORTANCE > 5"}
    with open_broker(tmp_path, TO_A, TO_B, later, devices="abc") as broker:
        engine, found = broker.engine, list[reading.Body]()
        (receipt,) = broker.publish("q", [Message(BODY, importance=3, replicas=2)])
        name = name_of(*parse_id(receipt.id))
        wait_until_settled(broker, "moving")
        with engine.lock:
            engine.keeping.apply([engine.holdings.set_target(name, 3)])
            engine.keeping.apply([engine.keeping.ask(name, "c")])
        wait_until_settled(broker, "copying")
        assert holding(broker, receipt.id).copies == {"a", "b", "c"}
        shard = engine.catalog.shards[parse_id(receipt.id)[0]]
        reader = threading.Thread(
            target=lambda: found.extend(reading.read(engine, shard, [parse_id(receipt.id)[1]]))
        )
        with contextlib.ExitStack() as faults:
            ice = contextlib.ExitStack()
            for device in {"a", "b", "c"} - {dropped}:
                faults.enter_context(disks[device].being("failing"))
                ice.enter_context(disks[device].being("frozen"))
            with ice:
                with disks[dropped].being("frozen"):
                    reader.start()
                    wait_until(lambda: is_read(broker, dropped), "reading")
                    with engine.lock:
                        engine.keeping.apply([engine.holdings.set_target(name, 2)])
                        engine.keeping.apply([engine.holdings.drop_copy(name, dropped)])
                # What is asked for later is done, so the copy would have been deleted by now.
                for _ in range(2):
                    (more,) = broker.publish("q", [Message(b"later", importance=9)])
                    wait_until(
                        lambda each=more.id: holding(broker, each).copies == {dropped}, "copying"
                    )
            reader.join()
        (payload,) = found
        assert isinstance(payload, bytes)
        assert payload.endswith(BODY)
        wait_until(lambda: not holding(broker, receipt.id).dropping, "dropping")


def log_bytes(broker: Broker) -> int:
    with broker.engine.lock:
        return sum(segment.used_bytes for segment in broker.engine.journal.segments())


def test_a_damaged_record_about_copies_costs_no_message(tmp_path: Path, disks: Disks) -> None:
    bodies = {b"%d " % number + bytes(8_000) for number in range(300)}
    with open_broker(tmp_path, TO_A, devices="a") as broker:
        broker.publish("q", [Message(body) for body in sorted(bodies)])
        wait_until_settled(broker, "moving")
        # What follows has the log let go of what was before it.
        large = {b"%d " % number + bytes(600_000) for number in range(4)}
        broker.publish("q", [Message(body) for body in sorted(large)])
        wait_until_settled(broker, "moving")
        wait_until(lambda: log_bytes(broker) < 2_000_000, "compacting")
        uuid = broker.engine.directory.identity.uuid
    shutil.rmtree(tmp_path / "data" / "checkpoints")
    told = [
        item.position
        for item in scan.scan(FileDisk(tmp_path / "data" / "journal"), uuid)
        if isinstance(item, scan.Found) and item.header.kind == facts.HELD
    ]
    assert told
    for number, position in enumerate(told):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(tmp_path / "data", copy / "data")
        shutil.copytree(tmp_path / "a", copy / "a")
        segment = copy / "data" / "journal" / f"young-{position >> 32:010}.seg"
        with segment.open("r+b") as file:
            at = (position & 0xFFFFFFFF) + 44
            file.seek(at)
            changed = file.read(1)[0] ^ 1
            file.seek(at)
            file.write(bytes([changed]))
        with open_broker(copy, TO_A, devices="a") as broker:
            assert broker.health()["damage"]
            found: set[bytes] = set()
            wait_until(
                lambda broker=broker, found=found: (
                    found.update(lease.body for lease in broker.lease("q", 1_000))
                    or found == bodies | large
                ),
                "reading everything",
            )
