"""`ebbmq pipeline apply`, on a data directory and on a server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from ebbmq import AdaptSpec, Broker, Message, QueueSpec, limits
from ebbmq.cli.main import main
from ebbmq.core.copies import name_of
from ebbmq.feed import layout
from ebbmq.feed.plans import PLANS, PlanRow
from ebbmq.node.outflow import parse_id
from tests.advice import (
    plan_row,
    publish,
    rate_row,
    until_usable,
    write,
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


def is_done(broker: Broker) -> None:
    assert broker.plans().pinned == 3
    assert broker.stats("mine")["decay_factor"] == pytest.approx(2.0)


def test_on_a_directory_what_is_new_is_applied_and_counted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, data, lake = tmp_path / "ebbmq.toml", tmp_path / "data", tmp_path / "lake"
    config.write_text(TOML)
    with Broker.open(data, config) as broker:
        prepared(broker, lake)
    where = ("--data", str(data), "--config", str(config), "--lake", str(lake))
    rates, plan = told(run, *where)
    assert (rates["table"], rates["applied"], rates["refused"]) == (
        "rates", 1, {"unknown_queue": 1},
    )  # fmt: skip
    assert (plan["applied"], plan["in_force"], plan["rows_in_all"]) == (3, 0, 6)
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
    with Served(tmp_path / "data", node="n1", devices=DEVICES) as served:
        prepared(served.broker, lake)
        url = f"http://127.0.0.1:{served.port}"
        code, out, err = run("--url", url, "--lake", str(lake))
        assert code == 0, err
        assert "r1" in out
        assert "its message is not there" in out
        assert "3 messages move in the background" in out
        is_done(served.broker)
        code, _, err = run("--url", url, "--lake", str(lake), "--run", "r9")
        assert code != 0
        assert "there is no run 'r9'" in err
        code, _, err = run("--url", url)
        assert code != 0
        assert "no lake" in err


def test_without_a_lake_the_broker_looks_into_its_own(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    feed = {"lake": str(lake), "plans_every_ms": 0}
    with Served(tmp_path / "data", node="n1", devices=DEVICES, feed=feed) as served:
        prepared(served.broker, lake)
        url = f"http://127.0.0.1:{served.port}"
        assert [each["applied"] for each in told(run, "--url", url)] == [1, 3]
        is_done(served.broker)
        assert "Nothing new" in run("--url", url)[1]


def decided(lake: Path, **factors: float) -> None:
    """Runs, a minute apart and the last one now, that recommend a factor each."""
    now_ms = time.time_ns() // 1_000_000
    for ago, (name, factor) in enumerate(reversed(factors.items())):
        at_ms = now_ms - ago * 60_000
        times = {"decided_at_ms": at_ms, "until_ms": at_ms + HOUR_MS}
        rows = [rate_row(queue, factor, **times) for queue in ("mine", "nobody's")]
        write_rates(lake, name, rows, at_ms)


def outcomes(run: Run, *arguments: str) -> dict[str, tuple[int, int, dict[str, int]]]:
    return {
        each["run"]: (each["applied"], each["in_force"], each["refused"])
        for each in told(run, *arguments)
    }


def test_factors_that_are_handed_to_a_server_count_once_and_never_after_later_ones(
    run: Run, tmp_path: Path
) -> None:
    lake, unknown = tmp_path / "lake", {"unknown_queue": 1}
    decided(lake, r1=2.0, r2=4.0)
    with Served(tmp_path / "data", node="n1") as served:
        served.broker.declare(QueueSpec("mine", decay_rate=0.1, adapt=AdaptSpec()))
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert outcomes(run, *where) == {"r1": (1, 0, unknown), "r2": (1, 0, unknown)}
        known = {each.run: (each.table, each.rows) for each in served.broker.plans().runs}
        assert known == {"r1": ("rates", 2), "r2": ("rates", 2)}
        assert outcomes(run, *where) == {}
        assert outcomes(run, *where, "--run", "r2") == {"r2": (0, 1, unknown)}
        stale = {"r1": (0, 0, {"superseded": 1, **unknown})}
        assert outcomes(run, *where, "--run", "r1") == stale
        assert served.broker.stats("mine")["decay_factor"] == 4.0
    with Served(tmp_path / "data", node="n1") as served:
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert outcomes(run, *where, "--run", "r1") == stale
        assert served.broker.stats("mine")["decay_factor"] == 4.0


def test_an_older_factor_does_not_come_back_on_a_directory(run: Run, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    decided(lake, r1=2.0, r2=4.0)
    with Broker.open(data) as broker:
        broker.declare(SPEC)
    where = ("--data", str(data), "--lake", str(lake))
    told(run, *where)
    assert outcomes(run, *where, "--run", "r1")["r1"][2]["superseded"] == 1
    with Broker.open(data) as broker:
        assert broker.stats("mine")["decay_factor"] == 4.0


def test_a_plan_of_which_a_part_was_handed_over_is_handed_over_to_the_end(
    run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Served(tmp_path / "data", node="n1", devices=DEVICES) as served:
        prepared(served.broker, lake)
        (plan,) = (lake / "plans").rglob("*.parquet")
        first = pq.read_table(plan, partitioning=None).to_pylist()[0]
        known = {name: first[name] for name in first.keys() & set(PlanRow.__struct_fields__)}
        assert served.broker.apply_plan_rows("r1", [PlanRow(**known)]).applied == 1
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        (told_of,) = [each for each in told(run, *where) if each["table"] == "plans"]
        assert (told_of["applied"], told_of["in_force"]) == (2, 1)
        is_done(served.broker)
        assert "Nothing new" in run(*where)[1]
    with Served(tmp_path / "data", node="n1", devices=DEVICES) as served:
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert "Nothing new" in run(*where)[1]


@pytest.mark.parametrize("ahead_ms", [-3 * HOUR_MS, 3 * HOUR_MS])
def test_a_plan_is_new_to_a_server_whatever_the_clock_of_who_wrote_it_says(
    run: Run, tmp_path: Path, ahead_ms: int
) -> None:
    lake = tmp_path / "lake"
    with Served(tmp_path / "data", node="n1", devices=DEVICES) as served:
        served.broker.declare(SPEC)
        until_usable(served.broker)
        (one,) = served.broker.publish("mine", [Message(b"x")])
        now_ms = time.time_ns() // 1_000_000
        times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
        row = plan_row(one.id, queue="mine", action="move", to_tier="slow", **times)
        write_plan(lake, "r1", [row], now_ms + ahead_ms)
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert outcomes(run, *where) == {"r1": (1, 0, {})}
        assert outcomes(run, *where) == {}


def test_of_a_plan_that_is_too_old_one_request_is_refused_and_the_rest_is_not_sent(
    run: Run, tmp_path: Path
) -> None:
    lake, count = tmp_path / "lake", 2 * limits.PLAN_ROWS_MAX + 1
    with Served(tmp_path / "data", node="n1", devices=DEVICES) as served:
        served.broker.declare(SPEC)
        until_usable(served.broker)
        (one,) = served.broker.publish("mine", [Message(b"x")])
        now_ms = time.time_ns() // 1_000_000
        times = {"decided_at_ms": now_ms - 2 * HOUR_MS, "until_ms": now_ms + HOUR_MS}
        # It was there already when this was decided, as far as its age tells.
        row = plan_row(one.id, queue="mine", action="move", to_tier="slow", **times)
        write_plan(lake, "r1", [row] * count, now_ms)
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert outcomes(run, *where) == {"r1": (0, 0, {"too_old": count})}
        (known,) = served.broker.plans().runs
        assert known.rows == limits.PLAN_ROWS_MAX
        assert outcomes(run, *where) == {}


def test_the_most_valuable_of_a_plan_are_handed_over_first(run: Run, tmp_path: Path) -> None:
    lake, size, count = tmp_path / "lake", 1 << 10, 1_200
    short = {**DEVICES["hdd"], "capacity_bytes": size * count // 2}
    # A device that gets full while rows are taken would refuse some of them for that.
    config = {"devices": {**DEVICES, "hdd": short}, "placement": {"move_bytes_per_s": size}}
    with Served(tmp_path / "data", node="n1", **config) as served:
        served.broker.declare(SPEC)
        until_usable(served.broker)
        bodies = [Message(bytes(size))] * count
        ids = [each.id for each in served.broker.publish("mine", bodies)]
        now_ms = time.time_ns() // 1_000_000
        times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
        fields = {"queue": "mine", "action": "move", "to_tier": "slow", "bytes": size, **times}
        rows = [plan_row(each, value=float(at), **fields) for at, each in enumerate(ids)]
        files = [
            write(lake, PLANS, layout.plan_file("r1", number), some, None)
            for number, some in enumerate((rows[: count // 2], rows[count // 2 :]))
        ]
        publish(lake, PLANS, files, now_ms, rows=count // 2)
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        ((applied, _, refused),) = outcomes(run, *where).values()
        assert (applied + refused["no_room"], applied > count * 0.4) == (count, True)
        with served.broker.engine.lock:
            names = [name_of(*parse_id(each)) for each in ids]
            held = [advice is not None for advice in served.broker.engine.pins.of_many(names)]
        assert held == [False] * (count - applied) + [True] * applied


def test_a_plan_without_rows_about_a_node_is_new_to_it_once(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Served(tmp_path / "data", node="n3", devices=DEVICES) as served:
        write_plan(lake, "r1", [plan_row("1-1", node="n2")], time.time_ns() // 1_000_000)
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert [each["rows"] for each in told(run, *where)] == [0]
        assert "Nothing new" in run(*where)[1]


def test_a_broker_that_no_row_of_a_plan_is_about_is_told_whose_it_is(
    run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    now_ms = time.time_ns() // 1_000_000
    with Served(tmp_path / "data", node="n3", devices=DEVICES) as served:
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        write_plan(lake, "r1", [plan_row("1-1", node=node) for node in ("b", "a", "b")], now_ms)
        code, _, err = run(*where)
        assert code == 0
        assert "no row of run r1 is about node n3; it has rows for: a, b\n" in err
        rows = [plan_row("1-1", node=f"n{n}") for n in (3, *range(10, 25))]
        write_plan(lake, "r2", rows, now_ms + 1)
        assert "is about node" not in run(*where)[2]
        write_plan(lake, "r3", rows[1:], now_ms + 2)
        assert "n18, n19 and 5 more" in run(*where)[2]


def test_a_run_of_which_a_part_was_handed_over_is_handed_over_again(
    run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    decided(lake, r1=2.0)
    now_ms = time.time_ns() // 1_000_000
    with Served(tmp_path / "data", node="n1") as served:
        served.broker.declare(QueueSpec("mine", decay_rate=0.1, adapt=AdaptSpec()))
        served.broker.set_decay_factor("mine", 2.0, now_ms + HOUR_MS, "r1", now_ms)
        where = ("--url", f"http://127.0.0.1:{served.port}", "--lake", str(lake))
        assert outcomes(run, *where) == {"r1": (0, 1, {"unknown_queue": 1})}
        assert outcomes(run, *where) == {}


@pytest.mark.parametrize("kind", ["server", "directory"])
def test_a_run_that_cannot_be_read_is_told_of_and_newer_ones_are_handed_over(
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
        with Served(data, node="n1") as served:
            where = f"http://127.0.0.1:{served.port}"
            code, out, err = run("--url", where, "--lake", str(lake), "--json")
    else:
        with Broker.open(data, {"node": "n1"}) as broker:
            broker.declare(SPEC)
        toml = tmp_path / "n1.toml"
        toml.write_text('node = "n1"\n')
        where = ("--data", str(data), "--config", str(toml))
        code, out, err = run(*where, "--lake", str(lake), "--json")
    assert code == 1
    assert "run=r0/part-00000.parquet cannot be read" in err
    told_of = {each["run"]: (each["state"], each["refused"]) for each in json.loads(out)}
    assert told_of == {
        "r0": ("failed", {}),
        "r1": ("applied", {"gone": 1}),
        "r2": ("applied", {"invalid": 2, "unknown_queue": 2}),
    }


def test_a_lake_that_is_not_there_is_refused(run: Run, tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data"):
        pass
    code, out, err = run("--data", str(tmp_path / "data"), "--lake", str(tmp_path / "wrong"))
    assert (code, out) == (1, "")
    assert f"there is no lake at {tmp_path / 'wrong'}" in err
