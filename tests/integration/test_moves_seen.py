"""Moves under way and rules as people see them: command line, HTTP, clients, the start page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Client, Message, QueueSpec
from ebbmq.node.server.users import Users
from ebbmq.policy.rules.spec import RuleSpec
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ebbmq import DeviceStatus

ROOM = 64 << 20
COUNT = 3_000
CONFIG: dict[str, Any] = {
    "devices": {
        "ssd": {"kind": "file", "capacity_bytes": ROOM, "stall_ms": 60_000},
        "hdd": {"kind": "file", "capacity_bytes": ROOM, "stall_ms": 60_000},
    },
    "rules": [
        {"id": "W-001", "weight": 90, "device": "ssd", "when": "TYPE == TEXT AND SIZE < 100"},
        {"id": "W-002", "weight": 40, "device": "hdd", "when": "SIZE >= 100", "enabled": False},
    ],
    # So slow that the first moves are made and the others are under way.
    "placement": {"move_bytes_per_s": 1_024},
    "upkeep_every_ms": 20,
}
COMMAND = [sys.executable, "-m", "ebbmq.cli"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Messages that are on one device, and half way to another."""
    with Served(tmp_path_factory.mktemp("moving") / "data", **CONFIG) as served:
        broker = served.broker
        broker.declare(QueueSpec("tasks"))
        for _ in range(3):
            messages = [Message(bytes(100), type="TEXT") for _ in range(COUNT // 3)]
            broker.publish("tasks", messages)
        wait_until(lambda: of(broker, "ssd").copies == COUNT, "placing")
        broker.put_rule(RuleSpec("W-009", 200, "hdd", 'QUEUE == "tasks"'))
        broker.apply_rules()
        wait_until(lambda: is_half_way(broker), "moving")
        yield served


def of(broker: Any, name: str) -> DeviceStatus:
    return next(each for each in broker.devices() if each.name == name)


def is_half_way(broker: Any) -> bool:
    arriving, leaving = of(broker, "hdd").arriving, of(broker, "ssd").leaving
    return bool(arriving and leaving and arriving.done and leaving.done and arriving.per_s)


def ebbmq(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments, "--url", url(served)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}"


def page(served: Served) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", served.ask("GET", "/").body.decode()))


def test_what_comes_to_a_device_and_leaves_another_is_told_with_how_far_it_is(
    moving: Served,
) -> None:
    with Client(url(moving)) as client:
        for face in (moving.broker, client):
            hdd, ssd = of(face, "hdd"), of(face, "ssd")
            assert hdd.arriving is not None
            assert ssd.leaving is not None
            assert hdd.arriving.done + hdd.arriving.left == COUNT
            assert ssd.leaving.done + ssd.leaving.left == COUNT
            assert (hdd.leaving, ssd.arriving) == (None, None)
            assert hdd.arriving.left == hdd.moves
            assert hdd.arriving.left_ms is not None
            assert hdd.arriving.bytes is not None
            assert hdd.arriving.bytes >= 100 * hdd.arriving.done
            assert hdd.arriving.bytes_left is not None
            assert hdd.arriving.bytes_left >= 100 * hdd.arriving.left
            assert of(face, "log").arriving is None
    raw = {each["name"]: each for each in moving.ask("GET", "/v1/devices").json["devices"]}
    assert raw["hdd"]["arriving"]["done"] > 0
    assert raw["ssd"]["leaving"]["left"] > 0


def test_a_move_that_is_over_is_not_under_way(tmp_path: Path) -> None:
    config = {**CONFIG, "placement": {}}
    with Served(tmp_path / "data", **config) as served:
        served.broker.publish("q", [Message(bytes(100), type="TEXT") for _ in range(COUNT)])
        wait_until(lambda: of(served.broker, "ssd").copies == COUNT, "placing")
        wait_until(lambda: of(served.broker, "ssd").arriving is None, "seeing that it is over")
        assert of(served.broker, "log").leaving is None
        assert "Nothing is being moved" in page(served)
        assert "MOVES UNDER WAY" not in ebbmq(served, "devices").stdout


def test_the_command_line_lists_moves_with_what_is_done_and_what_is_left(moving: Served) -> None:
    shown = ebbmq(moving, "devices")
    assert shown.returncode == 0, shown.stderr
    told = re.search(r"^to hdd +([\d,]+) +3,000 .*", shown.stdout, re.M)
    assert told, shown.stdout
    assert int(told[1].replace(",", "")) > 0
    assert re.search(r"^from ssd +[\d,]+ +3,000 ", shown.stdout, re.M)
    one = ebbmq(moving, "devices", "show", "hdd").stdout
    assert re.search(r"^arriving +[\d,]+ of 3,000, .* left", one, re.M), one
    assert re.search(r"^leaving +- *$", one, re.M)
    plain = json.loads(ebbmq(moving, "devices", "--json").stdout)
    assert {each["name"]: bool(each["arriving"]) for each in plain} == {
        "log": False,
        "ssd": False,
        "hdd": True,
    }


def test_rules_are_told_with_how_many_messages_each_has_placed(moving: Served) -> None:
    with Client(url(moving)) as client:
        assert moving.broker.rules().placed == client.rules().placed == {"W-001": COUNT}
    assert moving.ask("GET", "/v1/rules").json["placed"] == {"W-001": COUNT}
    assert json.loads(ebbmq(moving, "rules", "--json").stdout)["placed"] == {"W-001": COUNT}


class TestStartPage:
    def test_it_shows_rules_by_weight_with_what_they_placed_and_moves_under_way(
        self, moving: Served
    ) -> None:
        text = page(moving)
        assert re.search(r"Moves under way .*from ssd.* of 3,000 copies", text)
        assert re.search(r"to hdd .* of 3,000 copies .* left", text)
        rules = text[text.index("Rules") :]
        assert rules.index("W-009") < rules.index("W-001") < rules.index("W-002")
        assert re.search(r"W-001 +90 +\S+ +ssd +TYPE == TEXT AND SIZE < 100 +3,000", rules), rules
        assert re.search(r"W-002 +off +40 +- +hdd", rules)

    def test_without_rules_it_says_where_messages_go(self, tmp_path: Path) -> None:
        with Served(tmp_path / "data", devices=CONFIG["devices"]) as served:
            assert "There are none: messages go to their queue's default device" in page(served)

    def test_without_devices_it_has_neither(self, tmp_path: Path) -> None:
        with Served(tmp_path / "data") as served:
            text = page(served)
            assert "Rules" not in text
            assert "Devices" not in text

    def test_of_very_many_rules_it_shows_those_that_weigh_most(self, tmp_path: Path) -> None:
        rules = [{"id": f"R-{n}", "weight": n, "device": "ssd"} for n in range(1, 81)]
        with Served(tmp_path / "data", devices=CONFIG["devices"], rules=rules) as served:
            text = page(served)
            assert "R-80" in text
            assert "R-10 " not in text
            assert "and 30 more; see /v1/rules" in text

    def test_who_manages_only_some_queues_sees_neither_rules_nor_devices(
        self, tmp_path: Path
    ) -> None:
        with Served(tmp_path / "data", **CONFIG) as served:
            users = Users(tmp_path / "data")
            users.add("operator", {"manage": ("*",)})
            owner = users.add("owner", {"manage": ("q",)})
            told = {"authorization": f"Bearer {owner}"}
            text = served.ask("GET", "/", headers=told).body.decode()
            assert "W-001" not in text
            assert "Devices" not in text

    @pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
    @pytest.mark.parametrize("width", [1_200, 390])
    def test_a_browser_shows_it_and_refuses_nothing_of_it(
        self, moving: Served, tmp_path: Path, width: int
    ) -> None:
        assert CHROMIUM is not None
        # Its own home: a second one on the same profile would wait for the first.
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},1500",
        ]  # fmt: skip
        done = subprocess.run(
            [CHROMIUM, *flags, "--dump-dom", url(moving) + "/"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr
        text = unescape(re.sub(r"<[^>]+>", " ", done.stdout))
        assert "TYPE == TEXT AND SIZE < 100" in text
        assert "of 3,000 copies" in text
