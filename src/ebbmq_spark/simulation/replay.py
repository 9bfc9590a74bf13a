"""What would have become of a queue's traffic under a policy: the real partition, a virtual clock.

Theory of operation. Time goes on in slices of `resolution_ms`. In each, what finished is acked or
retried, what fell due is done, consumers that come free lease from what waits, and what was
published in the slice comes in. Verbs are called once a slice with many messages, which is what
makes it fast; consumers begin and end at their own instants, not at those of slices, so that no
capacity is lost to rounding. A resolution of 1 ms is exact, for the partition's own clock is in
milliseconds; a coarser one may serve a message before another that came up to a slice earlier.

When a message ends by its age is known before it comes, unless the decay factor adapts. So that is
followed in the order of the ends instead of with a timer for each message, and a message leaves at
the instant of its end, not at that of a slice.

Consumers are `consumers` hands that each work on one message at a time, for as long as the trace
says, and take the next one at once. They extend their leases while they work, as `consume` does, so
leases do not expire; a message that fails by the trace is retried when the work on it ends.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from typing_extensions import override

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import grants, leases, lifecycle
from ebbmq.core.classes import NEVER
from ebbmq.core.partition import Batch, Partition
from ebbmq.core.row import DYING, READY
from ebbmq.core.wheel import Wheel
from ebbmq.model import Message, Reason
from ebbmq_spark.simulation.traffic import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.model import QueueSpec
    from ebbmq_spark.simulation.traffic import Traffic

WAITING: Final = 0
ACKED: Final = 100
DEAD_LETTERED: Final = 101
REJECTED: Final = 102

_PID: Final = 1
_DEAD_PID: Final = 2
_EPOCH: Final = 1
_NONCE: Final = 1
_LEASE_MAX: Final = 4_096
_CAUTION: Final = 0.9
_BY_AGE: Final = (int(Reason.STALE), int(Reason.EXPIRED), int(Reason.RETENTION), DEAD_LETTERED)


class Fates(NamedTuple):
    """What became of each message: how it left (ACKED, a `Reason`, ..), when, and when it began."""

    outcome: npt.NDArray[np.int16]
    started_ms: npt.NDArray[np.float64]
    left_ms: npt.NDArray[np.float64]


#: A message that a consumer works on: when he is done, its row, and the generation of its lease.
_Run = tuple[float, int, int]


def replay(traffic: Traffic, spec: QueueSpec, resolution_ms: int) -> Fates:
    """Run the traffic through a queue of this policy until every message has its fate."""
    return _Replay(traffic, spec, resolution_ms).run()


class _Replay:
    """The state of one replay."""

    def __init__(self, traffic: Traffic, spec: QueueSpec, resolution_ms: int) -> None:
        self.traffic = traffic
        self.resolution_ms = resolution_ms
        # Consumers extend their leases, so none expires: it may as well last for ever.
        spec = msgspec.structs.replace(spec, lease_timeout_ms=limits.DURATION_MS_MAX, partitions=1)
        self.partition = Partition(_PID, spec, _EPOCH)
        if len(traffic) and traffic.delay_ms.max() < limits.DURATION_MS_MAX // 2:
            self.partition.due_wheel = _DueWheel(int(traffic.at_ms[0]) + limits.DURATION_MS_MAX)
        self.spec = spec
        self.first = self.partition.index.next_seq
        #: Messages of the traffic in the order they come in, and which of them each row is.
        self.incoming = self._incoming()
        self.number: list[int] = []
        self.kinds, self.kind_of = _kinds(traffic)
        self.messages = _messages(self.kinds, self.kind_of[self.incoming])
        self.bodies = _bodies(traffic, self.incoming) if spec.max_bytes else [b""] * len(traffic)
        self.ready_from = (traffic.at_ms + np.maximum(traffic.delay_ms, 0)).tolist()
        self.service_ms = traffic.service_ms.tolist()
        self.service_mean_ms = max(float(traffic.service_ms.mean()), 1e-3) if len(traffic) else 1.0
        self.failures = traffic.failures.tolist() if (traffic.failures > 0).any() else None
        count = len(traffic)
        self.outcome = np.zeros(count, dtype=np.int16)
        self.started_ms = np.full(count, np.nan)
        self.left_ms = np.full(count, np.nan)
        start_ms = float(traffic.at_ms[0]) if count else 0.0
        self.free = [start_ms] * traffic.consumers
        self.running: list[_Run] = []
        self.published = 0
        bounded = spec.max_messages or spec.max_bytes
        self.ends: _Ends | None = None
        if resolution_ms > 1 and not bounded and spec.adapt is None:
            self.ends = self.partition.end_wheel = _Ends(self)

    def run(self) -> Fates:
        """Go from slice to slice until nothing is left to happen."""
        now_ms = self._next_ms()
        while now_ms is not None:
            self._slice(now_ms)
            later_ms = self._next_ms()
            if later_ms is None:
                break
            now_ms = max(later_ms, now_ms + self.resolution_ms)
        if self.ends is not None:
            self.ends.date()
        return Fates(self.outcome, self.started_ms, self.left_ms)

    def _incoming(self) -> list[int]:
        """Messages in the order they come in: those of a slice by kind, which is much cheaper.

        Not where a slice is the smallest there is, or where the last ones may be rejected.
        """
        bounded = self.spec.max_messages or self.spec.max_bytes
        if self.resolution_ms == 1 or (bounded and self.spec.overflow == "reject"):
            return list(range(len(self.traffic)))
        traffic = self.traffic
        slices = traffic.at_ms // self.resolution_ms
        order = np.lexsort((traffic.decay_rate, traffic.ttl_ms, traffic.importance, slices))
        numbers: list[int] = order.tolist()
        return numbers

    def _next_ms(self) -> int | None:
        """The slice in which something happens next."""
        partition = self.partition
        instants: list[float] = []
        if self.published < len(self.messages):
            instants.append(float(self.traffic.at_ms[self.published]))
        if partition.depth[READY]:
            instants.append(self.free[0])
        if self.running:
            instants.append(min(self.running)[0])
        if partition.live() > len(self.running):
            wheels = [partition.due_wheel]
            if self.ends is None:
                wheels.append(partition.end_wheel)
            elif not instants:
                instants.append(self.ends.next_ms())
            instants += [float(at) for wheel in wheels if (at := wheel.next_deadline_ms())]
        if not instants:
            return None
        # Rounded up: what ends within a slice has ended at the begin of the next one.
        at_ms = min(instants)
        aligned = int(at_ms // self.resolution_ms) * self.resolution_ms
        return aligned if self.resolution_ms > 1 or aligned >= at_ms else aligned + 1

    def _slice(self, now_ms: int) -> None:
        end_ms = now_ms + self.resolution_ms
        self._tick(now_ms)
        self._settle(now_ms)
        self._serve(now_ms, end_ms)
        if self._publish(now_ms, end_ms):
            self._serve(now_ms, end_ms, as_it_comes=True)
        self._move(now_ms)
        self._note()

    def _settle(self, now_ms: int) -> None:
        """Ack what was finished, retry what failed."""
        done = [run for run in self.running if run[0] <= now_ms]
        if not done:
            return
        self.running = [run for run in self.running if run[0] > now_ms]
        number, first = self.number, self.first
        if self.failures is not None:
            failing = self.failures
            failed = [run for run in done if run[2] <= failing[number[run[1] - first]]]
            if failed:
                tokens = [_token(run) for run in sorted(failed)]
                leases.retry(self.partition, tokens, None, now_ms)
                done = [run for run in done if run[2] > failing[number[run[1] - first]]]
        if self.partition.adapt is not None:
            for run in sorted(done):
                leases.ack(self.partition, leases.TOKEN.pack(*_token(run)), int(run[0]))
        else:
            # One that failed before would slow down all that are acked with it.
            for part in ([r for r in done if r[2] == 1], [r for r in done if r[2] > 1]):
                if part:
                    leases.ack(self.partition, _tokens(part), now_ms)
        numbers = [number[seq - first] for _, seq, _ in done]
        self.outcome[numbers] = ACKED
        self.left_ms[numbers] = [done_ms for done_ms, _, _ in done]

    def _number(self, seq: int) -> int:
        return self.number[seq - self.first]

    def _tick(self, now_ms: int) -> None:
        partition = self.partition
        partition.refresh_factor(now_ms)
        # Crossings alone need no tick: a lease looks at what it is about to take.
        wheels = [partition.due_wheel]
        if self.ends is None:
            wheels.append(partition.end_wheel)
        partition.removes_by_age = self.ends is None
        while any((at := wheel.next_deadline_ms()) and at <= now_ms for wheel in wheels):
            lifecycle.tick(partition, now_ms)
        partition.removes_by_age = True
        if self.ends is not None:
            self.ends.take_out(now_ms)

    def _move(self, now_ms: int) -> None:
        """Let go of what the dead queue takes."""
        partition = self.partition
        for move in partition.moves:
            row = partition.index.read(move.seq)
            if row is not None:
                partition.remove([(move.seq, row)], move.reason, now_ms, [(_DEAD_PID, 1)])
        partition.moves.clear()

    def _publish(self, now_ms: int, end_ms: int) -> int:
        """Take in what is published before the end of the slice; returns how much that is."""
        start = self.published
        stop = int(np.searchsorted(self.traffic.at_ms, end_ms, side="left"))
        self.published = stop
        accepted = self._accepted(start, stop, now_ms)
        partition, count = self.partition, accepted - start
        if count:
            bodies = self.bodies[start:accepted]
            zeros = [0] * count
            body_bytes = sum(map(len, bodies)) if self.spec.max_bytes else 0
            batch = Batch(self.messages[start:accepted], bodies, zeros, zeros, body_bytes, False)
            partition.open_runs(partition.publish(batch, now_ms, 1, 0))
            self.number += self.incoming[start:accepted]
            if self.spec.overflow != "reject" and (self.spec.max_messages or self.spec.max_bytes):
                partition.trim(now_ms)
        return count

    def _accepted(self, start: int, stop: int, now_ms: int) -> int:
        """Where the messages end that a queue with bounds has room for; rejects the others."""
        spec, partition = self.spec, self.partition
        accepted = stop
        if spec.overflow == "reject":
            if spec.max_messages:
                room = spec.max_messages - partition.live() + partition.depth[DYING]
                accepted = min(accepted, start + max(0, room))
            if spec.max_bytes:
                sizes = np.cumsum(self.traffic.bytes[start:stop])
                room = spec.max_bytes - partition.body_bytes
                accepted = min(accepted, start + int(np.searchsorted(sizes, room, side="right")))
            self.outcome[accepted:stop] = REJECTED
            self.left_ms[accepted:stop] = now_ms
        return accepted

    def _serve(self, now_ms: int, end_ms: int, *, as_it_comes: bool = False) -> None:
        """Let consumers that come free within the slice lease and begin.

        How many leases they need is known only once they have them; asking for less than the
        estimate leaves the rest to the next round, so that nobody leases what he cannot begin.
        Who waits for work takes it as it comes, and the estimate must not leave him waiting.
        """
        partition, free = self.partition, self.free
        share = 1.0 if as_it_comes else _CAUTION
        while free[0] < end_ms and partition.depth[READY]:
            idle = [instant for instant in free if instant < end_ms]
            room_ms = sum(end_ms - max(instant, now_ms) for instant in idle)
            wanted = max(len(idle), int(room_ms * share / self.service_mean_ms))
            got = grants.lease(
                partition, min(wanted, _LEASE_MAX), self.spec.lease_timeout_ms, _NONCE, now_ms
            )
            if not got.seqs:
                return
            pairs = list(zip(got.seqs, got.column("generation"), strict=True))
            if as_it_comes:
                pairs.sort(key=lambda pair: self.ready_from[self._number(pair[0])])
            self._begin(pairs, now_ms)

    def _begin(self, pairs: list[tuple[int, int]], now_ms: int) -> None:
        """Have consumers begin with messages, who is free first with the first."""
        free, running, first, number = self.free, self.running, self.first, self.number
        ready_from, service_ms = self.ready_from, self.service_ms
        begun: list[int] = []
        instants: list[float] = []
        for seq, generation in pairs:
            at = number[seq - first]
            begin_ms = now_ms if generation else ready_from[at]
            if free[0] > begin_ms:  # noqa: PLR1730  # a call of max takes longer than all the rest
                begin_ms = free[0]
            done_ms = begin_ms + service_ms[at]
            heapq.heapreplace(free, done_ms)
            running.append((done_ms, seq, generation + 1))
            if not generation:
                begun.append(at)
                instants.append(begin_ms)
        self.started_ms[begun] = instants

    def _note(self) -> None:
        """Read from the facts which messages left, and drop what a journal would keep."""
        partition = self.partition
        for each in partition.facts:
            if each[0] == fact.REMOVE:
                gone = np.frombuffer(each[4][0], dtype=fact.REMOVAL_DTYPE)
                rows = gone["seq"].astype(np.int64) - self.first
                numbers = np.array([self.number[row] for row in rows.tolist()], dtype=np.int64)
                moved = gone["moved_pid"] == _DEAD_PID
                self.outcome[numbers] = np.where(moved, DEAD_LETTERED, gone["reason"])
                self.left_ms[numbers] = gone["at_ms"]
        partition.facts.clear()
        partition.left.clear()
        partition.let_go.clear()


class _DueWheel(Wheel):
    """What is due some day; leases never expire here, so they need not be remembered."""

    def __init__(self, never_ms: int) -> None:
        super().__init__()
        self.never_ms = never_ms

    @override
    def add_many(self, deadline_ms: int, seqs: Sequence[int]) -> None:
        if deadline_ms < self.never_ms:
            super().add_many(deadline_ms, seqs)

    @override
    def add(self, deadline_ms: int, seq: int) -> None:
        if deadline_ms < self.never_ms:
            super().add(deadline_ms, seq)


class _Ends(Wheel):
    """When messages end by their age: all of that is known before, so nothing has to be added."""

    def __init__(self, replay: _Replay) -> None:
        super().__init__()
        self.replay = replay
        partition, traffic = replay.partition, replay.traffic
        ages = [partition.profile(_key(kind)).end_age_ms for kind in replay.kinds]
        came_ms = traffic.at_ms // replay.resolution_ms * replay.resolution_ms
        self.ends_ms = came_ms + np.array(ages, dtype=np.int64)[replay.kind_of]
        order = np.argsort(self.ends_ms, kind="stable")
        self.numbers = order[self.ends_ms[order] < NEVER]
        self.instants = self.ends_ms[self.numbers]
        #: Which row each message is: they come in in the order of `incoming`.
        self.row_of = np.empty(len(traffic), dtype=np.uint64)
        self.row_of[replay.incoming] = np.arange(len(traffic), dtype=np.uint64)
        self.done = 0

    @override
    def add_many(self, deadline_ms: int, seqs: Sequence[int]) -> None:
        return

    @override
    def add(self, deadline_ms: int, seq: int) -> None:
        return

    @override
    def may_be_due(self, now_ms: int) -> bool:
        return self.done < len(self.instants) and bool(self.instants[self.done] <= now_ms)

    def next_ms(self) -> float:
        """When the next message ends that still waits; the last one, if none does."""
        waiting = self.replay.outcome[self.numbers[self.done :]] == WAITING
        if not waiting.any():
            return float(self.instants[-1]) if len(self.instants) else 0.0
        return float(self.instants[self.done + int(np.argmax(waiting))])

    def take_out(self, now_ms: int) -> None:
        """Take out what has ended and still waits."""
        stop = int(np.searchsorted(self.instants, now_ms, side="right"))
        numbers = self.numbers[self.done : stop]
        self.done = max(self.done, stop)
        waiting = numbers[self.replay.outcome[numbers] == WAITING]
        if len(waiting):
            seqs = np.sort(self.row_of[waiting]) + np.uint64(self.replay.first)
            lifecycle.end_waiting(self.replay.partition, seqs, now_ms)

    def date(self) -> None:
        """Let messages that nobody began with leave when they ended, not when that was noticed."""
        replay = self.replay
        ended = np.isin(replay.outcome, _BY_AGE) & np.isnan(replay.started_ms)
        replay.left_ms[ended] = np.minimum(replay.left_ms, self.ends_ms)[ended]


def _kinds(traffic: Traffic) -> tuple[list[Message], npt.NDArray[np.intp]]:
    """The messages that differ in what a publisher says, and which of them each row is."""
    columns = (traffic.importance, traffic.ttl_ms, traffic.decay_rate, traffic.delay_ms)
    which = np.zeros(len(traffic), dtype=np.intp)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            _, which = np.unique(which * len(values) + place.reshape(-1), return_inverse=True)
            which = which.reshape(-1)
    _, first = np.unique(which, return_index=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return [_message(*row) for row in rows], which


def _message(importance: int, ttl_ms: int, decay_rate: float, delay_ms: int) -> Message:
    return Message(
        b"",
        importance=None if importance == NONE else importance,
        ttl_ms=None if ttl_ms == NONE else ttl_ms,
        decay_rate=None if decay_rate == NONE else decay_rate,
        delay_ms=max(0, delay_ms),
    )


def _key(message: Message) -> tuple[int | None, int | None, float | None]:
    return message.importance, message.ttl_ms, message.decay_rate


def _messages(kinds: list[Message], which: npt.NDArray[np.intp]) -> list[Message]:
    """A message for each row; rows that say the same share one."""
    return [kinds[kind] for kind in which.tolist()]


def _bodies(traffic: Traffic, order: list[int]) -> list[bytes]:
    """Bodies of the right size, in this order; those of one size are the same."""
    known: dict[int, bytes] = {}
    return [known.setdefault(size, bytes(size)) for size in traffic.bytes[order].tolist()]


def _token(run: _Run) -> leases.Token:
    return (_PID, run[1], run[2], _EPOCH, _NONCE)


def _tokens(runs: list[_Run]) -> bytes:
    packed = np.empty(len(runs), dtype=leases.TOKEN_DTYPE)
    packed["pid"], packed["epoch"], packed["nonce"] = _PID, _EPOCH, _NONCE
    packed["seq"] = [seq for _, seq, _ in runs]
    packed["generation"] = [generation for _, _, generation in runs]
    return packed.tobytes()


#: Outcomes other than a lease that ended well, by the name they are told under.
LEFT: Final = {
    "stale": (int(Reason.STALE),),
    "expired": (int(Reason.EXPIRED),),
    "retention": (int(Reason.RETENTION),),
    "failed": (int(Reason.MAX_ATTEMPTS),),
    "overflow": (int(Reason.OVERFLOW), REJECTED),
    "dead_lettered": (DEAD_LETTERED,),
}
