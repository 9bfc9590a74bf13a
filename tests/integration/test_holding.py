"""Messages on several devices: rules choose them, copies are made, moved, read and forgotten."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.core import lifecycle
from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import DeviceInUse, InvalidSpec, Overloaded, UnknownDevice
from ebbmq.holding.contract import Key
from ebbmq.limits import DAY_MS
from ebbmq.node.keeping import evicting, verbs
from ebbmq.node.outflow import parse_id
from ebbmq.policy.rules.spec import RuleSpec
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 30.0
ROOM = 64 << 20
DEVICES = {
    "ssd": {"kind": "file", "capacity_bytes": ROOM},
    "hdd": {"kind": "file", "capacity_bytes": ROOM},
    "ram": {"kind": "memory", "capacity_bytes": ROOM},
}
TEXT_TO_SSD = [{"id": "W-001", "weight": 90, "device": "ssd", "when": "TYPE == TEXT"}]


def open_broker(path: Path, *, rules=(), devices=DEVICES, **settings) -> Broker:
    return Broker.open(
        path / "data",
        {"devices": devices, "rules": list(rules), "upkeep_every_ms": 20, **settings},
    )


def until(is_so: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def holding(broker: Broker, message_id: str):
    with broker.engine.lock:
        return broker.engine.holdings.of(name_of(*parse_id(message_id)))


def is_on(broker: Broker, message_ids, *devices: str) -> Callable[[], bool]:
    def ask() -> bool:
        found = [holding(broker, each) for each in message_ids]
        return all(each.copies == set(devices) and not each.dropping for each in found)

    return ask


def is_forgotten(broker: Broker) -> Callable[[], bool]:
    def ask() -> bool:
        with broker.engine.lock:
            return not len(broker.engine.holdings) and not broker.engine.holdings.tombstones()

    return ask


def stored_on(broker: Broker, device: str) -> int:
    port = broker.engine.devices.ports[device]
    return len(port.scan(broker.engine.directory.identity.uuid).result())


def text(count: int, **fields) -> list[Message]:
    return [Message(b"text %d" % n, type="TEXT", **fields) for n in range(count)]


def ids(receipts) -> list[str]:
    return [receipt.id for receipt in receipts]


def test_a_rule_chooses_the_device_and_the_log_lets_go(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        chosen = ids(broker.publish("q", text(50)))
        others = ids(broker.publish("q", [Message(b"bytes")]))
        until(is_on(broker, chosen, "ssd"))
        assert holding(broker, others[0]).copies == {LOG}
        assert stored_on(broker, "ssd") == 50


def test_a_message_on_a_device_alone_is_delivered_and_acked_and_forgotten_there(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q", cache_enabled=False))
        chosen = ids(broker.publish("q", text(50, headers={"a": "b"})))
        until(is_on(broker, chosen, "ssd"))
        leases = broker.lease("q", 50)
        assert [lease.body for lease in leases] == [b"text %d" % n for n in range(50)]
        assert {lease.headers["a"] for lease in leases} == {"b"}
        broker.ack("q", [lease.token for lease in leases])
        until(is_forgotten(broker))
        assert stored_on(broker, "ssd") == 0


def test_a_message_on_a_device_alone_outlives_a_restart(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", text(20))), "ssd"))
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        assert [lease.body for lease in broker.lease("q", 50)] == [
            b"text %d" % n for n in range(20)
        ]


def test_without_its_device_a_message_waits_and_comes_when_the_device_is_back(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", text(3))), "ssd"))
    with Broker.open(tmp_path / "data") as broker:
        broker.publish("q", [Message(b"in the log")])
        assert [lease.body for lease in broker.lease("q", 10)] == [b"in the log"]
        assert broker.stats("q")["totals"]["damaged"] == 0
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        found: list[bytes] = []

        def lease() -> bool:
            found.extend(lease.body for lease in broker.lease("q", 10))
            return len(found) == 3

        until(lease)
        assert sorted(found) == [b"text 0", b"text 1", b"text 2"]


def test_the_confirm_of_a_queue_with_min_copies_waits_for_them(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", min_copies=2))
        for message_id in ids(broker.publish("q", [Message(b"%d" % n) for n in range(20)])):
            assert len(holding(broker, message_id).copies) == 2
        assert len(broker.lease("q", 20)) == 20


def test_a_dead_message_goes_to_its_queue_as_soon_as_its_body_is_brought(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {"devices": DEVICES, "rules": TEXT_TO_SSD}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(QueueSpec("dead", min_copies=2))
        broker.declare(QueueSpec("q", dead_queue="dead", max_attempts=1, cache_enabled=False))
        count, passed_ms = 300, 0
        until(is_on(broker, ids(broker.publish("q", text(count))), "ssd"))
        broker.retry("q", [lease.token for lease in broker.lease("q", count)])
        found: dict[str, bytes] = {}
        while len(found) < count:
            clock.advance(1)
            passed_ms += 1
            leases = broker.lease("dead", count)
            found.update({each.headers["x-ebbmq-source-id"]: each.body for each in leases})
            assert all(len(each.copies) >= 2 for each in leases)
            assert passed_ms < lifecycle.MOVE_AGAIN_MS
            time.sleep(0.001)
        assert sorted(found.values()) == sorted(message.body for message in text(count))


def test_size_is_that_of_the_body_whatever_headers_it_has(tmp_path: Path) -> None:
    small = [{"id": "S", "weight": 90, "device": "ssd", "when": "SIZE <= 1KiB"}]
    message = Message(bytes(1_024), headers={"long": "x" * 500}, key="k" * 200)
    with open_broker(tmp_path, rules=small) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", message)), "ssd"))
    with open_broker(tmp_path) as broker:
        message_ids = ids(broker.publish("q", message))
        until(is_on(broker, message_ids, LOG))
        broker.put_rule(RuleSpec(**small[0]))
        broker.apply_rules()
        until(is_on(broker, message_ids, "ssd"))


def test_what_was_only_written_can_be_leased_as_soon_as_it_has_its_copies(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q", min_copies=2))
        for _ in range(5):
            broker.publish("q", Message(b"m"), confirm="written")
            assert broker.stats("q")["depth"]["replicating"] == 0
            assert len(broker.lease("q")) == 1


def test_min_copies_that_cannot_be_had_are_refused_by_name(tmp_path: Path) -> None:
    with open_broker(tmp_path, devices={"ssd": DEVICES["ssd"]}) as broker:
        broker.declare(QueueSpec("q", min_copies=3))
        with pytest.raises(Overloaded, match="3 copies") as refusal:
            broker.publish("q", [Message(b"x")])
        assert refusal.value.code == "too_few_devices"
        assert broker.stats("q")["totals"]["published"] == 0


def test_as_many_copies_are_made_as_the_publisher_asked_for_on_distinct_devices(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        (receipt,) = broker.publish("q", [Message(b"x", replicas=3)])
        until(is_on(broker, [receipt.id], LOG, "hdd", "ssd"))


def test_a_durable_message_a_rule_sends_to_ram_also_stays_in_the_log(tmp_path: Path) -> None:
    to_ram = [{"id": "R", "weight": 50, "device": "ram", "when": "TYPE == TEXT"}]
    with open_broker(tmp_path, rules=to_ram) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", text(5))), "ram", LOG))
    with open_broker(tmp_path, rules=to_ram) as broker:
        assert len(broker.lease("q", 10)) == 5


def test_a_device_that_cannot_be_reached_is_not_chosen(tmp_path: Path) -> None:
    late = {"late": {"kind": "sql", "url": "postgresql://127.0.0.1:1/none"}}
    rules = [{"id": "L", "weight": 90, "device": "late", "when": "TYPE == TEXT"}]
    devices = {"late": {**late["late"], "capacity_bytes": ROOM}}
    with open_broker(tmp_path, rules=rules, devices=devices) as broker:
        broker.declare(QueueSpec("q"))
        chosen = ids(broker.publish("q", text(5)))
        assert {holding(broker, each).copies for each in chosen} == {frozenset({LOG})}
        assert len(broker.lease("q", 5)) == 5


def test_the_space_of_what_the_log_let_go_of_comes_back(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=256 << 10) as broker:
        broker.declare(QueueSpec("q"))
        bodies = [Message(bytes(4_000), type="TEXT") for _ in range(500)]
        chosen = ids(broker.publish("q", bodies))
        until(is_on(broker, chosen, "ssd"))

        def log_bytes() -> int:
            with broker.engine.lock:
                return sum(segment.used_bytes for segment in broker.engine.journal.segments())

        broker.publish("q", [Message(bytes(200_000)) for _ in range(3)])
        until(lambda: log_bytes() < 1_500_000)
        assert len(broker.lease("q", 600)) == 503
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=256 << 10) as broker:
        depth = broker.stats("q")["depth"]
        assert depth["ready"] + depth["leased"] == 503


@pytest.mark.parametrize("keep_checkpoints", [True, False])
def test_where_bodies_are_is_known_with_and_without_a_checkpoint(
    tmp_path: Path, *, keep_checkpoints: bool
) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=256 << 10) as broker:
        broker.declare(QueueSpec("q"))
        bodies = [Message(b"%d " % n + bytes(2_000), type="TEXT") for n in range(600)]
        until(is_on(broker, ids(broker.publish("q", bodies)), "ssd"))
        half = broker.lease("q", 300)
        broker.ack("q", [lease.token for lease in half], confirm="synced")
        until(lambda: broker.engine.holdings.tombstones() == 0)
    if not keep_checkpoints:
        for file in (tmp_path / "data" / "checkpoints").iterdir():
            file.unlink()
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=256 << 10) as broker:
        left = broker.lease("q", 600)
        assert [lease.body.split()[0] for lease in left] == [b"%d" % n for n in range(300, 600)]


def test_a_dead_letter_is_fetched_from_its_device(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("dead"))
        broker.declare(QueueSpec("q", max_attempts=1, dead_queue="dead", cache_enabled=False))
        until(is_on(broker, ids(broker.publish("q", text(2))), "ssd"))
        broker.retry("q", [lease.token for lease in broker.lease("q", 2)])
        until(lambda: broker.stats("dead")["depth"]["ready"] == 2)
        assert {seen.body for seen in broker.peek("dead")} == {b"text 0", b"text 1"}
        assert broker.redrive("dead", to="q") == 2
        assert {lease.body for lease in broker.lease("q", 2)} == {b"text 0", b"text 1"}


def test_purging_or_deleting_a_queue_forgets_its_copies(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        for name in ("purged", "deleted"):
            broker.declare(QueueSpec(name))
            until(is_on(broker, ids(broker.publish(name, text(5))), "ssd"))
        broker.purge("purged")
        broker.delete("deleted")
        until(is_forgotten(broker))
        assert stored_on(broker, "ssd") == 0


def test_a_copy_its_device_has_lost_is_found_out_at_the_start_and_made_anew(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        receipts = broker.publish("q", [Message(b"x", replicas=3)])
        until(is_on(broker, ids(receipts), LOG, "hdd", "ssd"))
        pid, seq = parse_id(receipts[0].id)
        key = Key(broker.engine.directory.identity.uuid, pid, seq)
        broker.engine.devices.ports["ssd"].delete([key]).result()
    with open_broker(tmp_path) as broker:
        until(lambda: stored_on(broker, "ssd") == 1)
        until(is_on(broker, ids(receipts), LOG, "hdd", "ssd"))


def test_a_copy_of_a_message_that_left_is_deleted_when_it_is_found_and_no_other(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        gone, there = broker.publish("q", [Message(b"gone"), Message(b"there")])
        broker.ack("q", [lease.token for lease in broker.lease("q", 1)])
        store = broker.engine.directory.identity.uuid
    from ebbmq.holding.contract import Copy  # noqa: PLC0415

    with open_broker(tmp_path) as broker:
        port = broker.engine.devices.ports["ssd"]
        # Of a message that left, of one that is there, and of two that nothing tells of.
        keys = [Key(store, *parse_id(gone.id)), Key(store, *parse_id(there.id))]
        keys += [Key(store, 1, 999), Key(store, 77, 1)]
        port.put([Copy(key, b"stray", 0) for key in keys]).result()
        port.put([Copy(Key(bytes(16), 1, 999), b"of another store", 0)]).result()
    with open_broker(tmp_path) as broker:
        until(lambda: stored_on(broker, "ssd") == 3)
        port = broker.engine.devices.ports["ssd"]
        assert {each.key for each in port.scan(store).result()} == set(keys[1:])
        assert next(each for each in broker.devices() if each.name == "ssd").unclaimed == 3
        assert len(port.scan(bytes(16)).result()) == 1


def test_a_device_that_answers_is_not_evicted_unless_it_is_forced(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        for name, error in (("ssd", DeviceInUse), ("tape", UnknownDevice), (LOG, InvalidSpec)):
            with pytest.raises(error):
                evicting.evict(broker.engine, name)


def test_evicting_a_device_makes_copies_elsewhere_and_what_it_alone_had_is_on_record(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        alone = ids(broker.publish("q", text(3)))
        until(is_on(broker, alone, "ssd"))
        twice = ids(broker.publish("q", text(3, replicas=2)))
        until(is_on(broker, twice, "ssd", LOG))
        told = evicting.evict(broker.engine, "ssd", force=True, drain=False)
        assert (told.device, told.copies, told.messages_lost) == ("ssd", 6, 3)
        assert {removal.id for removal in broker.removals("q", reason="lost")} == set(alone)
        until(lambda: all(len(holding(broker, each).copies) == 2 for each in twice))
        assert {lease.id for lease in broker.lease("q", 10)} == set(twice)
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        assert sum(broker.stats("q")["depth"].values()) == 3


def decided(broker: Broker, message_id: str) -> list[tuple[str, str, str]]:
    told = broker.why(message_id)["decisions"]
    return [(each["event"], each["device"], each["reason"]) for each in told]


def test_a_device_that_is_given_up_and_the_copy_made_instead_are_told_with_their_reason(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        (chosen,) = ids(broker.publish("q", text(1, replicas=2)))
        until(is_on(broker, [chosen], LOG, "ssd"))
    left = {"hdd": DEVICES["hdd"]}
    with open_broker(tmp_path, devices=left) as broker:
        evicting.evict(broker.engine, "ssd")
        until(is_on(broker, [chosen], LOG, "hdd"))
        assert decided(broker, chosen) == [
            ("placed", "ssd, log", "rule W-001; log as the message wants 2 copies"),
            ("copied", "ssd", "replica"),
            ("lost", "ssd", "evicted"),
            ("asked", "hdd", "repair"),
            ("copied", "hdd", "repair"),
        ]


def test_a_copy_that_is_missing_and_one_that_is_beyond_the_target_are_told_with_their_reason(
    tmp_path: Path,
) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        (chosen,) = ids(broker.publish("q", [Message(b"x", replicas=3)]))
        until(is_on(broker, [chosen], LOG, "hdd", "ssd"))
        before, keeper = len(decided(broker, chosen)), broker.engine.keeping
        name = name_of(*parse_id(chosen))
        with broker.engine.lock:
            keeper.copies_lost("ssd", [name])
        until(is_on(broker, [chosen], LOG, "hdd", "ssd"))
        with broker.engine.lock:
            keeper.apply([keeper.ask(name, "ram")])

        def is_spared() -> bool:
            # Once it is there; unless who compares devices was quicker.
            with broker.engine.lock:
                keeper.spare([name])
            return decided(broker, chosen)[-1][0] == "dropped"

        until(is_spared)
        *told, spared = decided(broker, chosen)[before:]
        assert told == [
            ("lost", "ssd", "missing"),
            ("asked", "ssd", "repair"),
            ("copied", "ssd", "repair"),
            ("copied", "ram", "replica"),
        ]
        assert (spared[0], spared[2]) == ("dropped", "spare")


def test_a_new_rule_moves_nothing_that_is_stored_unless_it_is_applied(tmp_path: Path) -> None:
    with open_broker(tmp_path) as broker:
        broker.declare(QueueSpec("q"))
        stored = ids(broker.publish("q", text(700)))
        others = ids(broker.publish("q", [Message(b"bytes")]))
    seen: list[tuple[int, int]] = []
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        fresh = ids(broker.publish("q", text(1)))
        until(is_on(broker, fresh, "ssd"))
        assert {holding(broker, each).copies for each in stored} == {frozenset({LOG})}
        moved = verbs.apply_rules(broker.engine, lambda done, total: seen.append((done, total)))
        assert moved == 700
        until(is_on(broker, stored, "ssd"))
        assert holding(broker, others[0]).copies == {LOG}
        assert seen[-1] == (702, 702)
        assert verbs.apply_rules(broker.engine) == 0


def test_devices_say_how_many_copies_they_have(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", text(7))), "ssd"))
        broker.publish("q", [Message(b"bytes")] * 2)
        found = {each.name: (each.copies, each.moves) for each in broker.engine.devices.describe()}
        assert found == {LOG: (2, 0), "ssd": (7, 0), "hdd": (0, 0), "ram": (0, 0)}


def test_a_lease_a_peek_and_why_show_how_a_message_is_kept(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD) as broker:
        broker.declare(QueueSpec("q", score_base=3.0, score_per_day=0.0))
        (chosen,) = ids(broker.publish("q", text(1, replicas=2)))
        until(is_on(broker, [chosen], "ssd", LOG))
        (seen,) = broker.peek("q")
        (lease,) = broker.lease("q")
        assert seen.kept == lease.kept
        assert (lease.copies, lease.copies_acked, lease.replica_target) == (("log", "ssd"), 2, 2)
        assert (lease.tier, lease.access_count, lease.removals_acked) == ("log", 0, 0)
        assert lease.decay_score == pytest.approx(3.0)
        told = broker.why(chosen)
        assert told["copies"] == ("log", "ssd")
        assert [each["event"] for each in told["decisions"]] == ["placed", "copied"]
        assert "W-001" in told["decisions"][0]["reason"]
        broker.ack("q", [lease.token])
        until(lambda: "removals_waiting" not in broker.why(chosen))
        assert broker.why(chosen)["state"] == "gone"


def test_without_devices_the_same_is_shown_of_how_a_message_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        broker.declare(QueueSpec("q", retry_delay_ms=0))
        broker.publish("q", [Message(b"x", headers={"a": "b"}), *[Message(b"x")] * 30])
        clock.advance(2 * DAY_MS)
        leases = [*broker.lease("q"), *broker.lease("q"), *broker.lease("q", 20)]
        broker.retry("q", [lease.token for lease in leases])
        shown = [*leases, *broker.peek("q", 31)]
        assert {(each.access_rate, each.decay_score, each.tier) for each in shown} == {
            (0.0, 2.0, "log")
        }
        assert {
            (each.copies, each.copies_acked, each.removals_acked, each.replica_target)
            for each in shown
        } == {(("log",), 1, 0, 1)}
        assert [lease.access_count for lease in broker.lease("q", 31)] == [0] * 9 + [1] * 22
        told = broker.why(leases[0].id)
        assert (told["decay_score"], told["tier"], told["access_count"]) == (2.0, "log", 2)


def test_what_is_published_to_a_topic_gets_a_copy_for_each_subscription(tmp_path: Path) -> None:
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=128 << 10) as broker:
        broker.declare_topic(TopicSpec("news"))
        for name in ("a", "b"):
            broker.declare(QueueSpec(name))
            broker.subscribe("news", name)
        told = broker.publish_topic("news", [Message(bytes(3_000), type="TEXT")] * 100)
        for name in ("a", "b"):
            until(is_on(broker, ids(told[name]), "ssd"))
        leases = broker.lease("a", 100)
        broker.ack("a", [lease.token for lease in leases])
        until(lambda: stored_on(broker, "ssd") == 100)
    with open_broker(tmp_path, rules=TEXT_TO_SSD, segment_bytes=128 << 10) as broker:
        assert [lease.body for lease in broker.lease("b", 200)] == [bytes(3_000)] * 100
        assert broker.lease("a") == []


def test_who_may_not_read_a_device_is_not_given_what_only_it_has(tmp_path: Path) -> None:
    secret = {"ssd": {**DEVICES["ssd"], "readers": ["auditor"]}}
    with open_broker(tmp_path, rules=TEXT_TO_SSD, devices=secret) as broker:
        broker.declare(QueueSpec("q"))
        until(is_on(broker, ids(broker.publish("q", text(3))), "ssd"))
        broker.publish("q", [Message(b"for all")])
        assert [lease.body for lease in broker.lease("q", 1)] == [b"for all"]
        assert broker.lease("q", 10) == []
        assert broker.stats("q")["depth"]["ready"] == 3
        assert sum(broker.stats("q")["depth"].values()) == 4
    with open_broker(tmp_path, rules=TEXT_TO_SSD, devices=secret, client="auditor") as broker:
        found = [(lease.body, lease.attempt) for lease in broker.lease("q", 10)]
        assert found == [(b"text 0", 1), (b"text 1", 1), (b"text 2", 1)]
