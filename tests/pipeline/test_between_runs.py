"""What is wrong between the events of two runs is found as if one run had read them all."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ebbmq.cli.main import cli
from ebbmq.feed import layout, runs
from ebbmq.feed.heard import Stretch
from ebbmq.feed.profiles import PROFILES
from ebbmq.feed.runs import Checks, Record
from ebbmq.feed.steps import STEPS
from ebbmq_spark import session
from ebbmq_spark.jobs.running import Arguments, run
from tests.pipeline.handwritten import show, tell
from tests.pipeline.lakes import rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

NUMBER = 'class="number"'
Rows = list[dict[str, Any]]


def told(*events: tuple[int, str, str]) -> Rows:
    """Rows of a number, a message and what happened to it."""
    return [{"seq": seq, "message_id": who, "event": event} for seq, who, event in events]


def published(*numbers: int) -> Rows:
    return told(*((number, f"m{number}", "published") for number in numbers))


def in_parts(spark: SparkSession, lake: Path, parts: Sequence[Rows]) -> list[Record]:
    """The record of a run after each of some files."""
    records = []
    for number, part in enumerate(parts, 1):
        tell(lake, number, part, at_ms=time.time_ns() // 1_000_000)
        records.append(run(spark, Arguments(lake)))
    return records


def found(records: Sequence[Record]) -> tuple[int, int, int, int]:
    """Events, duplicates, missing after all, impossible."""
    return (
        sum(each.events for each in records),
        sum(each.duplicates for each in records),
        sum(each.missing - each.recovered for each in records),
        sum(each.impossible for each in records),
    )


def counted(lake: Path) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows(lake, PROFILES):
        sums[row["event"]] = sums.get(row["event"], 0) + row["count"]
    return sums


def test_in_parts_as_much_is_found_and_counted_as_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    parts = [
        told((1, "a", "published"), (2, "a", "leased"), (3, "a", "acked"), (4, "b", "acked")),
        # The last again, a message that was gone, two are missing, one of which may have leased c.
        told((4, "b", "acked"), (5, "b", "published"), (6, "c", "published"), (9, "c", "acked")),
        # What was missing, and what was told before that.
        told((7, "d", "published"), (8, "d", "leased"), (2, "a", "leased")),
        told((10, "d", "leased"), (11, "a", "published"), (13, "e", "published")),
    ]
    records = in_parts(spark, tmp_path, parts)
    assert [each.duplicates for each in records] == [0, 1, 1, 0]
    assert [(each.missing, each.recovered) for each in records] == [(0, 0), (2, 0), (0, 2), (1, 0)]
    assert [each.impossible for each in records] == [0, 1, 0, 2]
    happened = counted(tmp_path)
    records.append(run(spark, Arguments(tmp_path)))
    assert (records[-1].events, records[-1].heard) == (0, records[-2].heard)
    whole = run(spark, Arguments(tmp_path, full=True))
    assert found(records) == (14, 2, 1, 3)
    # By now it is known that c was not leased.
    assert found([whole]) == (14, 2, 1, 4)
    assert counted(tmp_path) == happened
    assert sum(happened.values()) == 14 - 2
    assert whole.heard == records[-1].heard == {"a": {1: (Stretch(1, 11), Stretch(13, 13))}}


def test_a_row_that_is_set_aside_is_not_missing_and_hides_only_its_own_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    parts = [
        told((1, "a", "published"), (2, "b", "published"), (3, "b", "eaten"), (4, "a", "acked")),
        # What b went through is not known, also to the next run.
        told((5, "b", "acked"), (6, "c", "published"), (7, "d", "published"), (8, "c", "eaten")),
        told((9, "c", "leased"), (10, "d", "acked"), (11, "e", "published")),
        # This may have been about e, and about whoever came before.
        [{"seq": 12, "message_id": None}, *told((13, "e", "acked"), (14, "f", "published"))],
        told((15, "b", "leased"), (16, "f", "acked")),
    ]
    records = in_parts(spark, tmp_path, parts)
    assert [each.rejected for each in records] == [1, 1, 0, 1, 0]
    assert [each.impossible for each in records] == [1, 0, 1, 0, 1]
    whole = run(spark, Arguments(tmp_path, full=True))
    assert found(records) == found([whole]) == (16, 0, 0, 3)
    assert whole.rejected == 3
    assert whole.heard == records[-1].heard == {"a": {1: (Stretch(1, 16),)}}


def test_a_gap_that_a_restored_file_fills_is_told_to_be_filled(
    spark: SparkSession, tmp_path: Path
) -> None:
    tell(tmp_path, 1, published(1, 2))
    path = tell(tmp_path, 2, told((3, "m1", "leased"), (4, "m2", "leased")))
    stored = path.read_bytes()
    path.write_bytes(stored[:-1])
    tell(tmp_path, 3, told((5, "m1", "acked"), (6, "m2", "acked")))
    one = run(spark, Arguments(tmp_path))
    assert (len(one.refused), one.missing) == (1, 2)
    two = run(spark, Arguments(tmp_path))
    # It is still refused, and not told to be missing once more.
    assert (len(two.refused), two.missing, two.recovered) == (1, 0, 0)
    path.write_bytes(stored)
    three = run(spark, Arguments(tmp_path))
    assert (three.events, three.missing, three.recovered) == (2, 0, 2)
    # What is read late happened, whatever was told after it.
    assert (three.impossible, three.duplicates) == (0, 0)
    assert found([run(spark, Arguments(tmp_path, full=True))])[:3] == (6, 0, 0)


def test_what_was_told_late_counts_for_what_comes_next(spark: SparkSession, tmp_path: Path) -> None:
    records = in_parts(
        spark,
        tmp_path,
        [
            told((1, "m", "published"), (4, "n", "published")),
            told((2, "m", "leased")),
            told((3, "m", "acked"), (5, "n", "acked"), (6, "m", "leased")),
        ],
    )
    # Of 3 nothing is said, for it is late; n was not leased, and m was gone.
    assert [each.impossible for each in records] == [0, 0, 2]
    assert found(records)[:3] == (6, 0, 0)


def test_a_boot_begins_anew_also_after_a_record_that_does_not_say_what_was_heard(
    spark: SparkSession, tmp_path: Path
) -> None:
    parts = told((1, "m", "published"), (2, "m", "leased"), (9, "m", "acked"))
    tell(tmp_path, 1, parts, first_seq=1, last_seq=9)
    one = run(spark, Arguments(tmp_path))
    assert (one.missing, one.impossible) == (6, 0)
    place = tmp_path / runs.record_file(one.run)
    stored = msgspec.json.decode(place.read_bytes())
    del stored["heard"], stored["recovered"]
    place.write_bytes(msgspec.json.encode(stored))
    tell(tmp_path, 2, published(9, 12), first_seq=9, last_seq=12)
    path = tell(tmp_path, 3, [{**row, "boot": 2} for row in told((1, "m", "acked"))])
    show(tmp_path, path, 1, 1, boot=2)
    two = run(spark, Arguments(tmp_path))
    # The last file is named by both boots.
    assert (two.events, two.duplicates, two.missing, two.recovered) == (4, 2, 2, 0)
    assert two.impossible == 0
    assert [(row["boot"], row["seq"]) for row in rows(tmp_path, STEPS)] == [(2, 1)]


def test_what_is_wrong_is_told_by_node(spark: SparkSession, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    tell(tmp_path, 1, published(1, 2, 2, 5), at_ms=now_ms)
    odd = [*told((1, "m", "published"), (2, "m", "acked"), (3, "n", "eaten")), {"seq": None}]
    tell(tmp_path, 1, odd, node="b", at_ms=now_ms)
    tell(tmp_path, 1, published(1, 2), node="sound", at_ms=now_ms)
    tell(tmp_path, 2, [{"node": None, "seq": 1}], node="sound", at_ms=now_ms)
    record = run(spark, Arguments(tmp_path))
    assert record.nodes == {
        "": Checks(events=1, rejected=1),
        "a": Checks(events=4, duplicates=1, missing=2),
        "b": Checks(events=4, rejected=2, impossible=1),
        "sound": Checks(events=2),
    }
    assert (record.events, record.rejected, record.duplicates) == (11, 3, 1)
    assert (record.missing, record.recovered, record.impossible) == (2, 0, 1)
    page = (tmp_path / layout.LATEST_REPORT).read_text()
    for cells in (["a", 4, 0, 2, 0, 1, 0], ["b", 4, 2, 0, 0, 0, 1], ["not told", 1, 1, 0, 0, 0, 0]):
        shown = (f"<td {'' if at == 0 else NUMBER}>{cell}</td>" for at, cell in enumerate(cells))
        assert "".join(shown) in page
    tell(tmp_path, 2, published(3), at_ms=now_ms)
    assert run(spark, Arguments(tmp_path)).nodes == {"a": Checks(events=1, recovered=1, missing=0)}


def test_a_command_shows_what_is_wrong_by_node(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Commands would open a session of their own.
    monkeypatch.setattr(session, "spark_session", lambda *_: contextlib.nullcontext(spark))
    tell(tmp_path, 1, published(1, 2, 5), at_ms=time.time_ns() // 1_000_000)
    command = ["pipeline", "run", "--lake", str(tmp_path)]
    cli.main(command, standalone_mode=False)
    out = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "3 events read, 0 rejected, 2 missing, 0 told twice, 0 impossible" in out[0]
    assert out[1:3] == [
        "NODE EVENTS REJECTED MISSING CAME AFTER ALL TWICE IMPOSSIBLE",
        "a 3 0 2 0 0 0",
    ]
    cli.main([*command, "--full", "--json"], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    assert shown["nodes"]["a"] == msgspec.to_builtins(Checks(events=3, missing=2))


def test_a_record_of_before_nodes_were_told_apart_can_be_read() -> None:
    old = Record(run="r", kind="run", started_at_ms=1, ended_at_ms=2, missing=3)
    stored = msgspec.json.decode(runs.encode(old))
    del stored["nodes"]
    assert runs.decode(msgspec.json.encode(stored), "r.json") == old
