"""`ebbmq pipeline apply`, on a data directory and on a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import AdaptSpec, Broker, Message, QueueSpec
from ebbmq.cli.main import main
from tests.advice import (
    plan_row,
    rate_row,
    until_usable,
    write_bad_plan,
    write_plan,
    write_rates,
)
from tests.served import Served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

HOUR_MS = 3_600_000
SPEC = QueueSpec("mine", tiers=("fast", "slow"), decay_rate=0.1, adapt=AdaptSpec())
DEVICES = {
    "log": {"tier": "fast"},
    "hdd": {"kind": "file", "capacity_bytes": 64 << 20, "tier": "slow"},
}
TOML = """
node = "n1"
[feed]
lake = "{lake}"
[devices.log]
tier = "fast"
[devices.hdd]
kind = "file"
capacity_bytes = 67108864
tier = "slow"
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(("pipeline", "apply", *arguments))
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run


def told(run: Run, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def prepared(broker: Broker, lake: Path) -> None:
    """Three messages, a plan for them and one more, and a factor for their queue."""
    broker.declare(SPEC)
    until_usable(broker)
    ids = [each.id for each in broker.publish("mine", [Message(b"x")] * 3)]
    now_ms = time.time_ns() // 1_000_000
    times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
    fields = {"queue": "mine", "action": "move", "to_tier": "slow", **times}
    rows = [plan_row(each, **fields) for each in (*ids, "63-1")]
    rows += [plan_row(ids[0], **{**fields, "action": "burn"}), plan_row(ids[0], node="n2")]
    write_plan(lake, "r1", rows, now_ms)
    rates = [rate_row("mine", 2.0, **times), rate_row("nobody's", 2.0, **times)]
    write_rates(lake, "r1", rates, now_ms)


def feed_of(lake: Path) -> dict[str, Any]:
    """A lake that is looked at when it is asked for."""
    return {"lake": str(lake), "plans_every_ms": 0}


def is_done(broker: Broker) -> None:
    assert broker.plans().pinned == 3
    assert broker.stats("mine")["decay_factor"] == pytest.approx(2.0)


def test_on_a_directory_what_is_new_is_applied_and_counted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, data, lake = tmp_path / "ebbmq.toml", tmp_path / "data", tmp_path / "lake"
    config.write_text(TOML.format(lake=lake))
    with Broker.open(data, config) as broker:
        prepared(broker, lake)
    where = ("--data", str(data), "--config", str(config))
    rates, plan = told(run, *where)
    assert (rates["table"], rates["applied"], rates["refused"]) == (
        "rates", 1, {"unknown_queue": 1},
    )  # fmt: skip
    assert (plan["applied"], plan["in_force"], plan["rows"]) == (3, 0, 5)
    assert plan["refused"] == {"gone": 1, "invalid": 1}
    (plan,) = [each for each in told(run, *where, "--run", "r1") if each["table"] == "plans"]
    assert (plan["applied"], plan["in_force"]) == (0, 3)
    with Broker.open(data, config) as broker:
        is_done(broker)
    with pytest.raises(SystemExit):
        main(("why", "1-1", "--data", str(data), "--config", str(config)))
    shown = capsys.readouterr().out
    assert "to 1 copy on tier slow until" in shown
    assert "by plan r1" in shown


def test_on_a_server_people_are_told_what_was_refused_and_why(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Served(tmp_path / "data", node="n1", devices=DEVICES, feed=feed_of(lake)) as served:
        prepared(served.broker, lake)
        url = f"http://127.0.0.1:{served.port}"
        code, out, err = run("--url", url)
        assert code == 0, err
        assert "r1" in out
        assert "its message is not there" in out
        assert "3 messages move in the background" in out
        is_done(served.broker)
        assert "Nothing new" in run("--url", url)[1]
        code, _, err = run("--url", url, "--run", "r9")
        assert code != 0
        assert "there is no run 'r9'" in err


def test_a_server_without_a_lake_says_so(run: Run, tmp_path: Path) -> None:
    with Served(tmp_path / "data", node="n1") as served:
        code, _, err = run("--url", f"http://127.0.0.1:{served.port}")
    assert code != 0
    assert "no lake" in err


def test_a_plan_without_rows_about_a_node_is_new_to_it_once(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Served(tmp_path / "data", node="n3", devices=DEVICES, feed=feed_of(lake)) as served:
        write_plan(lake, "r1", [plan_row("1-1", node="n2")], time.time_ns() // 1_000_000)
        where = ("--url", f"http://127.0.0.1:{served.port}")
        assert [each["rows"] for each in told(run, *where)] == [0]
        assert "Nothing new" in run(*where)[1]


@pytest.mark.parametrize("kind", ["server", "directory"])
def test_a_run_that_cannot_be_read_is_told_of_and_newer_ones_are_taken(
    run: Run, tmp_path: Path, kind: str
) -> None:
    lake, data = tmp_path / "lake", tmp_path / "data"
    now_ms = time.time_ns() // 1_000_000
    times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
    write_bad_plan(lake, "r0", plan_row("1-1", **times), now_ms)
    write_plan(lake, "r1", [plan_row("1-1", **times)], now_ms + 1)
    factors = [("", 2.0), ("mine", float("nan")), ("mine", 1e300), ("a/b", 2.0)]
    write_rates(lake, "r2", [rate_row(*each, **times) for each in factors], now_ms + 2)
    if kind == "server":
        with Served(data, node="n1", feed=feed_of(lake)) as served:
            served.broker.declare(SPEC)
            code, out, err = run("--url", f"http://127.0.0.1:{served.port}", "--json")
    else:
        with Broker.open(data, {"node": "n1"}) as broker:
            broker.declare(SPEC)
        toml = tmp_path / "n1.toml"
        toml.write_text(f'node = "n1"\nfeed = {{ lake = "{lake}" }}\n')
        code, out, err = run("--data", str(data), "--config", str(toml), "--json")
    assert code == 1
    assert "run=r0/part-00000.parquet cannot be read" in err
    told_of = {each["run"]: (each["state"], each["refused"]) for each in json.loads(out)}
    assert told_of == {
        "r0": ("failed", {}),
        "r1": ("applied", {"gone": 1}),
        "r2": ("applied", {"invalid": 2, "unknown_queue": 2}),
    }
