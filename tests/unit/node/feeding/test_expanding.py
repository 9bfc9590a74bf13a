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
from ebbmq.node.feeding.expanding import Texts, expand
from ebbmq.node.feeding.joining import (
    BATCH_BYTES,
    CHAR_BYTES,
    EVENTS_MAX,
    KEY_BYTES,
    KEYS_MAX,
    Joined,
    join_batch,
)

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


def joined_of(*batches) -> list[Joined]:
    """Batches joined as a buffer does it, which tells of gaps itself."""
    joined = [Joined()]
    joined[0].begin(1, 2**40)
    for batch in batches:
        if joined[-1].events >= EVENTS_MAX:
            joined.append(Joined())
            joined[-1].begin(joined[-2].next_number, 2**40)
        if isinstance(batch, Gap):
            joined[-1].add_other(batch, 0, batch.missing)
        elif not join_batch(batch, joined[-1].into):
            joined[-1].add_other(batch, 0)
    return joined


def told(*batches) -> list[dict]:
    """The events of some batches, as rows of the table without what is absent."""
    numbers, number = [], 1
    for batch in batches:
        number += batch.missing if isinstance(batch, Gap) else 0
        numbers += range(number, number + batch.messages)
        number += batch.messages
    texts = Texts()
    pieces = [expand(joined, texts, PLACES) for joined in joined_of(*batches)]
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


def test_instant_0_is_told_apart_from_none() -> None:
    began = (*row()[:5], 0, *row()[6:])
    known = as_words(packed(began, (FREE, *([0] * 14))))
    decided = Decided("copied", 2, 0, 2, np.array([1, 2], np.uint64), known, "ssd", "why")
    published = Happened(core.PUBLISHED, 2, 0, 1, None, packed(began), 1)
    found = [each.get("enqueued_at_ms") for each in told(published, decided, Gap(0, 7))]
    assert found == [0, 0, None, None]


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


ONE_BYTES = BATCH_BYTES


def numbers_of(taken: list[Joined]) -> list[int]:
    texts = Texts()
    return [
        number
        for joined in taken
        for number in expand(joined, texts, PLACES).columns["number"].tolist()
    ]


def test_what_was_taken_is_taken_again_until_it_is_let_go() -> None:
    woken: list[bool] = []
    buffer = Buffer(KEY_BYTES + 4 * ONE_BYTES, lambda: woken.append(True))
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    for _ in range(6):
        buffer.tell(batch)
    assert (buffer.missed, bool(woken)) == (2, True)
    assert numbers_of(buffer.take(2)) == [1, 2, 3, 4]
    # There is no room for a gap yet; what is taken again is the same, and what came since.
    buffer.tell_gap()
    assert numbers_of(buffer.take(2)) == [1, 2, 3, 4]
    assert buffer.pending_bytes == KEY_BYTES + 4 * ONE_BYTES
    buffer.let_go()
    assert buffer.pending_bytes == 0
    buffer.tell_gap()
    buffer.tell(batch)
    # Two were left out, and there is the gap itself.
    assert numbers_of(buffer.take(10)) == [7, 8]
    buffer.let_go()
    assert (buffer.pending_bytes, buffer.take(10)) == (0, [])


def test_a_buffer_that_is_emptied_in_time_leaves_nothing_out_and_wakes_when_half_full() -> None:
    woken: list[bool] = []
    buffer = Buffer(2 * KEY_BYTES + 9 * ONE_BYTES, lambda: woken.append(True))
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    for turn in range(20):
        while not woken:
            buffer.tell(batch)
        assert buffer.pending_bytes == KEY_BYTES + 5 * ONE_BYTES
        assert buffer.is_half_full
        assert numbers_of(buffer.take(100)) == list(range(5 * turn + 1, 5 * turn + 6))
        buffer.let_go()
        woken.clear()
    assert (buffer.missed, buffer.pending_bytes) == (0, 0)


def test_whoever_writes_is_woken_once_and_not_for_what_it_has_taken() -> None:
    woken: list[bool] = []
    buffer = Buffer(2 * KEY_BYTES + 100 * ONE_BYTES, lambda: woken.append(True))
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    for _ in range(80):
        buffer.tell(batch)
    assert len(woken) == 1
    buffer.take(100)
    for _ in range(15):
        buffer.tell(batch)
    assert (len(woken), buffer.is_half_full) == (1, False)
    # Asked for again, what was taken is the same; the rest has to wait.
    assert numbers_of(buffer.take(100)) == list(range(1, 81))
    buffer.let_go()
    assert numbers_of(buffer.take(100)) == list(range(81, 96))


def test_a_batch_that_cannot_be_kept_is_left_out_and_harms_nobody() -> None:
    buffer = Buffer(2**20, lambda: None)
    batch = Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), 1)
    buffer.tell(batch)
    buffer.tell(batch._replace(seqs=["no number"], messages=3))
    assert buffer.missed == 3
    buffer.tell(batch)
    (joined,) = buffer.take(10)
    # One, three that are missing, the gap, one.
    assert numbers_of([joined]) == [1, 5, 6]
    assert [type(other) for _, other in joined.others] == [Gap]


