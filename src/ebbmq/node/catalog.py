"""What is declared on a node: queues with their partitions, topics with their subscriptions."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.errors import InvalidSpec, UnknownQueue
from ebbmq.model import QueueSpec, TopicSpec  # noqa: TC001  # msgspec reads the annotations
from ebbmq.node import outdated
from ebbmq.policy.adapt import AdaptState  # noqa: TC001  # msgspec reads the annotations
from ebbmq.policy.decay import is_scored
from ebbmq.spelling import get_close_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ebbmq.core.partition import Partition
    from ebbmq.holding.resident import Resident
    from ebbmq.model import Scored
    from ebbmq.node.numbering import Spans
    from ebbmq.policy.adapt import AdaptiveDecay

_NEAR_ENOUGH: Final = 0.6
#: A fleet-wide decay factor, until when it holds, and which run advised it.
Factor = tuple[float, int, str]


class Shard:
    """A partition with what the node keeps beside it."""

    __slots__ = (
        "faulty",
        "partition",
        "passed_over",
        "queue",
        "reading_ahead",
        "reads_at_once",
        "resident",
        "totals_before",
    )

    def __init__(self, queue: Queue, partition: Partition, resident: Resident) -> None:
        self.queue = queue
        self.partition = partition
        self.resident = resident
        self.reading_ahead = False
        #: Bodies that are not in RAM could last be read without waiting for a device.
        self.reads_at_once = False
        #: Why the partition takes no requests; None when it is fine.
        self.faulty: str | None = None
        #: Numbers that the opening passed over: whether they had been given out is not known.
        self.passed_over = range(0)
        #: The partition's totals when the broker was opened.
        self.totals_before: dict[str, int] = {}


class Queue:
    """A declared queue: one logical queue over its shards."""

    def __init__(self, spec: QueueSpec, lock: threading.Lock) -> None:
        self.spec = spec
        #: Whose parameters of the decay score count for its messages: its own, or a topic's.
        self.scored: Scored = spec
        self.shards: list[Shard] = []
        self.by_pid: dict[int, Shard] = {}
        #: Told when messages may have become ready; guards nothing of its own.
        self.arrived = threading.Condition(lock)
        #: Who waits without a thread, longest first; each is called once, with the lock held.
        self.waiters: deque[Callable[[], None]] = deque()
        self.next_shard = 0
        self.paused = False
        #: The client that last leased from it; None until one has.
        self.consumer: str | None = None
        #: Which change of its parameters these are; plans made for others are outdated.
        self.version = 1
        self.rates = Rates()

    def add(self, shard: Shard) -> None:
        """Append a shard."""
        self.shards.append(shard)
        self.by_pid[shard.partition.pid] = shard

    def controllers(self) -> list[AdaptiveDecay]:
        """Those of its own decay factor, one a partition; none where it has no factor."""
        found = [shard.partition.adapt for shard in self.shards]
        return [each for each in found if each is not None]

    def healthy(self) -> list[Shard]:
        """The shards that take requests."""
        return [shard for shard in self.shards if shard.faulty is None]


class Rates:
    """Messages per second by verb, over the last few seconds."""

    WINDOW_MS: Final = 10_000
    VERBS: Final = ("publish", "lease", "ack", "retry")

    def __init__(self) -> None:
        self._marks: list[tuple[int, tuple[int, ...]]] = []

    def mark(self, now_ms: int, totals: tuple[int, ...]) -> dict[str, float]:
        """Note the totals at an instant and return the rates since the start of the window."""
        self._marks.append((now_ms, totals))
        while len(self._marks) > 1 and self._marks[0][0] < now_ms - self.WINDOW_MS:
            self._marks.pop(0)
        since_ms, before = self._marks[0]
        seconds = max(1, now_ms - since_ms) / 1_000
        return {
            verb: round((total - was) / seconds, 1)
            for verb, total, was in zip(self.VERBS, totals, before, strict=True)
        }


class DeclaredQueue(msgspec.Struct, frozen=True):
    """A queue as META facts carry it."""

    spec: QueueSpec
    pids: list[int]
    next_seqs: list[int]
    paused: bool = False
    version: int = 0
    consumer: str | None = None
    #: The state of its controller in each partition; empty where it has none.
    adapted: list[AdaptState] = []


class DeclaredTopic(msgspec.Struct, frozen=True):
    """A topic as META facts carry it."""

    spec: TopicSpec
    queues: list[str]


class DeletedQueue(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a queue that was deleted, for who asks what became of its messages."""

    name: str
    first_pid: int
    next_seqs: list[int]

    @property
    def pids(self) -> range:
        """Its partitions; their numbers are not used again."""
        return range(self.first_pid, self.first_pid + len(self.next_seqs))


