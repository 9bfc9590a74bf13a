"""What would have become of a queue's traffic under a policy: the real partition, a virtual clock.

Theory of operation. Time goes on in slices of `resolution_ms`. In each, what finished is acked or
retried, what fell due is done, consumers that come free lease from what waits, and what was
published in the slice comes in. Verbs are called once a slice with many messages, which is what
makes it fast; consumers begin and end at their own instants, not at those of slices, so that no
capacity is lost to rounding. A resolution of 1 ms is exact, for the partition's own clock is in
milliseconds; a coarser one may serve a message before another that came up to a slice earlier.
Slices of a bounded queue are shorter where it is about to be full (`bounds`).

Consumers are `consumers` hands that each work on one message at a time, for as long as the trace
says, and take the next one at once. They extend their leases while they work, as `consume` does, so
leases do not expire; a message that fails by the trace is retried when the work on it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import grants, leases, lifecycle
from ebbmq.core.arrivals import Batch, publish
from ebbmq.core.partition import Partition
from ebbmq.core.row import READY
from ebbmq.core.tokens import TOKEN, TOKEN_DTYPE
from ebbmq.model import Reason
from ebbmq_spark.simulation.arrivals import arrivals_of
from ebbmq_spark.simulation.bounds import Bounds
from ebbmq_spark.simulation.hands import Hands, Work

if TYPE_CHECKING:
    import numpy.typing as npt

    from ebbmq.core.tokens import Token
    from ebbmq.model import QueueSpec
    from ebbmq_spark.simulation.traffic import Traffic

    Numbers = npt.NDArray[np.intp]

__all__ = ["ACKED", "LEFT", "REJECTED", "WAITING", "Fates", "replay"]

#: The outcome of a message that has none yet.
WAITING: Final = 0
ACKED: Final = 100
REJECTED: Final = 101

_PID: Final = 1
_DEAD_PID: Final = 2
_EPOCH: Final = 1
_NONCE: Final = 1
_LEASE_MAX: Final = 4_096
_CAUTION: Final = 0.9
#: Fewer messages are packed one by one.
_TOGETHER_MIN: Final = 16


class Fates(NamedTuple):
    """What became of each message: how it left (ACKED, a `Reason`, ..), when, and when it began."""

    outcome: npt.NDArray[np.int16]
    started_ms: npt.NDArray[np.float64]
    left_ms: npt.NDArray[np.float64]
    #: Whether it went to the dead queue; why is its outcome all the same.
    is_dead_lettered: npt.NDArray[np.bool_]


def replay(traffic: Traffic, spec: QueueSpec, resolution_ms: int) -> Fates:
    """Run the traffic through a queue of this policy until every message has its fate."""
    return _Replay(traffic, spec, resolution_ms).run()


class _Replay:
    """The state of one replay."""

    def __init__(self, traffic: Traffic, spec: QueueSpec, resolution_ms: int) -> None:
        count = len(traffic)
        start_ms = int(traffic.at_ms[0]) if count else 0
        self.traffic = traffic
        self.resolution_ms = resolution_ms
        # Consumers extend their leases, so none expires: it may as well last for ever.
        spec = msgspec.structs.replace(spec, lease_timeout_ms=limits.DURATION_MS_MAX, partitions=1)
        self.spec = spec
        self.partition = Partition(_PID, spec, _EPOCH)
        self.first = self.partition.index.next_seq
        bounded = bool(spec.max_messages or spec.max_bytes)
        # Not by kind where a slice is the smallest there is, or it may end before all have come.
        as_they_came = resolution_ms == 1 or bounded
        self.arrivals = arrivals_of(traffic, None if as_they_came else resolution_ms)
        self.bounds = Bounds(self.partition, traffic) if bounded else None
        self.bodies: dict[int, bytes] = {}
        #: Which message of the traffic each row is.
        self.number = np.empty(count, dtype=np.int64)
        self.rows = 0
        self.published = 0
        self.service_mean_ms = max(float(traffic.service_ms.mean()), 1e-3) if count else 1.0
        self.may_fail = bool((traffic.failures > 0).any())
        self.outcome = np.zeros(count, dtype=np.int16)
        self.started_ms = np.full(count, np.nan)
        self.left_ms = np.full(count, np.nan)
        self.is_dead_lettered = np.zeros(count, dtype=np.bool_)
        self.hands = Hands(traffic.consumers, float(start_ms))

    def run(self) -> Fates:
        """Go from slice to slice until nothing is left to happen."""
        now_ms = self._next_ms()
        while now_ms is not None:
            end_ms = self._slice(now_ms)
            later_ms = self._next_ms()
            if later_ms is None:
                break
            now_ms = max(later_ms, end_ms)
        return Fates(self.outcome, self.started_ms, self.left_ms, self.is_dead_lettered)

    def _next_ms(self) -> int | None:
        """The slice in which something happens next."""
        partition, hands = self.partition, self.hands
        instants: list[float] = []
        if self.published < len(self.traffic):
            instants.append(float(self.traffic.at_ms[self.published]))
        if partition.depth[READY]:
            instants.append(hands.free[0])
        if hands.working:
            instants.append(hands.soonest_ms)
        if partition.live() > hands.working:
            wheels = (partition.due_wheel, partition.end_wheel)
            instants += [float(at) for wheel in wheels if (at := wheel.next_deadline_ms())]
        if not instants:
            return None
        # Rounded up: what ends within a slice has ended at the begin of the next one.
        at_ms = min(instants)
        aligned = int(at_ms // self.resolution_ms) * self.resolution_ms
        return aligned if self.resolution_ms > 1 or aligned >= at_ms else aligned + 1

    def _slice(self, now_ms: int) -> int:
        """Do all that happens from now on until the slice ends; returns when that is."""
        end_ms = now_ms + self.resolution_ms
        self._tick(now_ms)
        self._settle(now_ms)
        if self.bounds is not None:
            end_ms = self.bounds.slice_end(self.published, now_ms, end_ms)
        self._serve(now_ms, end_ms)
        if self._publish(now_ms, end_ms):
            self._serve(now_ms, end_ms, as_it_comes=True)
        self._move(now_ms)
        self._note()
        return end_ms

    def _settle(self, now_ms: int) -> None:
        """Ack what was finished, retry what failed."""
        done = self.hands.done(now_ms)
        if not len(done.rows):
            return
        if self.may_fail:
            fails = done.generations <= self.traffic.failures[done.numbers]
            if fails.any():
                failed, done = done.where(fails).in_order(), done.where(~fails)
                leases.retry(self.partition, _tokens(failed), None, now_ms)
        if self.partition.adapt is not None:
            finished = done.in_order()
            for token, until in zip(_tokens(finished), finished.until_ms.tolist(), strict=True):
                leases.ack(self.partition, TOKEN.pack(*token), int(until))
        else:
            # One that failed before would slow down all that are acked with it.
            again = done.generations > 1
            for part in (done.where(~again), done.where(again)) if again.any() else (done,):
                if len(part.rows):
                    leases.ack(self.partition, _packed_tokens(part), now_ms)
        self.outcome[done.numbers] = ACKED
        self.left_ms[done.numbers] = done.until_ms

    def _tick(self, now_ms: int) -> None:
        partition = self.partition
        partition.refresh_factor(now_ms)
        # Crossings alone need no tick: a lease looks at what it is about to take.
        wheels = (partition.due_wheel, partition.end_wheel)
        while any((at := wheel.next_deadline_ms()) and at <= now_ms for wheel in wheels):
            lifecycle.tick(partition, now_ms)

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
        stop = self.published = int(np.searchsorted(self.traffic.at_ms, end_ms, side="left"))
        bounds, numbers = self.bounds, self.arrivals.numbers[start:stop]
        if bounds is None:
            return self._take_in(numbers, self.arrivals.which[start:stop], now_ms)
        admitted = bounds.admitted(start, stop)
        self._reject(numbers[~admitted])
        numbers = numbers[admitted]
        if self.resolution_ms > 1:
            numbers = numbers[np.argsort(self.arrivals.kind_of[numbers], kind="stable")]
        count = self._take_in(numbers, self.arrivals.kind_of[numbers], now_ms)
        bounds.make_room(now_ms)
        return count

    def _take_in(self, numbers: Numbers, which: Numbers, now_ms: int) -> int:
        """Publish messages of the traffic, each of a kind; returns how many they are."""
        partition, count = self.partition, len(numbers)
        if count:
            partition.open_runs(publish(partition, self._batch(numbers, which), now_ms, 1, 0))
            self.number[self.rows : self.rows + count] = numbers
            self.rows += count
        return count

    def _reject(self, numbers: Numbers) -> None:
        self.outcome[numbers] = REJECTED
        self.left_ms[numbers] = self.traffic.at_ms[numbers]

    def _batch(self, numbers: Numbers, which: Numbers) -> Batch:
        """Messages of the traffic as a publish has them; bodies of one size are the same."""
        count = len(numbers)
        bodies, body_bytes = [b""] * count, 0
        if self.spec.max_bytes:
            known, sizes = self.bodies, self.traffic.bytes[numbers].tolist()
            bodies = [known.get(size) or known.setdefault(size, bytes(size)) for size in sizes]
            body_bytes = sum(sizes)
        kinds, zeros = self.arrivals.kinds, [0] * count
        if count < _TOGETHER_MIN:
            messages = [kinds[kind] for kind in which.tolist()]
            return Batch(messages, bodies, zeros, zeros, body_bytes, has_ids=False)
        return Batch(kinds, bodies, zeros, zeros, body_bytes, has_ids=False, which=which)

    def _serve(self, now_ms: int, end_ms: int, *, as_it_comes: bool = False) -> None:
        """Let consumers that come free within the slice lease and begin.

        How many leases they need is known only once they have them; asking for less than the
        estimate leaves the rest to the next round, so that nobody leases what he cannot begin.
        Who waits for work takes it as it comes, and the estimate must not leave him waiting.
        """
        partition, free = self.partition, self.hands.free
        share = 1.0 if as_it_comes else _CAUTION
        while free[0] < end_ms and partition.depth[READY]:
            idle = [instant for instant in free if instant < end_ms]
            room_ms = sum([end_ms - max(instant, now_ms) for instant in idle])
            wanted = max(len(idle), int(room_ms * share / self.service_mean_ms))
            got = grants.lease(
                partition, min(wanted, _LEASE_MAX), self.spec.lease_timeout_ms, _NONCE, now_ms
            )
            if not got.seqs:
                return
            self._begin(got, now_ms, as_it_comes=as_it_comes)

    def _begin(self, got: grants.Grants, now_ms: int, *, as_it_comes: bool) -> None:
        """Have consumers begin with messages they leased."""
        rows = np.array(got.seqs, dtype=np.int64)
        before = got.column("generation")
        anew = np.array(before, dtype=np.int64) if any(before) else None
        numbers = self.number[rows - self.first]
        ready_ms = self.arrivals.ready_from[numbers]
        if as_it_comes:
            order = np.argsort(ready_ms, kind="stable")
            rows, numbers, ready_ms = rows[order], numbers[order], ready_ms[order]
            anew = anew if anew is None else anew[order]
        if anew is not None:
            ready_ms[anew > 0] = now_ms
        service_ms = self.traffic.service_ms[numbers]
        begins_ms = self.hands.take(ready_ms, service_ms)
        generations = np.ones(len(rows), dtype=np.int64) if anew is None else anew + 1
        self.hands.add(Work(begins_ms + service_ms, rows, generations, numbers))
        if anew is None:
            self.started_ms[numbers] = begins_ms
        else:
            self.started_ms[numbers[anew == 0]] = begins_ms[anew == 0]

    def _note(self) -> None:
        """Read from the facts which messages left, and drop what a journal would keep."""
        partition = self.partition
        for each in partition.facts:
            if each[0] == fact.REMOVE:
                gone = np.frombuffer(each[4][0], dtype=fact.REMOVAL_DTYPE)
                numbers = self.number[gone["seq"].astype(np.int64) - self.first]
                self.outcome[numbers] = gone["reason"]
                self.is_dead_lettered[numbers] = gone["moved_pid"] == _DEAD_PID
                self.left_ms[numbers] = gone["at_ms"]
        partition.facts.clear()
        partition.left.clear()
        partition.let_go.clear()


def _tokens(work: Work) -> list[Token]:
    pairs = zip(work.rows.tolist(), work.generations.tolist(), strict=True)
    return [(_PID, row, generation, _EPOCH, _NONCE) for row, generation in pairs]


def _packed_tokens(work: Work) -> bytes:
    """Tokens as they are acked, by row: those of a page are next to each other."""
    order = np.argsort(work.rows)
    packed = np.empty(len(order), dtype=TOKEN_DTYPE)
    packed["pid"], packed["epoch"], packed["nonce"] = _PID, _EPOCH, _NONCE
    packed["seq"] = work.rows[order]
    packed["generation"] = work.generations[order]
    return packed.tobytes()


#: Outcomes other than a lease that ended well, by the name they are told under.
LEFT: Final = {
    "stale": (int(Reason.STALE),),
    "expired": (int(Reason.EXPIRED),),
    "retention": (int(Reason.RETENTION),),
    "failed": (int(Reason.MAX_ATTEMPTS),),
    "overflow": (int(Reason.OVERFLOW), REJECTED),
}
