"""The tables of the lake: what is written can be read, and what is not known is refused by name."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from ebbmq.feed import events, layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import TABLES, Manifest, Part, UnknownFeed, decode, encode
from ebbmq.feed.snapshots import CATALOG
from ebbmq.model import REASON_TEXT

AT_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
MANIFEST = Manifest(
    table="events",
    version=1,
    node="a",
    boot=3,
    number=7,
    written_at_ms=AT_MS,
    parts=(Part("events/date=2023-11-14/x.parquet", 10, 2_000),),
    first_seq=1,
    last_seq=10,
)


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(encode(MANIFEST)), **fields})


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_is_the_same_in_arrow(table) -> None:
    schema = schema_of(table)
    assert tuple(schema.names) == table.names
    assert tuple(field.name for field in schema if not field.nullable) == table.required
    assert schema.metadata == {
        b"ebbmq.table": table.name.encode(),
        b"ebbmq.version": str(table.version).encode(),
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_column_is_told_once_and_has_a_meaning(table) -> None:
    assert len(set(table.names)) == len(table.names)
    assert all(column.meaning for column in table.columns)


def test_the_first_version_of_the_events_stays_as_it_was_written() -> None:
    assert EVENTS.required == (
        "node", "boot", "seq", "at_ms", "queue", "partition", "message_id", "generation", "event",
    )  # fmt: skip
    assert schema_of(EVENTS).field("decay_score").type == pa.float64()
    assert schema_of(CATALOG).field("devices").type == pa.list_(pa.string())


def test_every_way_to_leave_a_queue_by_age_is_an_event() -> None:
    assert {"stale", "expired"} <= events.LAST & set(REASON_TEXT.values())
    assert set(events.NAMES) >= events.LAST | events.READS | events.FAILURES | events.SETTLES


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(encode(MANIFEST), "m.json") == MANIFEST


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        (b"", "no manifest"),
        (b"[1]", "no manifest"),
        (encode(MANIFEST)[:-9], "no manifest"),
        (changed(parts="all"), "no manifest"),
        (changed(surprise=1), "no manifest"),
        (changed(format=2, surprise=1), "format 2"),
        (changed(version=2), "version 2 of events"),
        (changed(version=0), "version 0 of events"),
        (changed(table="dreams"), "'dreams'"),
        (b'{"format":1,"table":"\xff"}', "is no manifest"),
    ],
)
def test_what_is_not_known_is_refused_by_name(stored: bytes, what: str) -> None:
    with pytest.raises(UnknownFeed, match=what) as refused:
        decode(stored, "events/_manifests/m.json")
    assert "events/_manifests/m.json" in refused.value.detail
    assert refused.value.action


def test_names_are_by_the_hour_in_utc_and_sort_by_instant() -> None:
    assert layout.events_file(AT_MS, "a", 3, 7) == (
        "events/date=2023-11-14/hour=22/node=a/00000003-000000007.parquet"
    )
    names = [layout.manifest_file("events", at, "a", 1, 1) for at in (AT_MS, AT_MS + 1, 10 * AT_MS)]
    assert names == sorted(names)


@pytest.mark.parametrize("node", ["a", "", "..", "../../etc", "a/b", "a b", "ä=1", "%41", "a.b"])
def test_a_nodes_name_leads_nowhere_else_and_can_be_read_back(node: str) -> None:
    part = layout.segment(node)
    assert part
    assert not set(part) & {"/", ".", "="}
    assert layout.value_of(part) == node


@pytest.mark.parametrize("run", ["20261116T030000Z-1", "a/b", "..", "node=x"])
def test_a_run_is_told_by_the_names_of_its_files(run: str) -> None:
    for path in (layout.plan_file(run, 0), layout.rate_file(run, 1), layout.profile_file(run, 2)):
        assert layout.told_in(path, "run") == run
        assert layout.told_in(path, "node") is None
        assert path.count("/") == 2
