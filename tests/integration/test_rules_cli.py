"""`ebbmq rules` on a file: every slip is told, and every choice is explained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.cli.main import main
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

PATENT = """\
# the example of the patent
W-001: WEIGHT 31 USE HDD WHEN SIZE > 10 AND SIZE < 100 AND TYPE == TEXT
W-002: WEIGHT 60 USE HDD WHEN TYPE == BYTE

W-003: WEIGHT 80 USE MEMORY WHEN DESTINATION == QUEUE AND HEADER("asd").isPresent
W-004: WEIGHT 90 USE MEMORY WHEN CLIENT_ID == privileged
W-005: WEIGHT 80 USE MEMORY WHEN SIZE < 20
W-006: WEIGHT 60 USE DB1 WHEN HEADER("locator").contains("fast-db")
W-007: WEIGHT 60 USE DB2 WHEN HEADER("locator").contains("slow-db")
W-999: WEIGHT 90 USE GRID WHEN SIZE > 10000
"""
STATUSES = ("--status", "HDD=-10", "--status", "DB1=-20", "--status", "GRID=-30")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(("rules", *arguments))
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def patent(tmp_path: Path) -> str:
    file = tmp_path / "storage.rules"
    file.write_text(PATENT)
    return str(file)


def explained(run: Run, *arguments: str) -> Any:
    code, out, _ = run("explain", *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_a_file_without_slips_is_summed_up(run: Run, patent: str) -> None:
    code, out, err = run("check", patent)
    assert (code, out, err) == (0, "8 rules for DB1, DB2, GRID, HDD, MEMORY\n", "")


def test_every_slip_of_a_file_is_told_with_its_line_and_column(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.rules"
    file.write_text(
        "A: WEIGHT 3 USE HDD WHEN SZE > 10\n"
        "B: WEIGHT 1e9 USE HDD\n"
        "C: WEIGHT 3 USE HDD\n"
        "C: WEIGHT 3 USE SSD\n"
    )
    code, out, err = run("check", str(file))
    assert code == 1
    assert f"{file}: line 1: column 26: SZE is not a keyword" in out
    assert "\n  A: WEIGHT 3 USE HDD WHEN SZE > 10\n                           ^\n" in out
    assert "did you mean SIZE?" in out
    assert "line 2: rule 'B': the weight is 1000000000" in out
    assert "line 4: there is a rule 'C' already" in out
    assert "3 problems" in err


def test_problems_are_also_for_programs(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.rules"
    file.write_text("A: WEIGHT 3 USE HDD WHEN SZE > 10\nB: WEIGHT 3 USE SDS WHEN size > 1\n")
    code, out, _ = run("check", str(file), "--device", "SSD", "--json")
    told = json.loads(out)
    assert code == 1
    assert [each["column"] for each in told["problems"]] == [26, 0]
    assert told["problems"][0]["action"] == "did you mean SIZE?"
    assert told["problems"][1]["action"] == "did you mean 'SSD'?"
    assert told["rules"] == [
        {"id": "B", "weight": 3.0, "device": "SDS", "when": "SIZE > 1", "enabled": True}
    ]


def test_a_file_that_cannot_be_read_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.rules").write_bytes(b"\xff\xfe")
    code, _, err = run("check", str(tmp_path / "x.rules"))
    assert code == 1
    assert "hint:" in err


def test_the_choice_of_the_example_is_explained(run: Run, patent: str) -> None:
    told = explained(run, patent, "--size", "10", "--type", "TEXT", *STATUSES)
    assert (told["chosen"], told["floor_added"]) == (["MEMORY", "DB2"], "DB2")
    assert told["strategy"] == "first_match"
    assert [rule["adjusted"] for rule in told["rules"]] == [90, 80, 80, 60, 60, 50, 40, 21]
    assert [rule["id"] for rule in told["rules"] if rule["matched"]] == ["W-005"]
    assert {each["name"]: each["why"] for each in told["devices"]}["HDD"] == (
        "no rule that uses it is true of the message"
    )


def test_why_each_other_device_lost_is_told(run: Run, patent: str) -> None:
    message = ("--size", "50", "--type", "TEXT", "--set", "CLIENT_ID=privileged")
    headers = ("--header", "asd=1", "--header", "locator=slow-db")
    code, out, _ = run(
        "explain", patent, *message, *headers, *STATUSES, "--strategy", "aggregate", "--not-durable"
    )
    assert code == 0
    assert out.startswith("MEMORY, by aggregate (mean)\n")
    assert "chosen: rules W-004, W-003 score highest, 85" in out
    assert "rule W-007: 60, below 85 of MEMORY" in out
    assert "rule W-001: 21, below 85 of MEMORY" in out


def test_a_device_that_is_down_and_a_second_copy_are_explained(run: Run, patent: str) -> None:
    told = explained(run, patent, "--down", "MEMORY", "--replicas", "2", "--default", "DB1")
    why = {each["name"]: each["why"] for each in told["devices"]}
    assert told["chosen"] == ["HDD", "DB1"]
    assert why["MEMORY"] == "it cannot be used just now"
    assert why["DB1"] == "chosen for copy 2"


@pytest.mark.parametrize(
    "arguments",
    [("--status", "HDD=5"), ("--status", "HDD=x"), ("--set", "QUEU=q"), ("--set", "STATUS=1")],
)
def test_options_that_make_no_sense_are_refused(
    run: Run, patent: str, arguments: tuple[str, ...]
) -> None:
    code, _, err = run("explain", patent, *arguments)
    assert code == 2
    assert "error:" in err


# On a data directory and on a server


@pytest.fixture(params=["--data", "--url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    if request.param == "--data":
        yield "--data", str(tmp_path / "data")
    else:
        with Served(tmp_path / "data") as served:
            yield "--url", f"http://127.0.0.1:{served.port}"


def listed(run: Run, place: tuple[str, str]) -> Any:
    code, out, _ = run("list", *place, "--json")
    assert code == 0
    return json.loads(out)


def test_rules_are_added_listed_switched_and_removed(run: Run, place: tuple[str, str]) -> None:
    code, out, _ = run("add", "W-001: WEIGHT 31 USE hdd WHEN SIZE > 100", *place)
    assert code == 0
    assert out.startswith("rule W-001 counts in ")
    assert run("add", "WEIGHT 5 USE ssd", "--id", "W-002", "--disabled", *place)[0] == 0
    code, _, err = run("add", "W-001: WEIGHT 1 USE hdd", *place)
    assert code == 1
    assert "there is a rule 'W-001' already" in err
    assert run("add", "W-001: WEIGHT 1 USE hdd", "--replace", *place)[0] == 0
    found = listed(run, place)
    assert [(r["id"], r["weight"], r["enabled"]) for r in found["rules"]] == [
        ("W-001", 1, True),
        ("W-002", 5, False),
    ]
    assert found["version"] == 3
    code, out, _ = run(*place)
    assert code == 0
    assert "version 3, first_match" in out
    assert "off" in out
    assert run("enable", "W-002", *place)[0] == 0
    assert run("disable", "W-001", *place)[0] == 0
    assert [r["enabled"] for r in listed(run, place)["rules"]] == [False, True]
    assert run("remove", "W-001", "W-002", *place)[0] == 0
    assert listed(run, place)["rules"] == []
    code, out, _ = run("audit", *place)
    assert code == 0
    assert out.count("W-001") == 4
    assert "local" in out
    code, _, err = run("remove", "W-001", *place)
    assert code == 1
    assert "there is no rule 'W-001'" in err


def test_a_file_is_applied_as_a_whole(
    run: Run, place: tuple[str, str], patent: str, tmp_path: Path
) -> None:
    run("add", "old: WEIGHT 1 USE hdd", *place)
    code, out, _ = run("apply", patent, *place)
    assert code == 0
    assert "added 8, changed 0, removed 0" in out
    assert "added 0, changed 0, removed 1" in run("apply", patent, "--remove-others", *place)[1]
    assert len(listed(run, place)["rules"]) == 8
    broken = tmp_path / "broken.rules"
    broken.write_text("good: WEIGHT 1 USE hdd\nbad: WEIGHT 1 USE hdd WHEN SZE > 1\n")
    code, _, err = run("apply", str(broken), *place)
    assert code == 1
    assert "line 2" in err
    assert len(listed(run, place)["rules"]) == 8


def test_the_rules_in_force_are_explained(run: Run, place: tuple[str, str], patent: str) -> None:
    run("apply", patent, *place)
    told = explained(run, "--size", "35", "--type", "TEXT", "--status", "HDD=-10", *place)
    assert told["chosen"] == ["HDD"]
    assert {r["id"] for r in told["rules"] if r["matched"]} == {"W-001"}
    code, _, err = run("explain", "--strategy", "fuzzy", *place)
    assert code == 2
    assert "--strategy is for rules in a file" in err


def test_a_queue_that_is_not_there_is_pointed_out(run: Run, tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("orders"))
    place = "--data", str(tmp_path / "data")
    code, out, err = run("explain", "--set", "QUEUE=order", *place)
    assert (code, out.splitlines()[0]) == (0, "log, by first_match")
    assert "attention: there is no queue 'order'" in err
    assert "did you mean 'orders'?" in err
    assert "attention" not in run("explain", "--set", "QUEUE=orders", *place)[2]
    assert "attention" not in run("explain", *place)[2]


def test_rules_are_applied_to_what_is_stored(run: Run, tmp_path: Path) -> None:
    hdd = {"kind": "file", "directory": str(tmp_path / "hdd"), "capacity_bytes": 1 << 30}
    with Served(tmp_path / "data", devices={"hdd": hdd}) as served:
        place = "--url", f"http://127.0.0.1:{served.port}"
        receipts = served.broker.publish("q", [Message(b"x" * 2_048) for _ in range(20)])
        assert run("add", "big: WEIGHT 9 USE hdd WHEN SIZE > 1", *place)[0] == 0
        assert list(served.broker.why(receipts[0].id)["copies"]) == ["log"]
        code, out, _ = run("apply", "--existing", *place)
        assert (code, out) == (0, "20 messages to be moved\n")
        wait_until(
            lambda: all(list(served.broker.why(r.id)["copies"]) == ["hdd"] for r in receipts),
            "the move",
        )
        code, out, _ = run("apply", "--existing", *place, "--json")
        assert (code, json.loads(out)) == (0, {"moving": 0})
        assert len(served.broker.lease("q", 20)) == 20


def test_what_there_is_to_apply_must_be_said(run: Run, tmp_path: Path) -> None:
    code, _, err = run("apply", "--data", str(tmp_path / "data"))
    assert code == 2
    assert "--existing" in err
