"""Each function in C does what the function in Python does, and refuses what it cannot take."""

from __future__ import annotations

import copy
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq import Broker, speedups
from ebbmq.core import block, facts, row, tokens
from ebbmq.core.happened import PEEKED, PUBLISHED, REMOVED, SCHEDULED, Happened
from ebbmq.journal import record
from ebbmq.node import outflow
from ebbmq.node.feeding import joining, unpacking
from ebbmq.node.feeding.buffer import Decided
from ebbmq.node.feeding.joining import Joined
from ebbmq.node.feeding.unpacking import Room

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U48 = st.integers(0, 2**48 - 1)
U64 = st.integers(0, 2**64 - 1)
ROWS = st.binary(min_size=row.ROW.size, max_size=row.ROW.size)
#: Rows of which some are leased, under few generations and nonces, so that tokens sometimes hold.
LEASED = st.builds(
    lambda state, generation, nonce, epoch, due: row.ROW.pack(
        state, 1, 5, 0, 0, 1, 0, due | 7 << 48, 9 | epoch << 48, 3, 4, 100, 6, generation, nonce
    ),
    st.sampled_from([row.LEASED, row.READY]), *[st.integers(0, 1)] * 3, st.integers(0, 2),
)  # fmt: skip
TEXTS = st.one_of(
    st.builds(tokens.TOKEN.pack, U32, U64, U32, U32, U32).map(bytes.hex),
    st.text("0123456789abcdefABCDEF \tgé\ud800", min_size=47, max_size=49),
    st.text(max_size=60),
)


def in_page(packed: bytes, slot: int) -> bytearray:
    page = bytearray(os.urandom(row.ROW.size * 4))
    page[slot * row.ROW.size : (slot + 1) * row.ROW.size] = packed
    return page


def columns_of(lines: int, rows: int) -> np.ndarray:
    return np.full((lines, rows), -7, dtype=np.int64)


def row_room(rows: int) -> tuple[np.ndarray, ...]:
    return tuple(Room().of(rows, unpacking.ROW_WIDE, unpacking.ROW_NARROW))


