"""Advice in a lake, a directory or an object store: all of a run is read, or an error names why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq.feed import manifests, runs
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.manifests import Manifest, Part, UnknownFeed
from ebbmq.feed.plans import PLANS
from ebbmq.feed.rates import RATES
from ebbmq.holding.bucket import Bucket
from ebbmq.node.advising import reading
from ebbmq.node.feeding.lake import DirectoryLake, ObjectLake
from tests.advice import (
    plan_row,
    publish,
    rate_row,
    write,
    write_plan,
    write_rates,
    write_record,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ebbmq.node.feeding.lake import Lake

AT_MS = 1_700_000_000_000
DAY_MS = 86_400_000
COLUMNS = ("message_id", "to_tier", "value")


@pytest.fixture(params=["directory", "object"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    root = tmp_path / "lake"
    root.mkdir()
    if request.param == "directory":
        return DirectoryLake(root)
    return ObjectLake(Bucket(f"file://{root}", {}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def rows(lake: Lake, run: str, node: str | None = "n1") -> list[Any]:
    found, refused = reading.find(lake, PLANS)
    assert not refused
    (chosen,) = [each for each in found if each.run == run]
    return [
        value
        for batch in reading.batches(lake, PLANS, chosen, COLUMNS, node)
        for value in zip(*batch.values(), strict=True)
    ]


def test_rows_about_a_node_come_from_all_files_of_its_run(lake: Lake, root: Path) -> None:
    files = [
        write(
            root,
            PLANS,
            f"plans/run=r1/part-{number:05d}-of-spark.c000.snappy.parquet",
            [plan_row(f"{number}-{seq}", node=f"n{seq % 2}", value=seq) for seq in range(100)],
            None,
        )
        for number in range(3)
    ]
    publish(root, PLANS, files, AT_MS, rows=100)
    found = rows(lake, "r1")
    assert len(found) == 150
    assert found[0] == ("0-1", "archive", 1.0)
    assert len(rows(lake, "r1", None)) == 300
    assert rows(lake, "r1", "n10") == []


def test_groups_and_files_of_other_nodes_are_passed_over(lake: Lake, root: Path) -> None:
    told = [plan_row(f"1-{seq:x}", node=f"n{seq // 1_000}") for seq in range(3_000)]
    path = root / "plans" / "run=r1" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(told, schema_of(PLANS)), path, row_group_size=500)
    own = root / "plans" / "run=r1" / "node=n1" / "part-0.parquet"
    other = root / "plans" / "run=r1" / "node=n2" / "part-0.parquet"
    own.parent.mkdir()
    table = pa.Table.from_pylist(told[:1], schema_of(PLANS)).drop_columns(["node"])
    pq.write_table(table, own)
    other.parent.mkdir()
    other.write_bytes(b"x" * 100)  # it would be refused if it was opened
    publish(root, PLANS, [path], AT_MS, rows=3_000)
    publish(root, PLANS, [own, other], AT_MS, rows=1)
    assert len(rows(lake, "r1")) == 1_001


def test_runs_are_found_in_the_order_they_were_written_in(lake: Lake, root: Path) -> None:
    for day in (2, 0, 1):
        write_plan(root, f"r{day}", [plan_row("1-1")], AT_MS + day * DAY_MS)
    write_rates(root, "r9", [rate_row("q", 2.0)], AT_MS)
    assert [each.run for each in reading.find(lake, PLANS)[0]] == ["r0", "r1", "r2"]
    assert [each.run for each in reading.find(lake, RATES)[0]] == ["r9"]


def test_a_manifest_is_read_once_and_what_is_no_manifest_again_when_it_changes(
    lake: Lake, root: Path
) -> None:
    sight = reading.Sight(lake, PLANS)
    assert sight.find() == ([], [])
    write_plan(root, "r1", [plan_row("1-1")], AT_MS)
    write_record(root, "r22", AT_MS)
    (manifest,) = (root / "plans" / "_manifests").rglob("*.json")
    wrong = manifest.with_name("x.json")
    wrong.write_text("{}")
    (found,), (refused,) = sight.find()
    assert (found.run, "x.json is no manifest" in refused.detail) == ("r1", True)
    good = manifest.read_bytes()
    manifest.write_bytes(b"x" * len(good))
    wrong.write_bytes(good.replace(b"run=r1", b"run=r22"))
    found, refused = sight.find()
    assert ([each.run for each in found], refused) == (["r1", "r22"], [])
    manifest.unlink()
    wrong.unlink()
    assert sight.find() == ([], [])


def test_a_run_without_a_record_is_not_found(lake: Lake, root: Path) -> None:
    sight = reading.Sight(lake, PLANS)
    write_plan(root, "r1", [plan_row("1-1")], AT_MS)
    place = root / runs.record_file("r1")
    place.rename(root / runs.begun_file("r1"))
    assert sight.find() == reading.find(lake, PLANS) == ([], [])
    write_record(root, "r1", AT_MS)
    assert [each.run for each in sight.find()[0]] == ["r1"]


def outdated(lake: Lake, before_ms: int, node: str = "n1") -> int | None:
    (found,), _ = reading.find(lake, PLANS)
    return reading.outdated(lake, PLANS, found, node, before_ms)


def test_a_plan_is_too_old_for_a_node_if_all_its_rows_were_decided_before(
    lake: Lake, root: Path
) -> None:
    told = [
        plan_row(f"1-{seq}", node=f"n{seq % 2}", decided_at_ms=AT_MS + seq % 2) for seq in range(99)
    ]
    path = root / "plans" / "run=r1" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(told, schema_of(PLANS)), path, row_group_size=40)
    publish(root, PLANS, [path], AT_MS, rows=99)
    assert outdated(lake, AT_MS + 2) == 49
    assert outdated(lake, AT_MS + 2, "n0") == 50
    assert outdated(lake, AT_MS + 2, "none") == 0
    assert outdated(lake, AT_MS + 1) is None
    path.unlink()
    with pytest.raises(UnknownFeed, match="is missing"):
        outdated(lake, AT_MS + 2)


def damage(path: Path, how: str) -> None:
    table = pq.read_table(path, partitioning=None)
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "text":
        path.write_bytes(b"PAR1 this is none PAR1")
    elif how == "a column lacks":
        pq.write_table(table.drop_columns(["generation"]), path)
    elif how == "other rows":
        pq.write_table(pa.concat_tables([table, table]), path)
    elif how == "other types":
        at = table.schema.get_field_index("target")
        pq.write_table(table.set_column(at, "target", pa.array(["many"])), path)
    elif how in ("bad text", "a bad tier"):
        at = table.schema.get_field_index("to_tier" if how == "a bad tier" else "reason")
        offsets = pa.py_buffer(b"\0\0\0\0\4\0\0\0")
        bad = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"a\xff\xfeb"))
        pq.write_table(table.set_column(at, table.schema.field(at), bad), path)
    elif how == "a node of another type":
        at = table.schema.get_field_index("node")
        pq.write_table(table.set_column(at, "node", pa.array([7])), path)
    elif how == "no version":
        metadata = {**table.schema.metadata, b"ebbmq.version": b"seven"}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    elif how == "the future":
        metadata = {**table.schema.metadata, b"ebbmq.version": b"7"}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    else:
        path.unlink()


@pytest.mark.parametrize(
    "how",
    [
        "torn",
        "text",
        "a column lacks",
        "other rows",
        "other types",
        "the future",
        "missing",
        "bad text",
        "a bad tier",
        "a node of another type",
        "no version",
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named(lake: Lake, root: Path, how: str) -> None:
    path = write_plan(root, "r1", [plan_row("1-1")], AT_MS)
    damage(path, how)
    if path.exists() and how != "torn":
        # Of the right size, as far as its manifest says.
        next((root / "plans" / "_manifests").rglob("*.json")).unlink()
        publish(root, PLANS, [path], AT_MS, rows=1)
    (found,), _ = reading.find(lake, PLANS)
    with pytest.raises(UnknownFeed, match=r"run=r1/part-00000\.parquet"):
        list(reading.batches(lake, PLANS, found, (*COLUMNS, "target", "reason"), "n1"))


def test_what_rows_are_worth_is_read_without_optional_columns(lake: Lake, root: Path) -> None:
    path = write_plan(root, "r1", [plan_row("1-1", value=2.0, bytes=9)], AT_MS)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["to_tier"]), path)
    next((root / "plans" / "_manifests").rglob("*.json")).unlink()
    publish(root, PLANS, [path], AT_MS, rows=1)
    (found,), _ = reading.find(lake, PLANS)
    ranked = reading.worth(lake, found, "n1")[None].ranked()
    assert (ranked.values.tolist(), ranked.sizes.tolist()) == ([2.0], [9])


def test_a_run_whose_name_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    bucket = Bucket("memory://", {})
    lake, table = ObjectLake(bucket), PLANS
    part = Part(path=f"plans/run={'x' * 256}/part-00000.parquet", rows=0, bytes=1)
    manifest = Manifest(
        table="plans", version=1, node="n", boot=1, number=1, written_at_ms=1, parts=(part,)
    )
    lake.publish("plans/_manifests/date=2023-11-14/m.json", manifests.encode(manifest))
    found, (refused,) = reading.find(lake, table)
    assert (found, "not of one run" in refused.detail) == ([], True)


def test_a_manifest_whose_name_is_no_text_is_named_in_text(tmp_path: Path) -> None:
    place = tmp_path / "plans" / "_manifests" / "date=2023-11-14"
    place.mkdir(parents=True)
    (place / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    _, (refused,) = reading.find(DirectoryLake(tmp_path), PLANS)
    assert "caf\\udce9.json is no manifest" in refused.detail.encode().decode()


def test_a_manifest_leads_nowhere_else(lake: Lake, root: Path, tmp_path: Path) -> None:
    path = write_plan(root, "r1", [plan_row("1-1")], AT_MS)
    (manifest,) = (root / "plans" / "_manifests").rglob("*.json")
    good = manifest.read_text()
    name = str(path.relative_to(root))
    for place in ("plans/run=r1/../../x.parquet", "/etc/passwd", "events/run=r1/x", "plans/x"):
        manifest.write_text(good.replace(name, place))
        assert reading.find(lake, PLANS)[0] == []
        assert len(reading.find(lake, PLANS)[1]) == 1
    manifest.write_text(good.replace('"plans"', '"rates"'))
    assert "stands among the plans" in reading.find(lake, PLANS)[1][0].detail
