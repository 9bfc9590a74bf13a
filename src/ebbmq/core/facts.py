"""What the journal holds: packed facts. A fact says what is, and may be restored more than once.

    PUBLISH   [u32 crc of rows][u32 0][row 64]*count [headers + body]*count; first = first seq
    GRANT     [u64 deadline_ms][u32 nonce][u32 epoch][u64 at_ms][u16 name bytes][u16 0][u32 runs]
              [u64 first seq, u32 rows, u32 generation]*runs [name]
    ACK       [u64 first seq, u32 rows, u32 0]*runs; also obituaries written when a segment goes
    STATE     [u64 seq][row 64] each; then per row that failed [u16 bytes][latency history]
    REMOVE    [removal 56]*count
    GROUP     [u32 facts][u32 0][u32 kind, u32 pid, u32 count, u32 bytes, u64 first]*facts, payloads
    RELOCATE  [u64 as_of][u32 crc of rows][u32 crc of seqs][u64 seq]*count [row 64]*count
              [headers + body]*count
    META      msgpack of what is declared, subscribed, paused, set, and of queues deleted last
    CLOCK     [u64 queue time ms][u64 wall time ms]
    HELD      where copies of bodies are and should be; GONE: who has yet to forget one (`held`)
    RULES     msgpack of the storage rules that were added, or of what changed in them
    MOVED     [u32 old segment][u32 end in it][u16 seq - first]*count; which messages a RELOCATE has
    PINNED    what plans hold messages to (`pins`); ADVISED: what became of a run's plan or rates

Changing one: add a kind, keep reading the old one, add a data directory with it to the tests.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ebbmq.checksum import crc32c
from ebbmq.core import row as rows
from ebbmq.speedups import twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

META: Final = 1
PUBLISH: Final = 2
GRANT: Final = 3
ACK: Final = 4
STATE: Final = 5
REMOVE: Final = 6
GROUP: Final = 7
RELOCATE: Final = 8
CLOCK: Final = 9
HELD: Final = 10
GONE: Final = 11
RULES: Final = 12
PINNED: Final = 13
ADVISED: Final = 14
MOVED: Final = 15

#: Facts with messages in them. Losing one costs messages, losing another only work done again.
WITH_MESSAGES: Final = frozenset({PUBLISH, GROUP})

ROWS_HEAD: Final = Struct("<II")
GRANT_HEAD: Final = Struct("<QIIQHHI")
GRANT_RUN: Final = Struct("<QII")
_GRANT_ONE: Final = Struct("<QIIQHHIQII")
GRANT_RUN_DTYPE: Final = np.dtype([("first", "<u8"), ("rows", "<u4"), ("generation", "<u4")])
ACK_RUN: Final = Struct("<QII")
GROUP_HEAD: Final = Struct("<II")
GROUP_PART: Final = Struct("<IIIIQ")
RELOCATE_HEAD: Final = Struct("<QII")
MOVED_HEAD: Final = Struct("<II")
CLOCK_FACT: Final = Struct("<QQ")
SEQ: Final = Struct("<Q")

#: As REMOVAL_DTYPE; moved_pid and moved_seq are 0 unless the message was moved to another queue.
REMOVAL: Final = Struct("<IIQQQIIfHBBQ")
REMOVAL_DTYPE: Final = np.dtype(
    [
        ("pid", "<u4"),
        ("moved_pid", "<u4"),
        ("seq", "<u8"),
        ("at_ms", "<u8"),
        ("enqueued_at_ms", "<u8"),
        ("attempts", "<u4"),
        ("bytes", "<u4"),
        ("current", "<f4"),
        ("failures", "<u2"),
        ("importance", "u1"),
        ("reason", "u1"),
        ("moved_seq", "<u8"),
    ]
)
assert REMOVAL.size == REMOVAL_DTYPE.itemsize


class Fact(NamedTuple):
    """One record for the journal; `parts` are joined to its payload."""

    kind: int
    pid: int
    messages: int
    first: int
    parts: list[bytes]

    def size(self) -> int:
        """Bytes of the payload."""
        return sum(map(len, self.parts))


#: A fact, or its fields where making one would cost as much as what it tells.
AnyFact = Fact | tuple[int, int, int, int, list[bytes]]


def publish_bytes(count: int, body_bytes: int) -> int:
    """The payload size of a PUBLISH fact."""
    return ROWS_HEAD.size + count * rows.ROW.size + body_bytes


def publish(pid: int, first: int, count: int, row_block: bytes, bodies: Sequence[bytes]) -> Fact:
    """Messages `first` .. `first + count - 1` came in."""
    head = ROWS_HEAD.pack(crc32c(row_block), 0)
    return Fact(PUBLISH, pid, count, first, [head, row_block, *bodies])


@twin
def grant_of_one(  # the fields, one by one
    deadline_ms: int, nonce: int, epoch: int, now_ms: int, seq: int, generation: int
) -> bytes:
    """The payload of a GRANT of one message without a name."""
    return _GRANT_ONE.pack(deadline_ms, nonce, epoch, now_ms, 0, 0, 1, seq, 1, generation)


@twin
def ack_of_one(seq: int) -> bytes:
    """The payload of an ACK of one message."""
    return ACK_RUN.pack(seq, 1, 0)


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, count); the numbers come in any order."""
    count = len(seqs)
    if count > 1 and seqs[-1] - seqs[0] == count - 1:
        first = seqs[0]
        if type(seqs) is range or list(seqs) == list(range(first, first + count)):
            return [(first, count)]
    out: list[tuple[int, int]] = []
    first = last = -2
    for seq in sorted(seqs):
        if seq == last + 1:
            last = seq
            continue
        if first >= 0:
            out.append((first, last - first + 1))
        first = last = seq
    if first >= 0:
        out.append((first, last - first + 1))
    return out


