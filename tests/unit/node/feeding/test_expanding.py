"""Batches taken apart: each event of them as if it had been told alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ebbmq.core import facts as fact
from ebbmq.core import happened as core
from ebbmq.core.block import as_words
from ebbmq.core.happened import Happened
from ebbmq.core.row import FREE, HIGH, LEASED, READY, ROW, SCHEDULED
from ebbmq.feed import events
from ebbmq.model import REASON_TEXT, Reason
from ebbmq.node.feeding import arrays
from ebbmq.node.feeding.buffer import Buffer, Decided, Gap
from ebbmq.node.feeding.expanding import Texts, expand, in_pieces

AT_MS = 1_700_000_000_000
PLACES = {2: ("q", 0), 31: ("r", 4)}


def row(state=READY, *, generation=0, failures=0, due_ms=0, importance=5, length=9) -> tuple:
    return (
        state, 1, importance, 0, 250_000_000, AT_MS | failures << HIGH, AT_MS + 5_000,
        due_ms, 1, 1, 0, length, 0, generation, 7,
    )  # fmt: skip


def packed(*rows: tuple) -> bytes:
    return b"".join(ROW.pack(*each) for each in rows)


def removal(seq: int, reason: Reason, moved_pid: int = 0) -> bytes:
    return fact.REMOVAL.pack(
        2, moved_pid, seq, AT_MS + 9, AT_MS, 3, 9, 0.5, 2, 5, int(reason), 1 if moved_pid else 0
    )


def told(*batches) -> list[dict]:
    """The events of some batches, as rows of the table without what is absent."""
    numbers, number = [], 1
    for batch in batches:
        number += batch.missing if isinstance(batch, Gap) else 0
        numbers += range(number, number + batch.messages)
        number += batch.messages
    texts = Texts()
    pieces = [expand(piece, first, texts, PLACES) for piece, first in in_pieces(batches, 1)]
    rows = arrays.events_table(pieces, texts, "n", 3).to_pylist()
    assert [each["seq"] for each in rows] == numbers
    assert {each["event"] for each in rows} <= set(events.NAMES)
    return [{name: value for name, value in each.items() if value is not None} for each in rows]


def test_a_batch_is_told_like_its_messages_one_by_one() -> None:
    rows = [row(), row(SCHEDULED, due_ms=AT_MS + 70), row(importance=9, length=0)]
    whole = told(Happened(core.PUBLISHED, 2, AT_MS, 3, None, packed(*rows), 15))
    single = told(
        *(
            Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(each), 15 + number)
            for number, each in enumerate(rows)
        )
    )
    assert whole == single
    assert [each["message_id"] for each in whole] == ["2-f", "2-10", "2-11"]
    assert [each.get("delay_ms") for each in whole] == [None, 70, None]
    assert [each["bytes"] for each in whole] == [9, 9, 0]
    assert {each["ttl_ms"] for each in whole} == {5_000}
    assert {each["decay_rate"] for each in whole} == {0.25}


def test_what_a_publisher_gave_is_told_apart_from_what_the_queue_did() -> None:
    nothing, some, every = (None, None, None), (7, 60_000, None), (7, None, 0.0)
    rows = packed(*[row()] * 5)
    batches = [
        Happened(core.PUBLISHED, 2, AT_MS, 5, None, rows, 1, given=[some, nothing, every],
                 given_from=[0, 1, 4]),
        Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 6, given=(every,)),
        Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 7),
    ]  # fmt: skip
    found = [(each.get("given"), each.get("given_decay_rate")) for each in told(*batches)]
    assert found == [
        ("importance ttl_ms", None),
        *[("nothing", None)] * 3,
        *[("importance decay_rate", 0.0)] * 2,
        (None, None),
    ]
    assert {
        each["given"] for each in told(batches[0]._replace(given=[nothing], given_from=[0]))
    } == {"nothing"}


def test_of_a_publish_only_what_waits_is_scheduled() -> None:
    rows = packed(row(), row(SCHEDULED, due_ms=AT_MS + 70), row())
    (event,) = told(Happened(core.SCHEDULED, 2, AT_MS, 1, None, rows, 15))
    assert (event["event"], event["message_id"], event["delay_ms"]) == ("scheduled", "2-10", 70)


@pytest.mark.parametrize("form", [list, lambda rows: as_words(packed(*rows)), lambda r: packed(*r)])
def test_rows_are_read_in_every_form_verbs_have_them(form) -> None:
    rows = [row(generation=2, failures=1), row(generation=0)]
    found = told(Happened(core.LEASED, 31, AT_MS + 5, 2, [7, 3], form(rows), 7, name="w"))
    assert [(each["message_id"], each["generation"], each["failures"]) for each in found] == [
        ("1f-7", 3, 1), ("1f-3", 1, 0),
    ]  # fmt: skip
    assert {(each["queue"], each["partition"], each["consumer"]) for each in found} == {
        ("r", 4, "w")
    }


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (core.ACKED, "acked"),
        (core.RETRIED, "retried"),
        (core.RELEASED, "released"),
        (core.LEASE_EXPIRED, "lease_expired"),
    ],
)
def test_the_end_of_a_lease_says_how_long_it_lasted(kind: int, event: str) -> None:
    held = row(LEASED, generation=1, due_ms=AT_MS + 1_000)
    ended = Happened(kind, 2, AT_MS + 300, 1, (4,), (held,), 4, lease_ms=900, delay_ms=50)
    (found,) = told(ended)
    assert (found["event"], found["latency_ms"], found["delay_ms"]) == (event, 200, 50)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_way_to_leave_is_an_event_with_its_reason(reason: Reason) -> None:
    (kept, moved) = told(
        Happened(core.REMOVED, 2, AT_MS, 1, None, removal(5, reason), 5),
        Happened(core.REMOVED, 2, AT_MS, 1, None, removal(6, reason, moved_pid=31), 6),
    )
    text = REASON_TEXT[reason]
    assert kept["event"] == (text if text in ("stale", "expired") else "removed")
    assert moved["event"] == ("dead_lettered" if text != "redriven" else "removed")
    assert kept["reason"] == moved["reason"] == text
    assert (kept["generation"], kept["failures"], kept["at_ms"]) == (3, 2, AT_MS + 9)


@pytest.mark.parametrize("event", sorted(events.COPIES))
def test_what_becomes_of_copies_is_told_also_of_a_message_that_is_gone(event: str) -> None:
    known = as_words(packed(row(generation=4), (FREE, *([0] * 14))))
    seqs = np.array([1, 2], dtype=np.uint64)
    there, gone = told(Decided(event, 2, AT_MS, 2, seqs, known, "ssd", "why", 12.5))
    same = ("event", "device", "reason", "decay_score", "queue")
    assert [[each[name] for name in same] for each in (there, gone)] == [
        [event, "ssd", "why", 12.5, "q"]
    ] * 2
    assert (there["generation"], there["bytes"]) == (4, 9)
    assert not {"bytes", "failures", "importance", "decay_rate", "enqueued_at_ms"} & gone.keys()


def test_a_gap_is_of_no_message() -> None:
    published = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    _, gap = told(published, Gap(AT_MS, 77))
    assert (gap["event"], gap["queue"], gap["message_id"]) == ("gap", "", "")
    assert gap["reason"].startswith("77 ")


def test_numbers_are_written_as_ids_have_them() -> None:
    numbers = [0, 1, 15, 16, 255, 4_096, 65_535, 65_536, 2**32, 2**48, 2**64 - 1]
    for some in (numbers, [17, 18], [2**40], []):
        for pid in (1, 2, 31, 2**32 - 1):
            found = arrays.message_ids(np.full(len(some), pid), np.array(some, dtype=np.uint64))
            assert isinstance(found, pa.StringArray)
            found.validate(full=True)
            assert found.to_pylist() == [f"{pid:x}-{each:x}" for each in some]
    assert arrays.message_ids(np.array([0, 7]), np.array([9, 9])).to_pylist() == ["", "7-9"]


def test_what_was_taken_is_taken_again_until_it_is_let_go() -> None:
    woken: list[bool] = []
    buffer = Buffer(4_000, lambda: woken.append(True))
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    for _ in range(6):
        buffer.tell(batch)
    assert (buffer.missed, bool(woken), buffer.first) == (2, True, 1)
    assert buffer.take(2) == [batch] * 2
    assert buffer.take(2) == [batch] * 2
    buffer.let_go()
    assert buffer.first == 3
    buffer.tell_gap()
    buffer.tell(batch)
    assert buffer.take(10) == [batch, batch, Gap(AT_MS, 2), batch]
    buffer.let_go()
    assert (buffer.pending_bytes, buffer.take(10)) == (0, [])
    # Two were taken at first, two left out, and there is the gap itself.
    assert buffer.first == 1 + 2 + 2 + 2 + 1 + 1


def test_a_buffer_that_is_emptied_in_time_leaves_nothing_out_and_wakes_when_half_full() -> None:
    woken: list[int] = []
    buffer = Buffer(8_000, lambda: woken.append(buffer.pending_bytes))
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    for _ in range(20):
        while not woken:
            buffer.tell(batch)
        assert woken == [buffer.pending_bytes] == [4_500]
        assert len(buffer.take(100)) == 5
        buffer.let_go()
        woken.clear()
    assert (buffer.missed, buffer.first, buffer.pending_bytes) == (0, 101, 0)


def test_many_batches_are_told_in_pieces_that_follow_each_other() -> None:
    some = packed(*[row()] * 4_000)
    batches = [
        Gap(AT_MS, 30_000) if number in (3, 7) else
        Happened(core.PUBLISHED, 2, AT_MS, 4_000, None, some, number * 4_000)
        for number in range(12)
    ]  # fmt: skip
    assert len(list(in_pieces(batches, 1))) > 2
    found = told(*batches)
    assert len(found) == 40_002
    assert [each["event"] for each in found].count("gap") == 2