def test_what_is_told_while_a_lake_does_not_answer_keeps_its_order_and_its_numbers() -> None:
    buffer = Buffer(2**40, lambda: None)
    many, few = packed(*[row()] * 50_000), packed(*[row()] * 3)
    removed = Happened(core.REMOVED, 2, AT_MS, 1, None, removal(7, Reason.STALE), 7)
    for turn in range(4):
        for number in range(4):
            buffer.tell(Happened(core.PUBLISHED, 2, AT_MS, 50_000, None, many, number))
            buffer.tell(removed)
        buffer.tell(Happened(core.ACKED, 2, AT_MS, 3, [1, 2, 3], few, 1))
        if turn == 1:
            first = [joined.events for joined in buffer.take(EVENTS_MAX)]
            assert len(first) == 1
    taken, numbers = [], []
    while some := buffer.take(2 * EVENTS_MAX):
        taken += some
        numbers += numbers_of(some)
        buffer.let_go()
    assert len(taken) > 4
    assert numbers == list(range(1, 4 * (4 * 50_001 + 3) + 1))
    # Room that was let go of is used again, and what was in it is not told again.
    buffer.tell(removed)
    assert numbers_of(buffer.take(1)) == [numbers[-1] + 1]


def leased(number: int, name: str) -> Happened:
    return Happened(core.LEASED, 2, AT_MS, 1, [number], packed(row()), number, name=name)


def rated(number: int) -> Happened:
    given = ((5, None, number / 2**20),)
    return Happened(core.PUBLISHED, 2, AT_MS, 1, None, packed(row()), number, given=given)


@pytest.mark.parametrize("told", [lambda number: leased(number, f"{number:0200}"), rated])
def test_what_differs_from_batch_to_batch_counts_in_the_buffer(told) -> None:
    buffer = Buffer(2**20, lambda: None)
    count = 0
    while not buffer.missed:
        before = buffer.pending_bytes
        buffer.tell(told(count))
        count += 1
    assert before <= buffer.pending_bytes <= 2**20
    assert count * (KEY_BYTES + ONE_BYTES) < 2**20 + 2 * KEY_BYTES + ONE_BYTES
    # The same again is not kept once more; of what was left out nothing is.
    (piece,) = buffer.take(1)
    assert len(piece.names) + len(piece.given) == count + 1
    again = Buffer(2**20, lambda: None)
    again.tell(told(1))
    first = again.pending_bytes
    again.tell(told(1))
    assert again.pending_bytes - first < 2 * ONE_BYTES


def test_a_name_takes_what_its_characters_do() -> None:
    (short,), (long,) = joined_of(leased(1, "a")), joined_of(leased(1, "a" * 201))
    assert long.bytes - short.bytes == 200 * CHAR_BYTES
    (none,) = joined_of(leased(1, ""))
    assert short.bytes - none.bytes == KEY_BYTES + CHAR_BYTES


@pytest.mark.parametrize("told", [lambda number: leased(number, f"w{number}"), rated])
def test_a_piece_has_so_many_keys_and_others_go_elsewhere(told) -> None:
    buffer = Buffer(2**30, lambda: None)
    for number in range(2 * KEYS_MAX):
        buffer.tell(told(number))
    pieces = buffer.take(EVENTS_MAX)
    assert [len(each.kinds) + len(each.names) + len(each.given) for each in pieces[:-1]] == [
        KEYS_MAX, KEYS_MAX,
    ]  # fmt: skip
    assert numbers_of(pieces) == list(range(1, 2 * KEYS_MAX + 1))
    texts = Texts()
    columns = [expand(each, texts, PLACES).columns for each in pieces]
    if "given_rate" in columns[0]:
        rates = np.concatenate([each["given_rate"] for each in columns])
        assert rates.tolist() == [number / 2**20 for number in range(2 * KEYS_MAX)]
    else:
        words = texts.all()
        names = [words[code] for each in columns for code in each["consumer"]]
        assert names == [f"w{number}" for number in range(2 * KEYS_MAX)]


def test_events_that_rows_do_not_tell_stand_between_the_others() -> None:
    publish = Happened(
        core.PUBLISHED, 2, AT_MS, 2, None, packed(row(), row()), 1, given=[(3, None, 0.5)]
    )
    lease = Happened(core.LEASED, 31, AT_MS, 1, [4], packed(row(generation=1)), 4, name="w")
    removed = Happened(
        core.REMOVED, 2, AT_MS, 2, None,
        removal(1, Reason.STALE) + removal(2, Reason.MAX_ATTEMPTS, moved_pid=31), 1,
    )  # fmt: skip
    copied = Decided(
        "copied",
        31,
        AT_MS,
        1,
        np.array([4], np.uint64),
        as_words(packed(row())),
        "ssd",
        "move",
        1.5,
    )
    found = told(removed, publish, copied, Gap(AT_MS, 9), lease, removed)
    assert [each["event"] for each in found] == [
        "stale", "dead_lettered", "published", "published", "copied", "gap", "leased",
        "stale", "dead_lettered",
    ]  # fmt: skip
    assert found[2:4] == [
        each | {"seq": number} for number, each in enumerate(told(publish), start=3)
    ]
    assert found[6] == told(lease)[0] | {"seq": 16}
    assert found[:2] == told(removed)
    assert found[4] == told(copied)[0] | {"seq": 5}
    assert set(found[5]) == {
        "node", "boot", "seq", "at_ms", "queue", "partition", "message_id", "generation",
        "event", "reason",
    }  # fmt: skip


def test_many_batches_are_told_in_pieces_that_follow_each_other() -> None:
    some = packed(*[row()] * 40_000)
    batches = [
        Gap(AT_MS, 30_000) if number in (3, 7) else
        Happened(core.PUBLISHED, 2, AT_MS, 40_000, None, some, number * 40_000)
        for number in range(12)
    ]  # fmt: skip
    pieces = joined_of(*batches)
    assert len(pieces) > 2
    assert len(numbers_of(pieces)) == 400_002
    assert numbers_of(pieces) == [
        *range(1, 120_001), *range(150_001, 270_002), *range(300_002, 460_003)
    ]  # fmt: skip