def ack(pid: int, seqs: Sequence[int]) -> Fact:
    """These messages are gone for good."""
    if len(seqs) == 1:
        return ack_run(pid, seqs[0], 1)
    runs = runs_of(seqs)
    packed = b"".join([ACK_RUN.pack(first, count, 0) for first, count in runs])
    return Fact(ACK, pid, len(seqs), runs[0][0], [packed])


def ack_run(pid: int, first: int, count: int) -> Fact:
    """`ack` for consecutive numbers."""
    return Fact(ACK, pid, count, first, [ACK_RUN.pack(first, count, 0)])


def ack_array(pid: int, seqs: npt.NDArray[np.int64], first: int) -> Fact:
    """`ack` for different numbers, the least of which is `first`."""
    return Fact(ACK, pid, len(seqs), first, [packed_runs(seqs, 0)])


@twin
def packed_runs(seqs: npt.NDArray[np.int64], generation: int) -> bytes:
    """Runs of different numbers that share a generation; sorted ones cost less."""
    gaps = seqs[1:] - seqs[:-1]
    least = gaps.min(initial=2)
    if least < 1:
        seqs = np.sort(seqs)
        gaps = seqs[1:] - seqs[:-1]
        least = gaps.min()
    count = len(seqs)
    if least > 1:
        # [u64 first][u32 rows, u32 generation]
        runs = np.empty((count, 2), dtype="<i8")
        runs[:, 0] = seqs
        runs[:, 1] = 1 | generation << 32
        return runs.tobytes()
    starts = np.append(np.flatnonzero(gaps != 1) + 1, count)
    runs = np.empty((len(starts), 2), dtype="<i8")
    runs[0, 0], runs[0, 1] = seqs[0], starts[0]
    runs[1:, 0] = seqs[starts[:-1]]
    runs[1:, 1] = starts[1:] - starts[:-1]
    runs[:, 1] |= generation << 32
    return runs.tobytes()


def acked(payload: bytes | memoryview) -> list[tuple[int, int]]:
    """The (first, count) runs of an ACK fact."""
    return [(first, count) for first, count, _ in ACK_RUN.iter_unpack(payload)]


class Grant(NamedTuple):
    """A decoded GRANT fact."""

    deadline_ms: int
    nonce: int
    epoch: int
    at_ms: int
    name: str
    runs: list[tuple[int, int, int]]


def grant(
    pid: int, told: tuple[int, int, int, int], runs: bytes, count: int, first: int, name: str
) -> Fact:
    """These messages were leased: (deadline_ms, nonce, epoch, at_ms) and packed runs of rows."""
    deadline_ms, nonce, epoch, at_ms = told
    packed = name.encode() if name else b""
    head = GRANT_HEAD.pack(deadline_ms, nonce, epoch, at_ms, len(packed), 0, len(runs) >> 4)
    return Fact(GRANT, pid, count, first, [head, runs, packed])


def granted(payload: bytes | memoryview) -> Grant:
    """Decode a GRANT fact."""
    deadline_ms, nonce, epoch, at_ms, name_bytes, _, run_count = GRANT_HEAD.unpack_from(payload)
    end = GRANT_HEAD.size + run_count * GRANT_RUN.size
    runs = list(GRANT_RUN.iter_unpack(payload[GRANT_HEAD.size : end]))
    name = bytes(payload[end : end + name_bytes]).decode()
    return Grant(deadline_ms, nonce, epoch, at_ms, name, runs)


def state(pid: int, entries: Sequence[tuple[int, bytes, bytes]]) -> Fact:
    """These rows are now as given: (seq, row, packed latency history)."""
    parts = [part for seq, row, _ in entries for part in (SEQ.pack(seq), row)]
    for _, row, history in entries:
        if row[rows.AT_FLAGS] & rows.FAILED_BEFORE:
            parts += [len(history).to_bytes(2, "little"), history]
    return Fact(STATE, pid, len(entries), entries[0][0], [b"".join(parts)])


