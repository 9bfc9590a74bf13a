"""What rules know of a message is kept with it: rules asked again choose as they did at intake."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, Properties, QueueSpec, RuleSpec, TopicSpec
from ebbmq.core.row import RELOCATED
from ebbmq.limits import DAY_MS
from ebbmq.node.outflow import parse_id
from ebbmq.node.server.users import Users
from ebbmq.testing import ManualClock
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOM = 64 << 20
DEVICES = {
    "log": {"tier": "fast"},
    "hdd": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
    "old": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
    "mem": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
}
BY_ORIGIN = [
    RuleSpec("level", 9, "hdd", "QOS == written"),
    RuleSpec("low", 9, "mem", "QOS == memory"),
    RuleSpec("topic", 10, "old", "DESTINATION == TOPIC"),
]
FADING = {"score_per_day": 10.0, "score_medium": 20.0, "tiers": ("fast", "slow", "none")}


def open_broker(
    path: Path, rules: list[RuleSpec] | None = None, clock: ManualClock | None = None
) -> Broker:
    config = {"devices": DEVICES, "upkeep_every_ms": 20}
    broker = Broker.open(path, config, clock)
    broker.put_rules(rules or [], others="remove")
    return broker


def copies(broker: Any, message_id: str) -> list[str]:
    return sorted(broker.why(message_id)["copies"])


def until_on(broker: Any, wanted: dict[str, str]) -> None:
    def are_there() -> bool:
        told = {each: broker.why(each) for each in wanted}
        return all(
            list(told[each]["copies"]) == [device] and "moving" not in told[each]
            for each, device in wanted.items()
        )

    wait_until(are_there, f"{wanted}")


def published(broker: Any) -> dict[str, str]:
    """One message of each origin, by the device `BY_ORIGIN` chooses for it."""
    broker.declare(QueueSpec("q"))
    broker.declare_topic(TopicSpec("news"))
    broker.subscribe("news", "q")
    one = Message(b"x" * 100)
    many = [Message(b"y", headers={"a": "b"})]
    found = {receipt.id: "log" for receipt in broker.publish("q", one)}
    found |= {receipt.id: "hdd" for receipt in broker.publish("q", one, confirm="written")}
    found |= {receipt.id: "hdd" for receipt in broker.publish("q", many, confirm="written")}
    found |= {receipt.id: "mem" for receipt in broker.publish("q", one, confirm="memory")}
    topic = broker.publish_topic("news", one, confirm="written")["q"]
    return found | {receipt.id: "old" for receipt in topic}


# QOS and DESTINATION


def test_rules_asked_again_know_how_a_message_was_published(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", BY_ORIGIN) as broker:
        wanted = published(broker)
        until_on(broker, wanted)
        assert broker.apply_rules() == 0
        broker.put_rules([], others="remove")
        assert broker.apply_rules() == 4
        until_on(broker, dict.fromkeys(wanted, "log"))
        broker.put_rules(BY_ORIGIN)
        assert broker.apply_rules() == 4
        until_on(broker, wanted)


def restart(broker: Broker, path: Path) -> Path:
    broker.close()
    return path


def kill(broker: Broker, path: Path) -> Path:
    journal = broker.engine.journal
    journal.wait("synced", journal.position)
    shutil.copytree(path, path.with_name("killed"))
    broker.close()
    return path.with_name("killed")


def restore(broker: Broker, path: Path) -> Path:
    broker.backup(path.with_name("backup"))
    broker.close()
    return path.with_name("backup")


def relocate(broker: Broker, path: Path) -> Path:
    """Have the segments emptied that they are in, by publishing and consuming more."""
    rows = broker.engine.catalog.queues["q"].shards[0].partition.index

    def are_relocated() -> bool:
        broker.publish("fill", [Message(bytes(4_000)) for _ in range(50)], confirm="written")
        tokens = [lease.token for lease in broker.lease("fill", 50)]
        broker.ack("fill", tokens)
        found = [parse_id(each.id)[1] for each in broker.peek("q", 10)]
        with broker.engine.lock:
            return all((row := rows.read(seq)) and row[1] & RELOCATED for seq in found)

    broker.declare(QueueSpec("fill"))
    wait_until(are_relocated, "the messages in the old generation")
    broker.close()
    return path


@pytest.mark.parametrize("away", [restart, kill, restore, relocate])
def test_how_a_message_was_published_is_kept(
    tmp_path: Path, away: Callable[[Broker, Path], Path]
) -> None:
    # Without devices, where one message goes a shorter way.
    settings = {"segment_bytes": 256 << 10, "upkeep_every_ms": 20}
    broker = Broker.open(tmp_path / "data", settings)
    wanted = published(broker)
    path = away(broker, tmp_path / "data")
    with open_broker(path, BY_ORIGIN) as broker:
        assert broker.apply_rules() == 4
        until_on(broker, wanted)


def test_how_a_message_was_published_is_kept_in_the_dead_queue_and_back(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q", max_attempts=1, dead_queue="dead"))
        broker.declare_topic(TopicSpec("news"))
        broker.subscribe("news", "q")
        broker.publish("q", [Message(b"hdd")], confirm="written")
        broker.publish("q", [Message(b"log")], confirm="synced")
        broker.publish_topic("news", [Message(b"old")])
        broker.retry("q", [lease.token for lease in broker.lease("q", 3)])
        wait_until(lambda: broker.stats("dead")["depth"]["ready"] == 3, "dead letters")

        def by_body(queue: str) -> dict[str, str]:
            return {each.id: each.body.decode() for each in broker.peek(queue, 3)}

        broker.put_rules(BY_ORIGIN)
        assert broker.apply_rules() == 2
        until_on(broker, by_body("dead"))
        assert broker.redrive("dead") == 3
        assert len(by_body("q")) == 3
        until_on(broker, by_body("q"))


def test_a_rule_about_the_level_and_the_age_holds_at_a_crossing(tmp_path: Path) -> None:
    clock = ManualClock()
    rules = [
        RuleSpec("level", 9, "old", "QOS == synced AND AGE > 1"),
        RuleSpec("topic", 10, "mem", "DESTINATION == TOPIC AND AGE > 1"),
    ]
    with open_broker(tmp_path / "data", rules, clock) as broker:
        broker.declare(QueueSpec("q", **FADING))
        broker.declare_topic(TopicSpec("news"))
        broker.subscribe("news", "q")
        [synced] = broker.publish("q", [Message(b"x")])
        [written] = broker.publish("q", [Message(b"x")], confirm="written")
        [topic] = broker.publish_topic("news", [Message(b"x")])["q"]
        assert [copies(broker, each.id) for each in (synced, written, topic)] == [["log"]] * 3
        clock.advance(3 * DAY_MS)
        until_on(broker, {synced.id: "old", written.id: "hdd", topic.id: "mem"})


# PRODUCER and CONSUMER


def test_a_producer_is_who_published_a_message(tmp_path: Path) -> None:
    rules = [
        RuleSpec("bank", 9, "hdd", "PRODUCER == bank"),
        RuleSpec("own", 9, "old", "PRODUCER == cellar"),
    ]
    users = Users(tmp_path / "data")
    devices = {
        name: {"kind": "file", "directory": str(tmp_path / name), "capacity_bytes": ROOM}
        for name in ("hdd", "old")
    }
    with Served(tmp_path / "data", devices=devices, client="cellar") as served:
        broker = served.broker
        broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
        broker.put_rules(rules)

        def publish(name: str) -> str:
            token = {"authorization": f"Bearer {users.add(name, {'publish': ('*',)})}"}
            body = {"messages": [{"text": name, "headers": {"PRODUCER": "bank"}}]}
            answer = served.ask("POST", "/v1/queues/work/messages", body, token)
            return str(answer.json["receipts"][0]["id"])

        bank, shop = publish("bank"), publish("shop")
        own = broker.publish("work", [Message(b"own")])[0].id
        until_on(broker, {bank: "hdd", own: "old", shop: "log"})
        assert broker.apply_rules() == 0
        leases = broker.lease("work", 3)
        broker.retry("work", [lease.token for lease in leases])
        wait_until(lambda: broker.stats("dead")["depth"]["ready"] == 3, "dead letters")
        by_body = {each.body: each.id for each in broker.peek("dead", 3)}
        until_on(broker, {by_body[b"bank"]: "hdd", by_body[b"own"]: "old", by_body[b"shop"]: "log"})
        for asked, chosen in ((None, "old"), ("bank", "hdd"), ("shop", "log")):
            assert broker.explain_rules(Properties(producer=asked)).chosen == (chosen,)
        # Who is asked for as the client is the producer, too.
        assert broker.explain_rules(Properties(client_id="bank")).chosen == ("hdd",)


def test_a_consumer_is_who_last_leased_from_the_queue(tmp_path: Path) -> None:
    rules = [
        RuleSpec("bank", 9, "hdd", "CONSUMER == bank"),
        RuleSpec("own", 9, "old", "CONSUMER == cellar"),
    ]
    users = Users(tmp_path / "data")
    devices = {
        name: {"kind": "file", "directory": str(tmp_path / name), "capacity_bytes": ROOM}
        for name in ("hdd", "old")
    }

    def published(served: Served, queue: str = "work") -> str:
        return str(served.broker.publish(queue, [Message(b"x")])[0].id)

    with Served(tmp_path / "data", devices=devices, client="cellar") as served:
        broker = served.broker
        broker.declare(QueueSpec("work"))
        broker.declare(QueueSpec("other"))
        broker.put_rules(rules)
        first = published(served)
        until_on(broker, {first: "log"})
        token = {"authorization": f"Bearer {users.add('bank', {'consume': ('*',)})}"}
        taken = served.ask("POST", "/v1/queues/work/leases", {}, token)
        assert len(taken.json["leases"]) == 1
        # Nobody is a consumer by asking an empty queue.
        assert broker.lease("work") == []
        second = published(served)
        until_on(broker, {second: "hdd", published(served, "other"): "log"})
        assert broker.explain_rules(Properties(queue="work")).chosen == ("hdd",)
        assert broker.explain_rules(Properties(queue="other")).chosen == ("log",)
        assert broker.explain_rules(Properties(queue="work", consumer="x")).chosen == ("log",)
        # What was there before is asked about when rules are applied to what is stored.
        assert broker.apply_rules() == 1
        until_on(broker, {first: "hdd"})
        assert len(broker.lease("work")) == 1
        until_on(broker, {published(served): "old"})
    with Served(tmp_path / "data", devices=devices, client="cellar") as served:
        until_on(served.broker, {published(served): "old"})


# ACCESS_RATE and AGE


def read(broker: Broker, times: int = 1) -> None:
    for _ in range(times):
        broker.release("q", [lease.token for lease in broker.lease("q", 1)])


def rate(broker: Broker) -> float | None:
    return broker.peek("q", 1)[0].access_rate


def test_reads_are_counted_as_soon_as_a_rule_asks_for_them(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        [hot] = broker.publish("q", [Message(b"x")])
        read(broker)
        assert rate(broker) == 0.0
        broker.put_rule(RuleSpec("hot", 9, "hdd", "ACCESS_RATE >= 2"))
        read(broker)
        assert rate(broker) == pytest.approx(1.0, abs=0.01)
        assert broker.apply_rules() == 0
        read(broker)
        assert broker.peek("q", 1, counted=True)
        assert rate(broker) == pytest.approx(3.0, abs=0.01)
    with open_broker(tmp_path / "data", [RuleSpec("hot", 9, "hdd", "ACCESS_RATE > 2")]) as broker:
        assert rate(broker) == pytest.approx(3.0, abs=0.01)
        [cold] = broker.publish("q", [Message(b"y")])
        assert broker.apply_rules() == 1
        until_on(broker, {hot.id: "hdd", cold.id: "log"})
        broker.put_rules([], others="remove")
        read(broker)
        assert rate(broker) == pytest.approx(3.0, abs=0.01)


def test_a_lease_that_failed_is_no_read(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", [RuleSpec("hot", 9, "hdd", "ACCESS_RATE > 9")]) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"x")])
        broker.retry("q", [lease.token for lease in broker.lease("q")], delay_ms=0)
        assert rate(broker) == pytest.approx(0.0, abs=0.01)
        assert len(broker.lease("q")) == 1
        assert len(broker.engine.catalog.queues["q"].shards[0].partition.accesses) == 1


def test_what_was_acked_takes_no_room_among_the_reads(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", [RuleSpec("hot", 9, "hdd", "ACCESS_RATE > 9")]) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"x") for _ in range(300)])
        accesses = broker.engine.catalog.queues["q"].shards[0].partition.accesses
        leases = [*broker.lease("q", 1), *broker.lease("q", 299)]
        assert len(accesses) == 300
        broker.ack("q", [lease.token for lease in leases])
        assert len(accesses) == 0


def test_a_rule_about_reads_holds_at_a_crossing(tmp_path: Path) -> None:
    clock = ManualClock()
    rules = [RuleSpec("hot", 9, "old", "ACCESS_RATE > 0.01 AND AGE > 1")]
    with open_broker(tmp_path / "data", rules, clock) as broker:
        broker.declare(QueueSpec("q", **FADING))
        hot, cold = (each.id for each in broker.publish("q", [Message(b"x"), Message(b"y")]))
        read(broker, 3)
        clock.advance(3 * DAY_MS)
        until_on(broker, {hot: "old", cold: "hdd"})


def test_rules_applied_to_what_is_stored_know_its_age(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_broker(tmp_path / "data", [RuleSpec("old", 9, "old", "AGE > 2d")], clock) as broker:
        broker.declare(QueueSpec("q"))
        [before] = broker.publish("q", [Message(b"x")])
        clock.advance(3 * DAY_MS)
        [after] = broker.publish("q", [Message(b"x")])
        assert broker.apply_rules() == 1
        until_on(broker, {before.id: "old", after.id: "log"})


def test_rules_applied_to_what_is_stored_leave_a_faded_message_on_its_tier(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_broker(tmp_path / "data", clock=clock) as broker:
        broker.declare(QueueSpec("q", **FADING))
        [before] = broker.publish("q", [Message(b"x")])
        clock.advance(3 * DAY_MS)
        until_on(broker, {before.id: "hdd"})
        [after] = broker.publish("q", [Message(b"x")])
        assert broker.apply_rules() == 0
        broker.put_rule(RuleSpec("all", 9, "old"))
        assert broker.apply_rules() == 2
        until_on(broker, {before.id: "old", after.id: "old"})
        broker.put_rule(RuleSpec("all", 9, "log"))
        broker.apply_rules()
        # The log is of another tier.
        until_on(broker, {after.id: "log"})
        assert "log" not in copies(broker, before.id)
