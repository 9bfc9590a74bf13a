"""`ebbmq publish` sets every field of a message, so that rules can be tried from a shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest

from ebbmq import Broker, Message
from ebbmq.cli.main import main
from ebbmq.cli.publish import publish
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

RULES = {
    "type": "TYPE == TEXT",
    "key": "ROUTING_KEY == k-17",
    "store": "STORE == hdd",
    "level": "QOS == written",
    "header": 'HEADER("tenant") == acme',
    "importance": "IMPORTANCE == 9",
}
OPTIONS: list[tuple[str, list[str]]] = [
    ("type", ["--type", "TEXT"]),
    ("key", ["--key", "k-17"]),
    ("store", ["--store", "hdd"]),
    ("level", ["--confirm", "written"]),
    ("header", ["--header", "tenant=acme"]),
    ("importance", ["--importance", "9"]),
]


def file_device(path: Path) -> dict[str, Any]:
    return {"kind": "file", "directory": str(path), "capacity_bytes": 1 << 30}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    return run


def published(run: Run, *arguments: str) -> str:
    code, out, err = run("publish", "q", "text", *arguments, "--json")
    assert code == 0, err
    return str(json.loads(out)["receipts"][0]["id"])


def test_every_field_of_a_message_has_an_option() -> None:
    options = {each.name for each in publish.params if isinstance(each, click.Option)}
    called = {"id": "message_id", "type": "kind"}
    fields = {called.get(name, name) for name in Message.__struct_fields__ if name != "body"}
    assert fields <= options


def test_rules_are_tried_with_messages_published_to_a_server(run: Run, tmp_path: Path) -> None:
    rules = [
        {"id": name, "weight": 9, "device": "hdd", "when": when} for name, when in RULES.items()
    ]
    hdd = file_device(tmp_path / "hdd")
    with Served(tmp_path / "data", devices={"hdd": hdd}, rules=rules) as served:
        place = "--url", f"http://127.0.0.1:{served.port}"

        def copies(message_id: str) -> list[str]:
            code, out, _ = run("why", message_id, "--json", *place)
            assert code == 0
            return sorted(json.loads(out)["copies"])

        assert copies(published(run, *place)) == ["log"]
        for name, arguments in OPTIONS:
            one = published(run, *arguments, *place)
            wait_until(lambda one=one: copies(one) == ["hdd"], f"what {name} chooses")
        two = published(run, "--replicas", "2", *place)
        wait_until(lambda: copies(two) == ["hdd", "log"], "two copies")


def test_rules_are_tried_with_messages_published_to_a_directory(run: Run, tmp_path: Path) -> None:
    config, hdd = tmp_path / "ebbmq.toml", file_device(tmp_path / "hdd")
    lines = ["[devices.hdd]", *(f"{key} = {json.dumps(value)}" for key, value in hdd.items())]
    for name, when in RULES.items():
        lines += ["[[rules]]", f'id = "{name}"', 'weight = 9\ndevice = "hdd"', f"when = '{when}'"]
    config.write_text("\n".join(lines))
    place = "--data", str(tmp_path / "data"), "--config", str(config)
    assert run("queues", "declare", "q", *place)[0] == 0
    plain = published(run, *place)
    chosen = [published(run, *arguments, *place) for _, arguments in OPTIONS]
    two = published(run, "--replicas", "2", *place)
    with Broker.open(tmp_path / "data", config) as broker:

        def copies(message_id: str) -> list[str]:
            return sorted(broker.why(message_id)["copies"])

        wait_until(lambda: all(copies(each) == ["hdd"] for each in chosen), "the rules' choices")
        wait_until(lambda: copies(two) == ["hdd", "log"], "two copies")
        assert copies(plain) == ["log"]


@pytest.mark.parametrize("way", ["--data", "--url"])
def test_fields_outside_their_limits_are_refused_by_name(
    run: Run, tmp_path: Path, way: str
) -> None:
    with Served(tmp_path / "served") as served:
        url = f"http://127.0.0.1:{served.port}"
        place = way, url if way == "--url" else str(tmp_path / "data")
        assert run("queues", "declare", "q", *place)[0] == 0
        for option, value in (
            ("replicas", "0"),
            ("replicas", "17"),
            ("type", ""),
            ("key", "k" * 256),
            ("store", ""),
        ):
            code, _, err = run("publish", "q", "x", f"--{option}", value, *place)
            assert code == 1
            assert f"{option} is" in err
        told = json.loads(run("queues", "show", "q", "--json", *place)[1])
        assert told["stats"]["depth"]["ready"] == 0


def test_a_message_that_need_not_last_is_gone_after_a_restart(run: Run, tmp_path: Path) -> None:
    place = "--data", str(tmp_path / "data")
    assert run("queues", "declare", "q", *place)[0] == 0
    kept, gone = published(run, *place), published(run, "--not-durable", *place)
    with Broker.open(tmp_path / "data") as broker:
        assert broker.why(kept)["state"] == "ready"
        assert broker.why(gone)["state"] != "ready"