class Damage(msgspec.Struct, frozen=True, array_like=True):
    """Messages `first` .. `end - 1` of a partition that may have been lost."""

    pid: int
    first: int
    end: int
    found_at_ms: int
    how: str


class Stored(NamedTuple):
    """The segments of a journal at one instant."""

    young: list[int]
    old: list[int]
    #: Those of the old ones of which MOVED facts name every message.
    listed: list[int]


class Declared(msgspec.Struct, frozen=True):
    """Everything declared at one instant; the last META fact holds."""

    next_pid: int
    epoch: int
    queues: list[DeclaredQueue]
    topics: list[DeclaredTopic]
    factors: dict[str, Factor] = {}
    #: Young segments that existed when this was written: one of them missing is damage. Old ones
    #: are in it, too, where they are not in `old_segments`, and prove nothing there.
    segments: list[int] = []
    #: The queues deleted last, oldest first.
    deleted: list[DeletedQueue] = []
    #: By queue, when the last factor that was advised was decided.
    decided: dict[str, int] = {}
    #: By segment and partition, the first and the last message whose record is in it, dead ones
    #: included, of the segments before and after those that were given back.
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    #: Likewise old segments, and those of them of which MOVED facts name every message.
    old_segments: list[int] = []
    listed: list[int] = []
    #: What was found last of messages that may have been lost.
    damage: list[Damage] = []


class Status(msgspec.Struct, frozen=True):
    """What a checkpoint says of the whole node."""

    declared: Declared
    queue_ms: int
    wall_ms: int
    synced: int
    totals: dict[int, dict[str, int]]
    #: (first, last) message of each partition whose record is in a segment, dead ones included.
    ranges: dict[int, dict[int, tuple[int, int]]]
    #: Written by a close: nothing was given out after it.
    closed: bool = False
    #: What was relocated before this position in the old generation is in the pages.
    old_position: int = 0
    #: Added rules, as their fact has them; empty where there never was one.
    rules: bytes = b""
    #: By partition and age: the first message not looked at when it reached that age.
    reviewed: dict[int, dict[int, int]] = {}
    #: What became of advice, as its fact has it; empty where there never was any.
    advised: bytes = b""
    #: By partition, the number of the next message when the checkpoint was begun; None: not known.
    first_seqs: dict[int, int] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Declared).decode
_decode_status = msgspec.msgpack.Decoder(Status).decode


