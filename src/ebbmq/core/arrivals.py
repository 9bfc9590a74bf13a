"""Messages that come into a partition: a batch as rows and runs, one plain message a short way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq.checksum import crc32c
from ebbmq.core import facts as fact
from ebbmq.core import kinds
from ebbmq.core.classes import NEVER
from ebbmq.core.facts import ROWS_HEAD
from ebbmq.core.happened import PUBLISHED, Happened, happened
from ebbmq.core.happened import SCHEDULED as TOLD_SCHEDULED
from ebbmq.core.index import PAGE_BITS, PAGE_BYTES, SLOT_MASK
from ebbmq.core.origin import origin
from ebbmq.core.row import DURABLE, HIGH, READY, REPLICATING, ROW, SCHEDULED, SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from ebbmq.core.classes import OrderClass
    from ebbmq.core.index import Page
    from ebbmq.core.partition import Partition
    from ebbmq.model import Level, Message

_pack_row: Final = ROW.pack_into
_pack_head: Final = ROWS_HEAD.pack
#: What a PUBLISH fact of one message has before its body.
HEAD_BYTES: Final = ROWS_HEAD.size + ROW.size
#: importance, ttl_ms and decay_rate as a publisher gave them.
ProfileKey = tuple[int | None, int | None, float | None]


class Batch(NamedTuple):
    """Messages of one publish call as they go to one partition: parallel lists."""

    messages: Sequence[Message]
    payloads: list[bytes]
    header_sizes: list[int]
    crcs: list[int]
    body_bytes: int
    has_ids: bool
    #: Who published them, where that is not the node itself.
    client: str | None = None
    #: The confirm level asked for; None where that is not known any more.
    qos: Level | None = "written"
    #: Of few kinds: which of `messages` each is; the lists have one entry for each all the same.
    which: npt.NDArray[np.intp] | None = None
    #: Whether they were published to a topic.
    topic: bool = False


class Profile(NamedTuple):
    """What a (importance, ttl, rate) comes to in this queue right now."""

    importance: int
    rate: int
    ttl_ms: int
    known: OrderClass
    class_bits: int
    end_age_ms: int
    #: What a publisher gave.
    given: ProfileKey


class Run(NamedTuple):
    """Consecutive rows of one publish that enter the order together."""

    known: OrderClass
    first: int
    length: int
    place: int
    at_ms: int


class Runs:
    """Collects the runs of one publish while its rows are packed."""

    __slots__ = (
        "_at",
        "_partition",
        "_profile",
        "first",
        "given",
        "given_from",
        "now_ms",
        "out",
        "scheduled",
    )

    def __init__(self, partition: Partition, first: int, now_ms: int) -> None:
        self.first = first
        self.now_ms = now_ms
        self.out: list[Run] = []
        self.scheduled = 0
        #: As `Happened` has them.
        self.given: list[ProfileKey] = []
        self.given_from: list[int] = []
        self._partition = partition
        self._profile: Profile | None = None
        self._at = first

    def begin(self, key: ProfileKey, seq: int) -> tuple[int, int, int]:
        """Rows from `seq` on have another profile; returns importance, rate, TTL and class bits."""
        self.end(seq)
        self._profile = profile = self._partition.profile(key)
        if not self.given or self.given[-1] != key:
            self.given.append(profile.given)
            self.given_from.append(seq - self.first)
        dead = self.now_ms + profile.ttl_ms if profile.ttl_ms else 0
        return profile.importance, profile.rate, dead | profile.class_bits

    def schedule(self, seq: int, due_ms: int) -> None:
        """The row `seq` is of the profile at hand, but comes due later."""
        self.end(seq)
        self._at = seq + 1
        self.scheduled += 1
        assert self._profile is not None
        self._partition.due_wheel.add(due_ms, seq)
        self._count(self._profile, seq, 1)

    def end(self, seq: int) -> None:
        """The run at hand ends before `seq`."""
        count = seq - self._at
        if count and self._profile is not None:
            place = self._partition.next_place + self._at - self.first
            self.out.append(Run(self._profile.known, self._at, count, place, self.now_ms))
            self._count(self._profile, self._at, count)
        self._at = seq

    def _count(self, profile: Profile, first: int, count: int) -> None:
        self._partition.by_importance[profile.importance] += count
        if profile.end_age_ms != NEVER:
            deadline_ms = self.now_ms + profile.end_age_ms
            self._partition.end_wheel.add_many(deadline_ms, range(first, first + count))


def publish(
    partition: Partition,
    batch: Batch,
    now_ms: int,
    segment: int,
    offset: int,
    *,
    flags: int = 0,
) -> list[Run]:
    """Take in a batch whose first body will stand at (segment, offset); returns its runs.

    The caller has checked limits and duplicates, appends the fact, and then calls `hold` or
    `open_runs`. Rows are packed straight into their page and copied from there to the journal.
    All of them get `flags`: SHARED, PRIVILEGED.
    """
    count = len(batch.payloads)
    first = partition.index.next_seq
    runs = Runs(partition, first, now_ms)
    if batch.which is None:
        block = b"".join(_pack_rows(partition, batch, runs, segment, offset, flags))
    else:
        words = kinds.rows_of(batch, runs, batch.which, partition.next_place, flags)
        kinds.add_bodies(words, batch, segment, offset)
        kinds.put(partition.index, first, words)
        block = words.tobytes()
    partition.index.next_seq = first + count
    partition.next_place += count
    partition.facts.append(fact.publish(partition.pid, first, count, block, batch.payloads))
    if partition.tell is not None:
        given, given_from, pid = runs.given, runs.given_from, partition.pid
        told = happened(
            (PUBLISHED, pid, now_ms, count, None, block, first, 0, 0, "", given, given_from)
        )
        partition.tell(told)
        if runs.scheduled:
            partition.tell(told._replace(event=TOLD_SCHEDULED, messages=runs.scheduled))
    partition.depth[REPLICATING] += count - runs.scheduled
    partition.depth[SCHEDULED] += runs.scheduled
    partition.body_bytes += batch.body_bytes
    partition.totals["published"] += count
    if not flags & SHARED:
        partition.ledger[segment] = partition.ledger.get(segment, 0) + batch.body_bytes + count * 64
    return runs.out


def _pack_rows(
    partition: Partition, batch: Batch, runs: Runs, segment: int, offset: int, flags: int
) -> list[bytes]:
    """Pack the rows of a batch into their pages; returns copies of what was packed."""
    seq, place, now_ms = runs.first, partition.next_place, runs.now_ms
    page = partition.index.page_for(seq)
    start = at = (seq & SLOT_MASK) << 6
    blocks: list[bytes] = []
    pack_into = ROW.pack_into
    key: ProfileKey | None = None
    importance = rate = dead = 0
    published = origin(batch.qos, topic=batch.topic)
    for message, payload, crc, header_size in zip(
        batch.messages, batch.payloads, batch.crcs, batch.header_sizes, strict=True
    ):
        if at == PAGE_BYTES:
            blocks.append(_packed(page, start, at))
            page = partition.index.page_for(seq)
            start = at = 0
        own_key = (message.importance, message.ttl_ms, message.decay_rate)
        if own_key != key:
            key = own_key
            importance, rate, dead = runs.begin(key, seq)
        state, due = READY, 0
        if message.delay_ms:
            state, due = SCHEDULED, now_ms + message.delay_ms
            runs.schedule(seq, due)
        size = len(payload)
        pack_into(
            page.buffer,
            at,
            state,
            flags | DURABLE if message.durable else flags,
            importance,
            published,
            rate,
            now_ms,
            dead,
            due | header_size << HIGH,
            place,
            segment,
            offset,
            size,
            crc,
            0,
            0,
        )
        offset += size
        at += 64
        seq += 1
        place += 1
    blocks.append(_packed(page, start, at))
    runs.end(seq)
    return blocks


def _packed(page: Page, start: int, end: int) -> bytes:
    """Account for rows that were packed into a page, and copy them."""
    page.live += (end - start) >> 6
    page.dirty = True
    return bytes(page.buffer[start:end])


def publish_one(  # a short way has no room for a batch
    partition: Partition, message: Message, segment: int, offset: int, now_ms: int, published: int
) -> tuple[int, int, bytes]:
    """Take in a message without headers, delay and id, whose body will stand at (segment, offset).

    How it was published is told as its bits (`origin`). It is ready at once. Returned are its
    number, its importance and the payload of its fact, which the caller appends. Nothing may be
    held: messages are let in by the order they came.
    """
    body = message.body
    key = (message.importance, message.ttl_ms, message.decay_rate)
    profile = partition.profiles.get(key) or partition.profile(key)
    importance, rate, ttl_ms, known, class_bits, end_age_ms, given = profile
    index = partition.index
    seq, place = index.next_seq, partition.next_place
    page = index.pages.get(seq >> PAGE_BITS) or index.page_for(seq)
    at, size = (seq & SLOT_MASK) << 6, len(body)
    buffer = page.buffer
    _pack_row(
        buffer,
        at,
        READY,
        DURABLE if message.durable else 0,
        importance,
        published,
        rate,
        now_ms,
        now_ms + ttl_ms | class_bits if ttl_ms else class_bits,
        0,
        place,
        segment,
        offset,
        size,
        crc32c(body),
        0,
        0,
    )
    row = bytes(buffer[at : at + 64])
    page.live += 1
    page.dirty = True
    index.next_seq, partition.next_place = seq + 1, place + 1
    partition.by_importance[importance] += 1
    partition.depth[READY] += 1
    partition.body_bytes += size
    partition.totals["published"] += 1
    ledger = partition.ledger
    ledger[segment] = ledger.get(segment, 0) + size + 64
    if end_age_ms != NEVER:
        partition.end_wheel.add(now_ms + end_age_ms, seq)
    if partition.tell is not None:
        told = Happened(PUBLISHED, partition.pid, now_ms, 1, None, row, seq, given=(given,))
        partition.tell(told)
    partition.order.extend(known, seq, 1, place, now_ms)
    return seq, importance, _pack_head(crc32c(row), 0) + row + body
