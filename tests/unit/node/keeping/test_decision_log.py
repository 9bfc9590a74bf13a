"""The decisions log: what is noted is found, in order, after a restart, and within a bound."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from ebbmq.core.copies import name_of
from ebbmq.node.keeping.decision_log import Batch, DecisionLog, Said, Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ebbmq.core.copies import Name

BASE = name_of(3, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DecisionLog]:
    log = DecisionLog(tmp_path)
    yield log
    log.close()


def told(at_ms: int, event: str, *names: Name, device: str = "hdd", reason: str = "move") -> Told:
    return Told(at_ms, event, device, reason, list(names))


def events(log: DecisionLog, name: Name) -> list[tuple[int, str]]:
    return [(each.at_ms, each.event) for each in log.of(name)]


def test_what_is_noted_is_found_before_and_after_it_is_written(log: DecisionLog) -> None:
    log.note(Told(5, "placed", "hdd, log", "rule W-001", range(BASE, BASE + 100)))
    assert log.of(BASE + 99) == [Told(5, "placed", "hdd, log", "rule W-001", [BASE + 99])]
    log.flush()
    assert log.of(BASE) == [Told(5, "placed", "hdd, log", "rule W-001", [BASE])]
    assert log.of(BASE + 100) == log.of(BASE - 1) == []


def test_decisions_of_one_instant_are_told_in_the_order_they_were_made(log: DecisionLog) -> None:
    for event in ("placed", "copied", "moved", "copied", "placed"):
        log.note(told(7, event, BASE))
    assert [event for _, event in events(log, BASE)] == [
        "placed", "copied", "moved", "copied", "placed",
    ]  # fmt: skip


def test_a_text_that_has_no_bytes_costs_decisions_and_ends_nobody(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.note(told(1, "placed", BASE, reason="caf\udce9"))
    log.flush()
    log.note(told(2, "moved", BASE))
    log.note(told(3, "dropped", BASE, device="\ud800"))
    log.close()
    log = DecisionLog(tmp_path)
    log.note(told(4, "copied", BASE))
    assert events(log, BASE) == [(4, "copied")]
    log.close()


@pytest.mark.parametrize("more", [(), range(100, 200, 3), [300, 299, 298, *range(301, 330)]])
def test_messages_in_any_order_are_each_found(log: DecisionLog, more: Sequence[int]) -> None:
    names = [BASE + number for number in (9, 1, 5, 4, 70_000, *more)] + [name_of(4, 1)]
    log.note(told(1, "lost", *names))
    log.note(told(2, "asked", BASE + 70_001))
    assert all(events(log, name) == [(1, "lost")] for name in names)
    others = {BASE + number for number in range(400)}.difference(names)
    assert all(events(log, name) == [] for name in others)


def test_of_messages_placed_together_for_many_reasons_each_has_its_own(log: DecisionLog) -> None:
    saids = [Said("log", f"rule W-{number % 7}") if number % 5 else None for number in range(100)]
    log.note(told(4, "copied", BASE + 1))
    log.note(Batch(5, BASE, saids))
    log.note(told(6, "moved", BASE + 1))
    for _ in range(2):
        for number, said in enumerate(saids):
            found = [each for each in log.of(BASE + number) if each.event == "placed"]
            wanted = [] if said is None else [Told(5, "placed", *said, [BASE + number])]
            assert found == wanted
        assert events(log, BASE + 1) == [(4, "copied"), (5, "placed"), (6, "moved")]
        assert log.of(BASE + 100) == log.of(BASE - 1) == []
        log.flush()


def test_another_start_has_them_and_goes_on_after_them(tmp_path: Path) -> None:
    for at_ms in (1, 2, 3):
        log = DecisionLog(tmp_path)
        log.note(told(at_ms, "copied", BASE))
        log.close()
    log = DecisionLog(tmp_path)
    assert events(log, BASE) == [(1, "copied"), (2, "copied"), (3, "copied")]
    log.close()


def test_a_block_that_was_cut_short_goes_and_what_was_before_it_stays(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.note(told(1, "placed", BASE))
    log.flush()
    log.note(told(2, "copied", BASE))
    log.close()
    path = tmp_path / "decisions.log"
    path.write_bytes(path.read_bytes()[:-3])
    log = DecisionLog(tmp_path)
    log.note(told(3, "lost", BASE))
    assert events(log, BASE) == [(1, "placed"), (3, "lost")]
    log.close()


def test_a_damaged_block_is_passed_over(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    for at_ms, event in enumerate(("placed", "copied", "moved"), 1):
        log.note(told(at_ms, event, BASE))
        log.flush()
    path = tmp_path / "decisions.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"copied")] ^= 1
    path.write_bytes(bytes(data))
    assert events(log, BASE) == [(1, "placed"), (3, "moved")]
    log.close()


def test_it_stays_within_its_bound_and_says_since_when_it_knows(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, bytes_max=1_000)
    assert log.since_ms() is None
    for number in range(100):
        log.note(told(number, "copied", BASE + number))
        log.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000
    assert events(log, BASE) == []
    assert events(log, BASE + 99) == [(99, "copied")]
    since_ms = log.since_ms()
    assert since_ms is not None
    assert events(log, BASE + since_ms) == [(since_ms, "copied")]
    assert events(log, BASE + since_ms - 1) == []
    log.close()


def test_since_when_it_knows_counts_messages_placed_together(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, bytes_max=1)
    for at_ms in (1, 2, 3):
        log.note(Batch(at_ms, BASE, [Said("log", "rule W-1"), None]))
        log.flush()
    assert log.since_ms() == 2
    assert events(log, BASE) == [(2, "placed"), (3, "placed")]
    log.close()


def test_the_same_about_neighbours_takes_no_more_room_than_about_one(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    for number in range(1_000):
        log.note(told(10 + number // 100, "placed", BASE + number, reason="default"))
    log.flush()
    assert (tmp_path / "decisions.log").stat().st_size < 200
    # It is not told that a message was placed before it came.
    assert all(log.of(BASE + number)[0].at_ms >= 10 + number // 100 for number in range(1_000))
    log.close()


def test_a_disk_that_takes_nothing_costs_decisions_and_nothing_else(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, bytes_max=0)
    log.note(told(1, "placed", BASE))
    log.flush()
    (tmp_path / "decisions.1.log").unlink(missing_ok=True)
    (tmp_path / "decisions.1.log").mkdir()
    (tmp_path / "decisions.1.log" / "in the way").touch()
    log.note(told(2, "copied", BASE))
    log.flush()
    (tmp_path / "decisions.1.log" / "in the way").unlink()
    (tmp_path / "decisions.1.log").rmdir()
    log.note(told(3, "moved", BASE))
    assert events(log, BASE) == [(1, "placed"), (3, "moved")]
    log.close()


def test_a_turn_of_files_that_failed_is_made_up_for(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, bytes_max=1)
    log.note(told(1, "copied", BASE))
    log.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        log.note(told(2, "dropped", BASE))
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    log.note(told(3, "moved", BASE))
    log.flush()
    assert events(log, BASE) == [(1, "copied"), (3, "moved")]
    log.close()


def test_a_log_that_is_closed_leaves_other_files_alone(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions")
    log.note(told(1, "lost", BASE))
    log.close()
    other = tmp_path / "other"
    # Whoever opens a file next has the number of the one that was closed.
    with other.open("wb", buffering=0) as file:
        file.write(b"of somebody else")
        log.note(told(2, "asked", BASE))
        log.flush()
        log.close()
        file.write(b", whole")
    assert other.read_bytes() == b"of somebody else, whole"
    assert events(log, BASE) == [(1, "lost"), (2, "asked")]