def states(payload: bytes | memoryview, count: int) -> Iterator[tuple[int, bytes, bytes]]:
    """The (seq, row, history) entries of a STATE fact."""
    step = SEQ.size + rows.ROW.size
    at = count * step
    for start in range(0, count * step, step):
        row = bytes(payload[start + SEQ.size : start + step])
        history = b""
        if row[rows.AT_FLAGS] & rows.FAILED_BEFORE:
            size = int.from_bytes(payload[at : at + 2], "little")
            history = bytes(payload[at + 2 : at + 2 + size])
            at += 2 + size
        yield SEQ.unpack_from(payload, start)[0], row, history


def remove(pid: int, removals: npt.NDArray[np.void] | bytes, count: int, first: int) -> Fact:
    """These messages left other than by ack; the records go to the removals log as they are."""
    return Fact(REMOVE, pid, count, first, [bytes(removals)])


def group(facts: Sequence[Fact], payload_sizes: Sequence[int]) -> Fact:
    """Several facts that hold together or not at all."""
    parts = [GROUP_HEAD.pack(len(facts), 0)]
    for fact, size in zip(facts, payload_sizes, strict=True):
        parts.append(GROUP_PART.pack(fact.kind, fact.pid, fact.messages, size, fact.first))
    for fact in facts:
        parts += fact.parts
    return Fact(GROUP, facts[0].pid, facts[0].messages, facts[0].first, parts)


def group_head_bytes(count: int) -> int:
    """Bytes of a GROUP payload before the first payload inside it."""
    return GROUP_HEAD.size + count * GROUP_PART.size


def grouped(payload: memoryview) -> Iterator[tuple[int, int, int, int, int, memoryview]]:
    """(kind, pid, count, first, payload start, payload) of each fact of a GROUP."""
    number, _ = GROUP_HEAD.unpack_from(payload)
    at = group_head_bytes(number)
    for i in range(number):
        kind, pid, count, size, first = GROUP_PART.unpack_from(
            payload, GROUP_HEAD.size + i * GROUP_PART.size
        )
        yield kind, pid, count, first, at, payload[at : at + size]
        at += size


def shared_publish(payload: memoryview) -> list[tuple[int, int, int, memoryview]]:
    """(pid, count, first, payload) of each queue that a damaged GROUP publishes the same bodies to.

    Nothing where that is not what it says, or where its sizes do not add up.
    """
    if len(payload) < GROUP_HEAD.size:
        return []
    number, _ = GROUP_HEAD.unpack_from(payload)
    if not 0 < group_head_bytes(number) <= len(payload):
        return []
    parts = list(grouped(payload))
    counts = {count for _, _, count, _, _, _ in parts}
    if {kind for kind, *_ in parts} != {PUBLISH} or len(counts) != 1:
        return []
    if len({pid for _, pid, *_ in parts}) != number:
        return []
    rows_bytes = publish_bytes(counts.pop(), 0)
    is_whole = len(parts[0][5]) >= rows_bytes
    is_whole = is_whole and all(len(part[5]) == rows_bytes for part in parts[1:])
    if not is_whole or parts[-1][4] + len(parts[-1][5]) != len(payload):
        return []
    return [(pid, count, first, part) for _, pid, count, first, _, part in parts]


def relocate(
    pid: int, as_of: int, seqs: Sequence[int], row_block: bytes, bodies: Iterable[bytes]
) -> Fact:
    """Messages copied to an old-generation segment with all that was known at `as_of`."""
    packed = np.array(seqs, dtype="<u8").tobytes()
    head = RELOCATE_HEAD.pack(as_of, crc32c(row_block), crc32c(packed))
    return Fact(RELOCATE, pid, len(seqs), seqs[0], [head, packed, row_block, *bodies])


def relocate_bodies_at(count: int) -> int:
    """Where in a RELOCATE payload the bodies start."""
    return RELOCATE_HEAD.size + count * (SEQ.size + rows.ROW.size)


def moved(pid: int, segment: int, end: int, seqs: Sequence[int]) -> Fact:
    """Messages of one page are in an old segment, in what is before the offset `end` of it."""
    first = min(seqs)
    packed = (np.array(seqs, dtype=np.uint64) - np.uint64(first)).astype("<u2").tobytes()
    return Fact(MOVED, pid, 0, first, [MOVED_HEAD.pack(segment, end), packed])


def moved_to(payload: bytes | memoryview, first: int) -> tuple[int, int, list[int]]:
    """The old segment, the end and the messages of a MOVED fact."""
    segment, end = MOVED_HEAD.unpack_from(payload)
    offsets = np.frombuffer(payload[MOVED_HEAD.size :], dtype="<u2")
    seqs: list[int] = (offsets.astype(np.int64) + first).tolist()
    return segment, end, seqs