class Catalog:
    """The queues and topics of a node by name."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, DeclaredTopic] = {}
        self.shards: dict[int, Shard] = {}
        self.next_pid = 1
        self.epoch = 0
        self.factors: dict[str, Factor] = {}
        self.decided: dict[str, int] = {}
        self.deleted: deque[DeletedQueue] = deque(maxlen=limits.DELETED_QUEUES_MAX)
        self.damage: deque[Damage] = deque(maxlen=limits.DAMAGE_MAX)

    @contextlib.contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Change it in here; if that ends with an error, all is declared as it was before."""
        queues, topics, shards = dict(self.queues), dict(self.topics), dict(self.shards)
        factors, decided, deleted = dict(self.factors), dict(self.decided), list(self.deleted)
        next_pid = self.next_pid
        settings = [(queue, queue.spec, queue.version, queue.paused) for queue in queues.values()]
        try:
            yield
        except BaseException:
            self.queues, self.topics, self.shards = queues, topics, shards
            self.factors, self.decided, self.next_pid = factors, decided, next_pid
            self.deleted.clear()
            self.deleted.extend(deleted)
            for queue, spec, version, paused in settings:
                queue.spec, queue.version, queue.paused = spec, version, paused
            self.follow_topics()
            raise

    def follow_topics(self) -> None:
        """Have queues go by the score of their topics, and count reads where one of a topic does.

        Of several topics that say how messages are scored the last declared one counts.
        """
        for queue in self.queues.values():
            queue.scored = queue.spec
        for topic in self.topics.values():
            for name in topic.queues if is_scored(topic.spec) else ():
                self.queues[name].scored = topic.spec
        counted = {name for name, each in self.queues.items() if each.scored.score_access_bonus}
        for topic in self.topics.values():
            if not counted.isdisjoint(topic.queues):
                counted.update(topic.queues)
        for name, queue in self.queues.items():
            for shard in queue.shards:
                shard.partition.score_by(queue.scored, counts_reads=name in counted)

    def queue(self, name: object) -> Queue:
        """The queue of that name.

        Raises:
            UnknownQueue: with the nearest name there is.
        """
        found = self.queues.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown("queue", name, self.queues)
        return found

    def remove(self, name: str) -> None:
        """Take a queue out, and remember that it was there."""
        queue = self.queues.pop(name)
        for pid in queue.by_pid:
            del self.shards[pid]
        next_seqs = [shard.partition.index.next_seq for shard in queue.shards]
        self.deleted.append(DeletedQueue(name, min(queue.by_pid), next_seqs))

    def pids_of(self, name: object) -> list[int]:
        """The partitions of a queue, and of those of its name that were deleted.

        Raises:
            UnknownQueue: there neither is nor was one of that name.
        """
        pids = [pid for gone in self.deleted if gone.name == name for pid in gone.pids]
        if not pids or name in self.queues:
            pids += self.queue(name).by_pid
        return pids

    def deleted_with(self, pid: int) -> DeletedQueue | None:
        """The deleted queue that a partition belonged to."""
        return next((gone for gone in self.deleted if pid in gone.pids), None)

    def damage_to(self, pid: int, seq: int) -> Damage | None:
        """What may have cost a message, if anything may."""
        return next((d for d in self.damage if d.pid == pid and d.first <= seq < d.end), None)

    def version_of(self, name: str) -> int:
        """Which change of its parameters a queue has; 0 if there is none of that name."""
        found = self.queues.get(name)
        return 0 if found is None else found.version

    def topic(self, name: object) -> DeclaredTopic:
        """The topic of that name.

        Raises:
            UnknownQueue: with the nearest name there is.
        """
        found = self.topics.get(name) if isinstance(name, str) else None
        if found is None:
            raise unknown("topic", name, self.topics)
        return found

    def declared(self, stored: Stored, spans: Spans | None = None) -> Declared:
        """All of it as one value."""
        return Declared(
            self.next_pid,
            self.epoch,
            [
                DeclaredQueue(
                    queue.spec,
                    [shard.partition.pid for shard in queue.shards],
                    [shard.partition.index.next_seq for shard in queue.shards],
                    queue.paused,
                    queue.version,
                    queue.consumer,
                    [each.state() for each in queue.controllers()],
                )
                for queue in self.queues.values()
            ],
            list(self.topics.values()),
            dict(self.factors),
            stored.young,
            list(self.deleted),
            dict(self.decided),
            spans or {},
            stored.old,
            stored.listed,
            list(self.damage),
        )

    def fact(self, stored: Stored, spans: Spans | None = None) -> fact.Fact:
        """All of it as a META fact."""
        return fact.Fact(fact.META, 0, 0, 0, [_encode(self.declared(stored, spans))])


def read_declared(payload: bytes | memoryview) -> Declared:
    """Decode a META fact."""
    try:
        return _decode(payload)
    except (InvalidSpec, msgspec.ValidationError):
        return outdated.read(payload, Declared)


def read_status(payload: bytes | memoryview) -> Status:
    """Decode what a checkpoint says of the whole node."""
    try:
        return _decode_status(payload)
    except (InvalidSpec, msgspec.ValidationError):
        return outdated.read(payload, Status)


def pack_status(status: Status) -> bytes:
    """Encode what a checkpoint says of the whole node."""
    return _encode(status)


def unknown(kind: str, name: object, names: Iterable[str]) -> UnknownQueue:
    """The error for a name that is not declared, with the nearest one that is."""
    near = get_close_matches(str(name), list(names), 1, _NEAR_ENOUGH)
    hint = f"did you mean {near[0]!r}?" if near else f"declare the {kind} first"
    error = UnknownQueue(f"no {kind} is named {name!r:.80}", hint)
    error.near = (kind, near[0]) if near else None
    return error