def told_room(rows: int) -> tuple[np.ndarray, ...]:
    room = Room().of(rows, unpacking.TOLD_WIDE, unpacking.TOLD_NARROW)
    for lines in room:
        lines[:] = 7
    return *room, np.full((len(unpacking.SOME), (rows + 7) // 8), 0xA5, dtype=np.uint8)


def stretches(rows: int, codes: tuple[int, ...]) -> np.ndarray:
    """What publishers gave: each of the codes for a message, and the last for the others."""
    lengths = [min(1, rows - at) for at in range(len(codes[:rows]) - 1)]
    known = zip(codes, [*lengths, rows - sum(lengths)], strict=False)
    return np.array(list(known) if rows else [], dtype=np.int64).reshape(-1, 2)


def about(
    batches: list[tuple[list[bytes], tuple[int, ...], tuple[int, ...], bool]],
    given: tuple[int, ...] = (0,),
) -> tuple[Any, ...]:
    """What `unpack_batches` takes of batches: rows, numbers, kind, and whether messages are named.

    Each is of a kind of its own, the first of the last one. A place is left between them.
    """
    packed, lines = [], []
    for at, (rows, numbers, _, is_named) in enumerate(batches):
        first = -1 if is_named else numbers[2]
        words, differ = words_of(rows)
        packed.append(words)
        lines += [
            (len(rows), *numbers[:2], first, *numbers[3:5], len(batches) - 1 - at, numbers[5],
             differ),
            *([(at, 5, 5, 0, 0, 0, joining.NO_KIND, 0, 0)] if len(batches) > 1 else []),
        ]  # fmt: skip
    named = sum(len(rows) for rows, _, _, is_named in batches if is_named)
    kinds = [kind for _, _, kind, _ in reversed(batches)]
    events = sum(line[0] for line in lines)
    return (
        np.frombuffer(b"".join(packed), dtype=np.uint64),
        np.array(lines, dtype=np.int64).reshape(-1, len(unpacking.BATCH)),
        np.array(kinds, dtype=np.int64).reshape(-1, len(unpacking.KIND)),
        np.arange(2**40, 2**40 + named, dtype=np.uint64),
        np.concatenate([stretches(0, given), *(stretches(len(r), given) for r, *_ in batches)]),
        *told_room(events),
    )


def words_of(rows: list[bytes]) -> tuple[bytes, int]:
    """What is kept of rows, and in which words they differ."""
    joined = Joined()
    joined.begin(1, 2**40)
    assert joining.join_batch(happened(messages=len(rows), rows=b"".join(rows)), joined.into)
    return joined.words.tobytes(), int(joined.batches[0, -1])


def one_batch(messages: int) -> tuple[Any, ...]:
    """What `unpack_batches` takes of one batch that names its messages."""
    rows = [bytes(48) + bytes([length]) + bytes(15) for length in range(messages)]
    return about([(rows, (0,) * 6, (0,) * 7, True)])


def unspelled(ids: list[tuple[int, int]]) -> tuple[Any, ...]:
    pids, seqs = (np.array([each[at] for each in ids], dtype=np.uint64) for at in (0, 1))
    return (
        pids.astype(np.int64), seqs, np.zeros(len(ids) + 1, dtype=np.int32),
        np.zeros(unpacking.ID_BYTES * len(ids), dtype=np.uint8),
    )  # fmt: skip


SLOTS = st.integers(0, 3)
OFFSETS = SLOTS.map(lambda slot: slot * row.ROW.size)
PAGES = st.builds(in_page, ROWS, SLOTS)
#: number, at_ms, first, lease_ms, delay_ms, consumer
BATCH = st.tuples(
    U32, U48, U48, st.integers(0, 1) | U48, st.integers(0, 1) | U48, st.integers(0, 1) | U16
)
#: pid, queue, partition, event, granted, ends, arrives
KIND = st.tuples(U32, U16, st.integers(-1, 9), U8, *[st.integers(0, 1)] * 3)
#: Of any bytes, and of states and instants near those that decide something.
ANY_ROWS = ROWS | st.builds(
    lambda state, due, enqueued, dead: row.ROW.pack(
        state, 1, 5, 0, 7, enqueued, dead, due, 9, 3, 4, 100, 6, 8, 9
    ),
    st.integers(0, 5), *[st.integers(0, 3)] * 3,
)  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> Happened | Decided:
    """What a feed is told, its rows and its messages in any of their forms."""
    packed = draw(st.lists(ANY_ROWS, max_size=4))
    if not draw(st.integers(0, 5)):
        return Decided("copied", draw(U16), draw(U48), len(packed), (), (), "ssd", "why", None)
    event = draw(st.integers(PUBLISHED, PEEKED))
    forms = (
        b"".join(packed),
        [row.ROW.unpack(each) for each in packed],
        tuple(row.ROW.unpack(each) for each in packed),
        block.as_words(b"".join(packed)),
        block.as_words(b"".join(each * 2 for each in packed))[::2],
    )
    seqs = draw(st.lists(U64, min_size=len(packed), max_size=len(packed)))
    named = (None, seqs, tuple(seqs), np.array(seqs, dtype=np.uint64), range(len(packed)))
    starts = draw(st.lists(st.integers(1, 4), max_size=3, unique=True).map(sorted))
    gave = st.tuples(st.none() | U8, st.none() | U16, st.none() | st.sampled_from([0.0, 0.5]))
    given = draw(st.lists(gave, min_size=len(starts) + 1, max_size=len(starts) + 1))
    waiting = sum(each[0] == row.SCHEDULED for each in packed)
    return Happened(
        event, draw(st.integers(1, 3)), draw(U48), waiting if event == SCHEDULED else len(packed),
        named[draw(st.integers(0, 4))],
        forms[0] if event == REMOVED else forms[draw(st.integers(0, 4))],
        draw(U48), draw(U48), draw(U48), draw(st.sampled_from(["", "w", "é"])),
        *((given, [0, *starts]) if draw(st.booleans()) else ()),
    )  # fmt: skip


def joined_before(batches: int, bytes_left: int = 10_000) -> joining.Into:
    """What batches go to, after some."""
    joined = Joined()
    joined.begin(7, bytes_left)
    for at in range(batches):
        joining.join_batch(happened(at_ms=at, given=[(1, None, 0.5)]), joined.into)
    return joined.into


def happened(**other: Any) -> Happened:
    return Happened(PUBLISHED, 1, 2, 1, None, bytes(64), 1)._replace(**other)


#: By name: where the function is, and what it may be called with: a strategy for each argument, or
#: one for all of them.
TWINS: dict[str, tuple[Any, tuple[st.SearchStrategy[Any], ...] | st.SearchStrategy[Any]]] = {
    "join_batch": (joining, st.tuples(batches(), st.builds(joined_before, st.integers(0, 3)))),
    "keep_live": (
        unpacking,
        st.lists(st.just(bytes(64)) | ANY_ROWS, max_size=40).map(
            lambda packed: (
                block.as_words(bytearray(b"".join(packed))),
                np.arange(5, 5 + len(packed), dtype=np.int64),
            )
        ),
    ),
    "unpack_rows": (
        unpacking,
        st.lists(ANY_ROWS, max_size=40).map(
            lambda packed: (b"".join(packed), *row_room(len(packed)))
        ),
    ),
    "unpack_batches": (
        unpacking,
        st.builds(
            about,
            st.lists(
                st.tuples(st.lists(ANY_ROWS, max_size=5), BATCH, KIND, st.booleans()), max_size=6
            ),
            st.tuples(*[st.integers(0, 1) | U16] * 3),
        ),
    ),
    "spell_ids": (
        unpacking,
        st.lists(st.tuples(st.integers(0, 1) | U32, U64), max_size=40).map(unspelled),
    ),
    "read_row": (row, (PAGES, OFFSETS)),
    "mark_leased": (row, (PAGES, OFFSETS, U48, U32, U32)),
    "read_held": (
        row,
        (LEASED.map(bytearray), st.just(0), *[st.integers(0, 1)] * 3, st.integers(0, 2)),
    ),
    "grant_of_one": (facts, (U64, U32, U32, U64, U64, U32)),
    "ack_of_one": (facts, (U64,)),
    "packed_runs": (
        facts,
        (
            st.lists(st.integers(0, 60) | st.integers(0, 2**62), min_size=1, unique=True).map(
                lambda seqs: np.array(seqs, dtype=np.int64)
            ),
            st.integers(0, 2**31 - 1),
        ),
    ),
    "pack_whole": (record, (U32, U64, U8, U32, U32, U64, U64, st.binary(max_size=200))),
    "message_id": (outflow, (U32, U64)),
    "spell_each": (
        outflow,
        (st.sampled_from(["1f-%x", "%x", "0a%016xff", "%016x"]), st.lists(U64, min_size=1)),
    ),
    "spell_token": (tokens, (U32, U64, U32, U32, U32)),
    "read_token": (tokens, (TEXTS,)),
    "pack_tokens": (tokens, (st.lists(TEXTS, max_size=4),)),
    "fold_rows": (
        block,
        (st.lists(ROWS, max_size=300).map(lambda packed: block.as_words(b"".join(packed))),),
    ),
}


def why_not() -> str:
    """Why nothing has to be in C; empty if it has to be."""
    if os.environ.get("EBBMQ_PURE"):
        return "EBBMQ_PURE is set"
    header = Path(sysconfig.get_path("include"), "Python.h")
    can = any(map(shutil.which, ("cc", "gcc"))) and header.exists()
    return "" if can or speedups.is_compiled else "no C compiler"


needs_twins = pytest.mark.skipif(bool(why_not()), reason=why_not())
#: There is no instruction for its checksum elsewhere.
EXPECTED = set(TWINS) if platform.machine() == "x86_64" else set(TWINS) - {"pack_whole"}


#: Only a feed loads the others.
WITHOUT_FEED = {name for name in EXPECTED if TWINS[name][0] not in (joining, unpacking)}


@needs_twins
def test_what_can_be_compiled_is_compiled() -> None:
    assert set(speedups.replaced) == EXPECTED, "make install compiles src/ebbmq/_speedups.c"
    for name in EXPECTED:
        assert getattr(TWINS[name][0], name) is not speedups.replaced[name]


@needs_twins
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_twin_does_what_the_function_in_python_does(name: str) -> None:
    module, arguments = TWINS[name]
    compiled, plain = getattr(module, name), speedups.replaced[name]

    @settings(max_examples=300, deadline=None)
    @given(st.tuples(*arguments) if isinstance(arguments, tuple) else arguments)
    def agree(given: tuple[Any, ...]) -> None:
        ours, theirs = copied(given), copied(given)
        assert compiled(*ours) == plain(*theirs)
        # What they were told to change they changed alike.
        for mine, other in zip(map(shown, ours), map(shown, theirs), strict=True):
            assert mine is other or np.array_equal(mine, other)

    agree()


def copied(given: tuple[Any, ...]) -> tuple[Any, ...]:
    changed = bytearray | np.ndarray
    return tuple(
        copy.deepcopy(each) if is_into(each) else each.copy() if isinstance(each, changed) else each
        for each in given
    )


def is_into(given: Any) -> bool:
    """Whether it is what batches go to."""
    return isinstance(given, tuple) and len(given) == 5 and isinstance(given[4], dict)


def shown(given: Any) -> Any:
    """What is compared of an argument: of what batches go to, no room that is not used."""
    if not is_into(given):
        return given
    parts, counts, *keys = given
    used = [bytes(part[:size]) for part, size in zip(parts, counts[:4], strict=True)]
    return str((used, list(counts), keys))


PAGE = bytearray(128)
INTO = joined_before(0)
#: What `unpack_batches` takes of one batch of one message.
ONE = one_batch(1)


ENDLESS = bytearray(row.ROW.pack(row.READY, *[0] * 12, 2**32 - 1, 0))
REFUSED: list[tuple[str, tuple[Any, ...], type[Exception]]] = [
    ("read_row", (PAGE,), TypeError),
    ("read_row", (PAGE, 65), IndexError),
    ("read_row", (PAGE, -1), IndexError),
    ("read_row", (bytearray(63), 0), IndexError),
    ("read_row", (PAGE, 2**70), OverflowError),
    ("read_row", ("text", 0), TypeError),
    ("mark_leased", (bytes(128), 0, 1, 1, 1), BufferError),
    ("mark_leased", (PAGE, 128, 1, 1, 1), IndexError),
    ("mark_leased", (PAGE, 0, 1, 2**32, 1), OverflowError),
    ("mark_leased", (ENDLESS, 0, 1, 1, 1), OverflowError),
    ("read_held", (PAGE, 0, -1, 0, 0, 0), OverflowError),
    ("read_held", (PAGE, 0, 1.5, 0, 0, 0), TypeError),
    ("grant_of_one", (1, 2, 3), TypeError),
    ("ack_of_one", (2**64,), OverflowError),
    ("ack_of_one", (None,), TypeError),
    ("pack_whole", (0, 0, 256, 0, 0, 0, 0, b""), OverflowError),
    ("pack_whole", (0, 0, 1, 0, 0, 0, 0, "text"), TypeError),
    ("message_id", (2**32, 1), OverflowError),
    ("spell_each", ("no hole", [1]), ValueError),
    ("spell_each", ("half %0", [1]), ValueError),
    ("spell_each", ("%x", [1, -1]), OverflowError),
    ("spell_each", ("%x", (1,)), TypeError),
    ("spell_token", (1, 2, 3, 4), TypeError),
    ("read_token", (b"00" * 24,), TypeError),
    ("pack_tokens", (("00" * 24,),), TypeError),
    ("pack_tokens", (["00" * 24, 7],), TypeError),
    ("fold_rows", (np.zeros(8, dtype=np.uint64),), ValueError),
    ("fold_rows", (np.zeros((2, 8), dtype=np.uint32),), ValueError),
    ("fold_rows", (None,), TypeError),
    ("packed_runs", (np.zeros((2, 2), dtype=np.int64), 1), ValueError),
    ("packed_runs", (np.zeros(2, dtype=np.int32), 1), ValueError),
    ("packed_runs", (np.zeros(2, dtype=np.int64), 2**32), OverflowError),
    ("packed_runs", ([1, 2], 1), TypeError),
    ("keep_live", (np.zeros((2, 8), np.uint64), np.zeros(3, np.int64)), ValueError),
    ("keep_live", (np.zeros((2, 7), np.uint64), np.zeros(2, np.int64)), ValueError),
    ("keep_live", (np.zeros((2, 8), np.uint64), np.zeros(2, np.int32)), ValueError),
    ("keep_live", (np.zeros(8, np.uint64), np.zeros(1, np.int64)), ValueError),
    ("keep_live", (block.as_words(bytes(64)), np.zeros(1, np.int64)), ValueError),
    ("unpack_rows", (bytes(63), *row_room(0)), ValueError),
    ("unpack_rows", (bytes(64), *row_room(2)), ValueError),
    *[
        ("unpack_rows", (bytes(64), *row_room(1)[:at], *row_room(2)[at:]), ValueError)
        for at in (1, 2)
    ],
    ("unpack_rows", (bytes(64), columns_of(2, 1), *row_room(1)[1:]), ValueError),
    ("unpack_rows", (bytes(64), columns_of(3, 2)[:, ::2], *row_room(1)[1:]), ValueError),
    ("unpack_rows", (bytes(64), row_room(1)[0], columns_of(5, 1), row_room(1)[2]), ValueError),
    ("unpack_rows", (bytes(64), bytes(24), *row_room(1)[1:]), BufferError),
    ("unpack_rows", ("text", *row_room(1)), TypeError),
    # Of each alone something for nine.
    *[
        ("unpack_batches", (*ONE[:at], one_batch(9)[at], *ONE[at + 1 :]), ValueError)
        for at in range(len(ONE))
        if at != 2
    ],
    ("unpack_batches", (*ONE[:2], columns_of(0, 7), *ONE[3:]), ValueError),
    ("unpack_batches", (*ONE[:2], columns_of(1, 8), *ONE[3:]), ValueError),
    ("unpack_batches", (ONE[0], columns_of(1, 8), *ONE[2:]), ValueError),
    # Words that there are not.
    ("unpack_batches", (ONE[0], np.array([[1, 0, 0, -1, 0, 0, 0, 0, 32]]), *ONE[2:]), ValueError),
    ("unpack_batches", (ONE[0], np.array([[1, 0, 0, -1, 0, 0, 0, 0, 1]]), *ONE[2:]), ValueError),
    ("unpack_batches", (ONE[0], np.array([[1, 0, 0, -1, 0, 0, 0, 0, -1]]), *ONE[2:]), ValueError),
    ("join_batch", (happened(messages=2), INTO), ValueError),
    ("join_batch", (happened(rows=bytes(65)), INTO), ValueError),
    ("unpack_batches", (*ONE[:3], ONE[3][:, None], *ONE[4:]), ValueError),
    ("unpack_batches", (*ONE[:4], columns_of(1, 3), *ONE[5:]), ValueError),
    ("unpack_batches", (*ONE[:4], np.array([[0, -1], [0, 2]]), *ONE[5:]), ValueError),
    ("unpack_batches", ONE[:3], TypeError),
    ("unpack_batches", (*ONE[:-1], bytes(5)), BufferError),
    ("join_batch", (1, INTO), TypeError),
    ("join_batch", (happened(),), TypeError),
    ("join_batch", (happened(), INTO[:3]), TypeError),
    ("join_batch", (happened(), (*INTO[:4], [])), TypeError),
    ("join_batch", (happened(), (INTO[0][:3], *INTO[1:])), TypeError),
    ("join_batch", (happened(), ((*INTO[0][:3], b""), *INTO[1:])), ValueError),
    ("join_batch", (happened(), (INTO[0], array("q", bytes(56)), *INTO[2:])), ValueError),
    ("join_batch", (happened(), (INTO[0], array("i", bytes(32)), *INTO[2:])), ValueError),
    ("join_batch", (happened(), (INTO[0], array("q", (9, *[0] * 7)), *INTO[2:])), ValueError),
    ("join_batch", (happened(), (INTO[0], array("q", (-1, *[0] * 7)), *INTO[2:])), ValueError),
    ("join_batch", (happened(messages=-1), INTO), ValueError),
    ("join_batch", (happened(messages=2**62), INTO), ValueError),
    ("join_batch", (happened(rows=[(1,) * 14]), INTO), TypeError),
    ("join_batch", (happened(rows=[(256,) * 15]), INTO), OverflowError),
    ("join_batch", (happened(rows="text"), INTO), TypeError),
    ("join_batch", (happened(at_ms="now"), INTO), TypeError),
    ("join_batch", (happened(event="it"), INTO), TypeError),
    ("join_batch", (happened(seqs=["x"]), INTO), TypeError),
    ("join_batch", (happened(seqs=np.zeros(1, np.int32)), INTO), ValueError),
    ("join_batch", (happened(given=[None, None]), INTO), ValueError),
    ("join_batch", (happened(given=[[]]), INTO), TypeError),
    ("join_batch", (happened(given=[(1, 2)]), INTO), TypeError),
    ("join_batch", (happened(name=[]), INTO), TypeError),
    ("join_batch", (happened(name=7), INTO), TypeError),
    ("spell_ids", (*unspelled([(1, 1)])[:3], bytearray(24)), ValueError),
    ("spell_ids", (*unspelled([(1, 1)])[:2], np.zeros(1, np.int32), bytearray(25)), ValueError),
    ("spell_ids", (*unspelled([(1, 1)])[:2], np.zeros(2, np.int64), bytearray(25)), ValueError),
    ("spell_ids", (*unspelled([(1, 1)])[:3], bytes(25)), BufferError),
]


@needs_twins
@pytest.mark.parametrize(("name", "given", "error"), REFUSED)
def test_a_twin_refuses_what_it_cannot_take(
    name: str, given: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(TWINS[name][0], name)(*given)


@needs_twins
@pytest.mark.parametrize("join", ["compiled", "plain"])
def test_a_batch_that_is_refused_leaves_what_was_joined_as_it_is(join: str) -> None:
    chosen = joining.join_batch if join == "compiled" else speedups.replaced["join_batch"]
    into = joined_before(2)
    before = shown(into)
    # Stretches that begin nowhere, and one that is wrong after another has its code.
    for gave, since in (([None, None], [0]), ([(1, None, 7.0), (1, 2)], [0, 1])):
        with pytest.raises((TypeError, ValueError, IndexError)):
            chosen(happened(name="new", given=gave, given_from=since), into)
        assert shown(into) == before
    # A batch that is told otherwise, one too many bytes, one event too many.
    assert not chosen(happened(event=REMOVED), into)
    assert not chosen(Decided("copied", 1, 2, 0, (), (), "ssd", "why", None), into)
    assert shown(into) == before
    full = joined_before(0, joining.BATCH_BYTES - 1)
    assert not chosen(happened(), full)
    assert [len(codes) for codes in full[2:]] == [0, 1, 1]
    # Two of which one word differs, and which are named.
    two = happened(messages=2, rows=bytes(64) + bytes(48) + b"x" + bytes(15), seqs=[1, 2])
    two = two._replace(given=[(1, None, 0.5)], name="two")
    keys = 3 * joining.KEY_BYTES + 3 * joining.CHAR_BYTES
    full[1][7] = joining.BATCH_BYTES + 2 * 16 + keys - 1
    assert not chosen(two, full)
    assert [len(codes) for codes in full[2:]] == [0, 1, 1]
    assert list(full[1][:7]) == [0, 0, 0, 0, 7, 0, 0]
    full[1][7] += 1
    assert chosen(two, full)
    assert full[1][7] == 0
    full[1][7] = 2**40
    full[1][5] = joining.EVENTS_MAX
    assert not chosen(happened(), full)
    full[1][5] -= 1
    assert chosen(happened(), full)
    # One key too many.
    full[1][5] = 0
    full[3].update((str(key), key) for key in range(joining.KEYS_MAX))
    assert not chosen(happened(), full)
    while sum(map(len, full[2:])) >= joining.KEYS_MAX:
        full[3].popitem()
    assert chosen(happened(), full)


@needs_twins
def test_a_row_whose_leases_cannot_be_counted_any_more_stays_as_it_is() -> None:
    before = bytes(ENDLESS)
    for mark in (row.mark_leased, speedups.replaced["mark_leased"]):
        with pytest.raises((OverflowError, struct.error)):
            mark(ENDLESS, 0, 1, 1, 1)
        assert bytes(ENDLESS) == before


@needs_twins
def test_numbers_of_numpy_are_numbers() -> None:
    assert outflow.message_id(1, np.int64(31)) == outflow.message_id(1, 31) == "1-1f"


@needs_twins
def test_what_was_compiled_from_another_source_is_not_used(tmp_path: Path) -> None:
    shutil.copytree(Path(speedups.__file__).parent, tmp_path / "ebbmq")
    used = "from ebbmq import Broker, speedups; print(speedups.is_compiled, len(speedups.replaced))"
    there = {"PYTHONPATH": str(tmp_path)}
    assert run(used, tmp_path, there) == f"True {len(WITHOUT_FEED)}"
    with (tmp_path / "ebbmq" / "_speedups.c").open("a") as source:
        source.write("/* changed */")
    assert run(used, tmp_path, there) == "False 0"


def test_one_message_goes_its_way_all_in_python() -> None:
    # What runs without a compiler, and in the tasks of Spark.
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         tests / "node" / "test_single.py", tests / "journal" / "test_record.py"],
        env=os.environ | {"EBBMQ_PURE": "1"}, cwd=tests.parents[1], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_rows_that_do_not_stand_one_after_the_other_are_folded_too() -> None:
    words = np.arange(160, dtype=np.uint64).reshape(-1, 8)
    every_other = words[::2]
    assert block.fold_rows(every_other) == block.fold_rows(every_other.copy())
    assert block.fold_rows(words) != block.fold_rows(every_other)


STORY = """
import sys
from ebbmq import Broker, Message, QueueSpec, speedups
with Broker.open(sys.argv[1]) as broker:
    broker.declare(QueueSpec("jobs"))
    broker.publish("jobs", [Message(bytes([n])) for n in range(40)], confirm="synced")
    for _ in range(5):
        lease, = broker.lease("jobs")
        broker.ack("jobs", [lease.token])
    many = broker.lease("jobs", count=20)
    broker.ack("jobs", [lease.token for lease in many], confirm="synced")
print(len(speedups.replaced))
"""


def test_a_directory_written_without_twins_is_read_with_them(tmp_path: Path) -> None:
    said = story(tmp_path, {"EBBMQ_PURE": "1"})
    assert said == "0"
    assert bodies_in(tmp_path) == [bytes([n]) for n in range(25, 40)]


@needs_twins
def test_a_directory_written_with_twins_is_read_without_them(tmp_path: Path) -> None:
    assert story(tmp_path, {}) == str(len(WITHOUT_FEED))
    read = (
        "import sys; from ebbmq import Broker; "
        "print([each.body for each in Broker.open(sys.argv[1]).lease('jobs', count=100)])"
    )
    assert run(read, tmp_path, {"EBBMQ_PURE": "1"}) == str([bytes([n]) for n in range(25, 40)])


def story(directory: Path, environment: dict[str, str]) -> str:
    return run(STORY, directory, environment)


def run(program: str, directory: Path, environment: dict[str, str]) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "EBBMQ_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        env=clean | environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def bodies_in(directory: Path) -> list[bytes]:
    with Broker.open(directory) as broker:
        return [lease.body for lease in broker.lease("jobs", count=100)]
