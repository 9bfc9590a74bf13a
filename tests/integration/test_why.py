"""Everything about one message: what is shown of it, and the decisions behind its copies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Client, Message, QueueSpec
from ebbmq.errors import InvalidMessage
from ebbmq.limits import DAY_MS
from ebbmq.node.server.users import Users
from ebbmq.testing import ManualClock
from tests.feeds import rows_of
from tests.served import Served
from tests.serving import Running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOM = 64 << 20
DEVICES = {
    "log": {"tier": "fast"},
    "ssd": {"kind": "file", "capacity_bytes": ROOM, "tier": "fast"},
    "hdd": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
    "cold": {"kind": "object", "directory": "cold", "capacity_bytes": ROOM, "tier": "archive"},
}
TO_SSD = {"id": "W-001", "weight": 90, "device": "ssd", "when": "TYPE == TEXT"}
CONFIG: dict[str, Any] = {"devices": DEVICES, "rules": [TO_SSD], "upkeep_every_ms": 20}
FADING: dict[str, Any] = {
    "score_per_day": 10.0,
    "score_medium": 20.0,
    "score_high": 50.0,
    "tiers": ("fast", "slow", "archive"),
}
COMMAND = [sys.executable, "-m", "ebbmq.cli"]

#: What a lease and a peek show of a message; the last eight with devices beside the log.
SHOWN = (
    "id", "headers", "attempt", "failures", "importance", "current_importance", "band", "ttl_ms",
    "decay_rate", "enqueued_at_ms", "deadline_ms", "latency_history",
    "access_count", "access_rate", "decay_score", "tier", "copies", "copies_acked",
    "removals_acked", "replica_target",
)  # fmt: skip


def ebbmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def toml(path: Path) -> Path:
    lines = ["upkeep_every_ms = 20"]
    for name, given in DEVICES.items():
        lines.append(f"[devices.{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    lines += ["[[rules]]", *(f"{key} = {json.dumps(value)}" for key, value in TO_SSD.items())]
    path.write_text("\n".join(lines))
    return path


def are_on(broker: Any, message_ids: list[str], *devices: str) -> Callable[[], bool]:
    return lambda: all(sorted(broker.why(each)["copies"]) == list(devices) for each in message_ids)


def decided(broker: Any, message_id: str) -> list[tuple[str, str, str]]:
    told = broker.why(message_id)["decisions"]
    return [(each["event"], each["device"], each["reason"]) for each in told]


def test_all_that_is_known_of_a_message_is_on_its_lease_its_peek_and_when_asked_by_id(
    tmp_path: Path,
) -> None:
    with Served(tmp_path / "data", **CONFIG) as served:
        broker = served.broker
        broker.declare(QueueSpec("tasks", retry_delay_ms=0, score_access_bonus=1.0))
        told = {"importance": 7, "ttl_ms": 3_600_000, "decay_rate": 0.5, "headers": {"a": "b"}}
        (sent,) = broker.publish("tasks", [Message(b"x", type="TEXT", replicas=2, **told)])
        wait_until(are_on(broker, [sent.id], "log", "ssd"), "copying")
        with Client(f"http://127.0.0.1:{served.port}") as client:
            for face in (broker, client):
                (failed,) = face.lease("tasks")
                face.retry("tasks", [failed.token])
            for face in (broker, client):
                peeked, by_id = face.peek("tasks")[0], face.why(sent.id)
                (lease,) = face.lease("tasks")
                asked_again = face.why(sent.id)
                assert lease.token
                assert (lease.body, peeked.body) == (b"x", b"x")
                for name in SHOWN:
                    assert name in by_id, name
                    getattr(lease, name), getattr(peeked, name)
                for name in ("id", "failures", "importance", "ttl_ms", "decay_rate", "tier"):
                    assert getattr(lease, name) == getattr(peeked, name) == by_id[name], name
                assert (lease.attempt, asked_again["attempt"]) == (peeked.attempt + 1,) * 2
                assert lease.deadline_ms == asked_again["deadline_ms"]
                assert dict(lease.headers) == dict(peeked.headers) == by_id["headers"] == {"a": "b"}
                assert list(peeked.copies) == list(by_id["copies"]) == ["log", "ssd"]
                assert (peeked.band, by_id["band"]) == (7, 7)
                assert len(lease.latency_history) == len(by_id["latency_history"]) == 2
                assert (lease.copies_acked, lease.removals_acked, lease.replica_target) == (2, 0, 2)
                assert lease.access_count == peeked.access_count + 1 or lease.access_count >= 2
                face.release("tasks", [lease.token])
        raw = served.ask("GET", f"/v1/messages/{sent.id}").json
        assert set(SHOWN) <= set(raw)
        assert raw["latency_history"][0][1:2] == [1]
        peeked_raw = served.ask("GET", "/v1/queues/tasks/messages").json["messages"][0]
        leased_raw = served.ask("POST", "/v1/queues/tasks/leases", {}).json["leases"][0]
        assert set(SHOWN) | {"state"} <= set(peeked_raw)
        assert set(SHOWN) | {"token"} <= set(leased_raw)


def test_headers_are_told_only_to_who_may_lease_the_message(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        (sent,) = served.broker.publish("q", [Message(b"x", headers={"secret": "yes"})])
        users = Users(tmp_path / "data")
        tokens = {
            "consumer": users.add("consumer", {"consume": ("q",)}),
            "publisher": users.add("publisher", {"publish": ("q",)}),
            "stranger": users.add("stranger", {"publish": ("other",)}),
        }
        found = {
            who: served.ask(
                "GET", f"/v1/messages/{sent.id}", headers={"authorization": f"Bearer {token}"}
            ).json
            for who, token in tokens.items()
        }
    assert found["consumer"]["headers"] == {"secret": "yes"}
    assert (found["publisher"]["state"], found["publisher"]["headers"]) == ("ready", None)
    assert (found["stranger"]["state"], "headers" in found["stranger"]) == ("unknown", False)


def test_the_decisions_behind_copies_outlive_restarts_and_are_told_in_words(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with Broker.open(tmp_path / "data", CONFIG, clock) as broker:
        broker.declare(QueueSpec("q", **FADING))
        (sent,) = broker.publish("q", [Message(b"x", type="TEXT", replicas=2)])
        wait_until(are_on(broker, [sent.id], "log", "ssd"), "copying")
    with Broker.open(tmp_path / "data", CONFIG, clock) as broker:
        clock.advance(round(5.5 * DAY_MS))
        wait_until(are_on(broker, [sent.id], "cold"), "archiving")
        wait_until(lambda: "moving" not in broker.why(sent.id), "dropping")
    with Broker.open(tmp_path / "data", CONFIG, clock) as broker:
        told = broker.why(sent.id)["decisions"]
        assert [(each["event"], each["device"]) for each in told] == [
            ("placed", "ssd, log"),
            ("copied", "ssd"),
            ("archived", "cold"),
            ("dropped", "log"),
            ("dropped", "ssd"),
            ("copied", "cold"),
            ("moved", "cold"),
            ("moved", "cold"),
        ]
        assert [each["at_ms"] for each in told] == sorted(each["at_ms"] for each in told)
        assert (
            told[0]["text"] == "placed on ssd, log: rule W-001; log as the message wants 2 copies"
        )
        assert told[1]["text"] == "copied to ssd: one more copy beside the others"
        assert told[2]["text"].startswith("cold was asked for a copy, as its archive: faded, score")
        assert {told[6]["text"], told[7]["text"]} == {
            "moved from log to cold",
            "moved from ssd to cold",
        }


def test_decisions_that_were_told_of_outlive_a_kill(tmp_path: Path) -> None:
    config = toml(tmp_path / "ebbmq.toml")
    with (
        Running(tmp_path / "data", "--config", str(config)) as server,
        Client(server.url) as client,
    ):
        client.declare(QueueSpec("q"))
        (sent,) = client.publish("q", [Message(b"x", type="TEXT")])
        wait_until(are_on(client, [sent.id], "ssd"), "moving")
        before = client.why(sent.id)["decisions"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    assert [each["event"] for each in before] == ["placed", "copied", "moved"]
    with Broker.open(tmp_path / "data", config) as broker:
        # What the journal had not written yet is done, and told, again.
        assert broker.why(sent.id)["decisions"][: len(before)] == before


def test_every_kind_of_decision_is_in_the_lake_with_its_reason_and_told_of_its_message(
    tmp_path: Path,
) -> None:
    clock, lake = ManualClock(), tmp_path / "lake"
    config = {**CONFIG, "feed": {"lake": str(lake), "every_ms": 50}}
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(QueueSpec("q", **FADING))
        messages = [Message(b"x%d" % n, type="TEXT", replicas=2) for n in range(3)]
        sent = [each.id for each in broker.publish("q", messages)]
        wait_until(are_on(broker, sent, "log", "ssd"), "copying")
        told = broker.evict_device("ssd", force=True)
        assert told.copies == 3
        wait_until(lambda: all(len(broker.why(each)["copies"]) == 2 for each in sent), "mending")
        clock.advance(round(5.5 * DAY_MS))
        wait_until(are_on(broker, sent, "cold"), "archiving")
        by_message = {each: decided(broker, each) for each in sent}
        clock.advance(1_000)
    rows = [row for row in rows_of(lake) if row["device"] is not None]
    for message_id in sent:
        events = [
            (row["event"], row["device"], row["reason"])
            for row in rows
            if row["message_id"] == message_id
        ]
        assert events == by_message[message_id]
        assert {event for event, _, _ in events} >= {
            "placed", "copied", "lost", "asked", "archived", "dropped", "moved",
        }  # fmt: skip
        assert ("lost", "ssd", "evicted") in events
        assert all(reason for _, _, reason in events)


def test_a_device_that_takes_nothing_is_told_with_its_reason(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    tiny = {**DEVICES["ssd"], "capacity_bytes": 1 << 20}
    config = {
        **CONFIG,
        "devices": {**DEVICES, "ssd": tiny},
        "feed": {"lake": str(lake), "every_ms": 50},
    }
    with Broker.open(tmp_path / "data", config) as broker:
        broker.declare(QueueSpec("q"))
        messages = [Message(bytes(200_000), type="TEXT") for _ in range(12)]
        sent = [each.id for each in broker.publish("q", messages)]

        def refused() -> list[str]:
            return [each for each in sent if any(d[0] == "refused" for d in decided(broker, each))]

        wait_until(lambda: bool(refused()), "refusing")
        one = refused()[0]
        told = next(d for d in broker.why(one)["decisions"] if d["event"] == "refused")
        assert (told["device"], bool(told["reason"])) == ("ssd", True)
        assert told["text"].startswith("ssd did not take a copy: ")
    rows = [row for row in rows_of(lake) if row["event"] == "refused"]
    assert one in {row["message_id"] for row in rows}
    assert all(row["reason"] for row in rows)


class TestCommandLine:
    def test_it_reads_as_a_story_on_a_directory_and_on_a_server(self, tmp_path: Path) -> None:
        config = str(toml(tmp_path / "ebbmq.toml"))
        with Broker.open(tmp_path / "data", config) as broker:
            broker.declare(QueueSpec("q"))
            (sent,) = broker.publish("q", [Message(b"x", type="TEXT", headers={"a": "b"})])
            wait_until(are_on(broker, [sent.id], "ssd"), "moving")
        here = ebbmq("why", sent.id, "--data", str(tmp_path / "data"), "--config", config)
        with Running(tmp_path / "data", "--config", config) as server:
            there = ebbmq("why", sent.id, "--url", server.url)
            plain = json.loads(ebbmq("why", sent.id, "--url", server.url, "--json").stdout)
        for done in (here, there):
            assert done.returncode == 0, done.stderr
            assert re.search(r"^copies +ssd *$", done.stdout, re.M), done.stdout
            assert re.search(r"^headers +a: b *$", done.stdout, re.M)
            assert re.search(
                r"^decisions +\S+ \S+ +placed on ssd: rule W-001 *$", done.stdout, re.M
            )
            assert re.search(r"^ +\S+ \S+ +moved from log to ssd *$", done.stdout, re.M)
        assert [each["event"] for each in plain["decisions"]] == ["placed", "copied", "moved"]

    def test_one_nobody_issued_is_an_error_and_one_that_left_is_an_answer(
        self, tmp_path: Path
    ) -> None:
        data = str(tmp_path / "data")
        with Broker.open(data) as broker:
            broker.declare(QueueSpec("dead"))
            broker.declare(QueueSpec("q", max_attempts=1, dead_queue="dead"))
            acked, failed = broker.publish("q", [Message(b"1"), Message(b"2")])
            first, second = broker.lease("q", 2)
            broker.ack("q", [first.token])
            broker.retry("q", [second.token])
            (dead,) = broker.peek("dead")
        gone = ebbmq("why", acked.id, "--data", data)
        assert (gone.returncode, "left; how is not known any more" in gone.stdout) == (0, True)
        moved = ebbmq("why", failed.id, "--data", data)
        assert moved.returncode == 0
        assert re.search(rf"^moved to +{dead.id}", moved.stdout, re.M), moved.stdout
        assert f"ebbmq why {dead.id}" in moved.stderr
        there = ebbmq("why", dead.id, "--data", data)
        assert re.search(r"^queue +dead", there.stdout, re.M)
        for wrong in ("1-ffff", "7-1"):
            unknown = ebbmq("why", wrong, "--data", data)
            assert (unknown.returncode, unknown.stdout) == (1, "")
            assert f"no message {wrong} was ever published" in unknown.stderr
            plain = ebbmq("why", wrong, "--data", data, "--json")
            assert (plain.returncode, json.loads(plain.stdout)["state"]) == (1, "unknown")
        bad = ebbmq("why", "nonsense", "--data", data)
        assert (bad.returncode, "is not a message id" in bad.stderr) == (1, True)
        for identity in (acked.id, failed.id, dead.id):
            assert json.loads(ebbmq("why", identity, "--data", data, "--json").stdout)


def test_an_id_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker, pytest.raises(InvalidMessage, match="nonsense"):
        broker.why("nonsense")
