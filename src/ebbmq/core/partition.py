"""One partition of a queue as a deterministic state machine: commands and the time in, facts out.

Theory of operation. A partition owns the index rows of its messages, their order, and two timing
wheels: `due_wheel` (lease deadlines, scheduled instants) and `end_wheel` (TTL, stale, retention).
Verbs change the rows at once and leave what must be written in `facts`, to be appended in that
order before anybody is told; `moves` are messages that must go to the dead queue. It knows nothing
of disks, threads or the wall clock, so the same class runs in the broker, in recovery, under a
simulator, and wherever a policy is tried on recorded traffic.

A published message is held back until the level of its publish call holds (`hold`, `open_held`);
held batches open in the order they came, so a ring is always sorted by place.

Invariants:
1. A row is in the order, or with privileged ones aside, if and only if it is READY and not held, or
   it is a ghost: a number whose row is gone, skipped when it surfaces.
2. A message is LEASED under one (generation, epoch, nonce) at a time; each grant raises the
   generation by one.
3. `depth` counts rows by state, in doubt or not; held rows are counted as replicating.
4. Every LEASED, SCHEDULED or DYING row has an entry in `due_wheel` not later than its `due_ms`;
   every row that can end by age has one in `end_wheel` until that instant is processed.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import row as rows
from ebbmq.core.accesses import Accesses
from ebbmq.core.arrivals import Profile
from ebbmq.core.classes import NEVER, Classes, class_key
from ebbmq.core.dedup import Dedup
from ebbmq.core.happened import OUTCOMES, PEEKED, REMOVED, Happened
from ebbmq.core.histories import Histories
from ebbmq.core.index import SLOT_MASK, Index
from ebbmq.core.order import BandedOrder, ExactOrder, Order
from ebbmq.core.row import (
    AT_FLAGS,
    AT_SEGMENT,
    DISPLACED,
    DYING,
    ELSEWHERE,
    FAILED_BEFORE,
    FREE,
    HELD,
    HIGH,
    IN_DOUBT,
    LEASED,
    LOW48,
    ORIGIN,
    PRIVILEGED,
    READY,
    REPLICATING,
    ROW,
    SCHEDULED,
    SHARED,
    STATES,
    TOPIC,
)
from ebbmq.core.wheel import Wheel
from ebbmq.model import REASON_TEXT, AdaptSpec, Reason, Timing
from ebbmq.policy import importance as policy
from ebbmq.policy.adapt import AdaptiveDecay
from ebbmq.policy.decay import Score

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.core.arrivals import ProfileKey, Run
    from ebbmq.core.happened import Tell
    from ebbmq.core.index import Page
    from ebbmq.model import QueueSpec, Scored

RETRY_DELAY_MS_MAX: Final = 300_000
_PLACE: Final = Struct("<III")
#: Fewer rows are looked at one by one.
_TOGETHER_MIN: Final = 16
_HISTORY: Final = msgspec.msgpack.Decoder(tuple[Timing, ...])

Row = tuple[int, ...]


class Move(NamedTuple):
    """A message that must go to the dead queue; its row waits as DYING."""

    seq: int
    reason: Reason


class Partition:
    """Ready, leased, scheduled and dying messages of one partition. Time is an argument."""

    # Named: of so many attributes those of a plain object would be looked up by hash.
    __slots__ = (
        "accesses", "adapt", "aside", "body_bytes", "by_importance", "classes", "counts_reads",
        "dedup", "depth", "due_wheel", "dying_bytes", "end_wheel", "epoch", "external", "factor",
        "facts", "gone", "granted_at", "held", "histories", "index", "is_leased_simply",
        "is_published_simply", "leases_granted", "ledger", "left", "let_go", "moves", "names",
        "names_in_use", "next_place", "node", "order", "paused", "pid", "profiles",
        "removes_by_age", "score", "spec", "spelling", "stale_ages", "tell", "totals", "unread",
    )  # fmt: skip

    def __init__(self, pid: int, spec: QueueSpec, epoch: int, node: str = "local") -> None:
        self.pid = pid
        self.epoch = epoch
        #: How the id of a message is spelled, with its number.
        self.spelling = f"{pid:x}-%x"
        self.node = node
        self.index = Index()
        self.due_wheel = Wheel()
        self.end_wheel = Wheel()
        self.dedup = Dedup()
        self.histories = Histories()
        #: Reads, where the decay score of the queue counts them.
        self.accesses = Accesses()
        #: Grant instants of leases whose deadline does not tell it (own timeout, extended).
        self.granted_at: dict[int, int] = {}
        self.names: dict[str, list[tuple[int, int]]] = {}
        #: How many of them had a lease when they were last looked through.
        self.names_in_use = 0
        self.held: deque[tuple[int, int, list[Run]]] = deque()
        self.depth = [0] * STATES
        self.by_importance = [0] * (limits.IMPORTANCE_MAX + 1)
        self.body_bytes = 0
        #: Those of them that wait for the dead queue, or are in doubt.
        self.dying_bytes = 0
        #: Bytes of live rows and bodies by journal segment, for compaction.
        self.ledger: dict[int, int] = {}
        self.totals: dict[str, int] = dict.fromkeys(
            ("published", "acked", "leased", "retried", "released", "lease_expired"), 0
        )
        self.totals.update(dict.fromkeys(REASON_TEXT.values(), 0))
        self.next_place = 1
        self.leases_granted = 0
        self.paused = False
        self.removes_by_age = True
        self.facts: list[fact.Fact] = []
        self.moves: list[Move] = []
        #: (seq, importance) of messages that left without being leased; their bodies may be in RAM.
        self.left: list[tuple[int, int]] = []
        #: (segment, offset, length) of shared bodies one row of which is gone.
        self.let_go: list[tuple[int, int, int]] = []
        #: Messages that left and have copies that must be forgotten.
        self.gone: list[int] = []
        #: Rows of messages of topics whose leases failed, and when these were granted.
        self.unread: list[tuple[Row, int]] = []
        #: Whoever listens to what happens, told at once; None: nobody does.
        self.tell: Tell | None = None
        self.adapt: AdaptiveDecay | None = None
        self.adopt(spec)

    def adopt(self, spec: QueueSpec) -> None:
        """Take a changed specification; the caller rebuilds the order if there are rows."""
        self.spec = spec
        self.score_by(spec, counts_reads=bool(spec.score_access_bonus))
        #: Whether `arrivals.publish_one` will do: nobody is refused, and nothing has to go for it.
        self.is_published_simply = spec.page_to_disk and not (
            spec.max_messages or spec.max_bytes or spec.privileged
        )
        self.classes = Classes(spec.band_width)
        self.order = self._new_order()
        #: Privileged rows, once a lease had to leave them out.
        self.aside: Order | None = None
        before, self.adapt = self.adapt, AdaptiveDecay(spec.adapt) if spec.adapt else None
        if before is not None and self.adapt is not None:
            self.adapt.restore(before.state())
        self.external: AdaptiveDecay | None = None
        self.profiles: dict[ProfileKey, Profile] = {}
        self.stale_ages: dict[tuple[int, int, int], int] = {}
        self.factor = 1.0

    def score_by(self, scored: Scored, *, counts_reads: bool) -> None:
        """Take the parameters of the decay score, the queue's own or a topic's."""
        #: How faded messages are, as people see it.
        self.score = Score.shown(scored)
        self.counts_reads = counts_reads
        #: Whether `grants.lease_one` will do.
        self.is_leased_simply = not (self.spec.fair_share or counts_reads)

    def _new_order(self) -> Order:
        if self.spec.band_width:
            return BandedOrder(self.index, self.classes, self.spec.failure_penalty)
        return ExactOrder(self.index, self.classes)

    def put_back(self, seqs: Iterable[int], now_ms: int, *, apart: bool = False) -> None:
        """Let rows that were taken from the order stand where they stood, privileged ones aside."""
        for seq in seqs:
            row, order = self.index.read(seq), self.order
            if row is None or row[0] != READY:
                continue
            if apart and row[1] & PRIVILEGED:
                order = self.aside = self.aside or self._new_order()
                self.is_leased_simply = False
            order.enter(seq, row[8] & LOW48, now_ms)

    # Publish

    def set_factor(self, factor: float) -> None:
        """Use a decay factor for messages published from now on."""
        if factor != self.factor:
            self.factor = factor
            self.profiles.clear()

    def set_external_factor(self, factor: float, until_ms: int, run: str, now_ms: int) -> None:
        """Use a fleet-wide factor until an instant; the larger of it and the queue's own counts."""
        chosen = self.adapt or self.external or AdaptiveDecay(AdaptSpec())
        if self.adapt is None:
            self.external = chosen
        chosen.apply_external(factor, until_ms, run)
        self.set_factor(chosen.factor(now_ms))

    def refresh_factor(self, now_ms: int) -> None:
        """Let the factor follow its controller; called now and then."""
        controller = self.adapt or self.external
        if controller is not None:
            self.set_factor(controller.factor(now_ms))

    def profile(self, key: ProfileKey) -> Profile:
        """Resolve the defaults of the queue for one combination of what publishers may set."""
        found = self.profiles.get(key)
        if found is None:
            importance, ttl_ms, rate = key
            spec = self.spec
            importance = spec.default_importance if importance is None else importance
            ttl = ttl_ms or spec.default_ttl_ms or 0
            share = spec.decay_rate if rate is None else rate
            billionths = min(rows.RATE_UNIT, round(share * self.factor * rows.RATE_UNIT))
            known = self.classes.of_key(
                class_key(importance, billionths, ttl or spec.decay_unit_ms)
            )
            ends = self.end_age(importance, billionths, ttl)
            found = Profile(importance, billionths, ttl, known, known.number << HIGH, ends, key)
            if len(self.profiles) >= limits.CLASSES_MAX:
                self.profiles.clear()
            self.profiles[key] = found
        return found

    def stale_age(self, importance: int, rate: int, ttl_ms: int) -> int:
        """The age at which such a message goes stale."""
        if rate == 0:
            return NEVER
        key = (importance, rate, ttl_ms)
        age = self.stale_ages.get(key)
        if age is None:
            exact = policy.stale_age_ms(
                importance,
                rate / rows.RATE_UNIT,
                ttl_ms or self.spec.decay_unit_ms,
                self.spec.stale_threshold,
            )
            age = NEVER if exact is None else exact
            if len(self.stale_ages) >= limits.CLASSES_MAX:
                self.stale_ages.clear()
            self.stale_ages[key] = age
        return age

    def end_age(self, importance: int, rate: int, ttl_ms: int) -> int:
        """The age at which such a message ends by itself: stale, TTL or retention."""
        return min(
            self.stale_age(importance, rate, ttl_ms),
            ttl_ms or NEVER,
            self.spec.retention_ms or NEVER,
        )

    def hold(self, level: int, position: int, runs: list[Run]) -> None:
        """Keep a batch from being leased until `open_held` is told that its level holds."""
        self.held.append((level, position, runs))

    def open_held(self, reached: Sequence[int]) -> int:
        """Let in held batches, in order; `reached[level]` is the position at which it holds."""
        opened = 0
        while self.held and self.held[0][1] <= reached[self.held[0][0]]:
            opened += self.open_runs(self.held.popleft()[2])
        return opened

    def open_runs(self, runs: list[Run]) -> int:
        """Let a batch into the order; returns how many messages became ready."""
        opened = 0
        for run in runs:
            self.order.extend(run.known, run.first, run.length, run.place, run.at_ms)
            opened += run.length
        self.depth[REPLICATING] -= opened
        self.depth[READY] += opened
        return opened

    # Rows

    def end_reason(self, row: Row, now_ms: int) -> Reason | None:
        """Why a row's life is over by age at this instant; None if it is not."""
        enqueued_at_ms = row[5] & LOW48
        dead = row[6] & LOW48
        if dead and dead <= now_ms:
            return Reason.EXPIRED
        age_ms = now_ms - enqueued_at_ms
        if row[4] and age_ms >= self.stale_age(
            row[2], row[4], dead - enqueued_at_ms if dead else 0
        ):
            return Reason.STALE
        if self.spec.retention_ms and age_ms >= self.spec.retention_ms:
            return Reason.RETENTION
        return None

    def end_if_due(self, seq: int, row: Row, now_ms: int) -> bool:
        """Whether a row's end has come; if so it is dealt with here instead of delivered."""
        reason = self.end_reason(row, now_ms)
        if reason is None or not self.removes_by_age:
            return False
        self.end_row(seq, row, reason, now_ms)
        return True

    def observe(self, seq: int, row: Row, now_ms: int) -> int:
        """How long a lease lasted that ends now; fed to the adaptive controller.

        One that expired lasted to its deadline, however late that is seen: a broker that was down
        meanwhile says nothing about consumers.
        """
        deadline_ms = row[7] & LOW48
        started_ms = self.granted_at.pop(seq, deadline_ms - self.spec.lease_timeout_ms)
        duration_ms = max(0, min(now_ms, deadline_ms) - started_ms)
        if self.adapt is not None:
            self.adapt.observe(duration_ms, now_ms)
            self.set_factor(self.adapt.factor(now_ms))
        return duration_ms

    def count_look(self, seq: int, now_ms: int) -> Row | None:
        """Somebody looked at a message, and that is an access; None if it is gone."""
        row = self.index.read(seq)
        if row is None:
            return None
        self.accesses.credit([seq], now_ms)
        if self.tell is not None:
            self.tell(Happened(PEEKED, self.pid, now_ms, 1, (seq,), (row,), seq))
        return row

    def forget(self, seq: int, row: Row) -> None:
        """Drop what is kept beside the row of a message that leaves."""
        if row[1] & FAILED_BEFORE:
            self.histories.forget(seq)
        if row[1] & SHARED:
            self.let_go.append((row[9], row[10], row[11]))
        if row[1] & HELD:
            self.gone.append(seq)
        self.accesses.forget(seq)

    def mark_held(self, seqs: Sequence[int]) -> None:
        """Have rows that are there say that more is known of their copies."""
        together = self._stretches(seqs)
        for page, where in together or ():
            flags = page.view["flags"][where]
            flags[page.view["state"][where] != FREE] |= HELD
            page.dirty = True
        if together is not None:
            return
        locate = self.index.locate
        for seq in seqs:
            found = locate(seq)
            if found is not None:
                found[0].buffer[found[1] + AT_FLAGS] |= HELD
                found[0].dirty = True

    def leave_log(self, seqs: Sequence[int]) -> None:
        """The log's copies of bodies go; what is left of them there is the row."""
        together = self._stretches(seqs) or []
        if together and all(_share_nothing(page, where) for page, where in together):
            for page, where in together:
                self._leave_together(page, where)
            return
        for seq in seqs:
            found = self.index.locate(seq)
            if found is None:
                continue
            page, at = found
            flags = page.buffer[at + AT_FLAGS]
            if page.buffer[at] == FREE or flags & ELSEWHERE:
                continue
            segment, offset, length = _PLACE.unpack_from(page.buffer, at + AT_SEGMENT)
            if flags & SHARED:
                self.let_go.append((segment, offset, length))
                self.ledger[segment] = self.ledger.get(segment, 0) + 64
            else:
                self.ledger[segment] -= length
            page.buffer[at + AT_FLAGS] = flags & ~SHARED | ELSEWHERE | HELD
            page.dirty = True

    def _stretches(self, seqs: Sequence[int]) -> list[tuple[Page, slice]] | None:
        """Pages and rows of many consecutive messages; None if they are not, or a page is thin."""
        first, count = seqs[0] if seqs else 0, len(seqs)
        if count < _TOGETHER_MIN or seqs[-1] - first != count - 1:
            return None
        if type(seqs) is not range and list(seqs) != list(range(first, first + count)):
            return None
        out: list[tuple[Page, slice]] = []
        while count:
            size = min(count, SLOT_MASK + 1 - (first & SLOT_MASK))
            found = self.index.stretch(first, size)
            if found is None:
                return None
            out.append(found)
            first, count = first + size, count - size
        return out

    def _leave_together(self, page: Page, where: slice) -> None:
        """`leave_log` for rows that are all there and share nothing."""
        found = page.view[where]
        lengths, segments = found["length"], found["segment"]
        for segment in set(segments.tolist()):
            self.ledger[segment] -= int(lengths[segments == segment].sum())
        found["flags"] |= ELSEWHERE | HELD
        page.dirty = True

    def free(self, seq: int, row: Row) -> None:
        """Take a row out of the index and all counts except `depth` and `totals`."""
        found = self.index.locate(seq)
        assert found is not None
        self.forget(seq, row)
        self.granted_at.pop(seq, None)
        self.by_importance[row[2]] -= 1
        self.body_bytes -= row[11]
        if not row[1] & SHARED:
            self.ledger[row[9]] -= rows.log_bytes(row[1], row[11])
        self.index.free(*found)

    def fail(self, seq: int, row: Row, outcome: str, delay_ms: int | None, now_ms: int) -> bool:
        """One lease of a message failed; False if the message left instead of changing.

        TTL and stale act on a leased message now, when it fails.
        """
        duration_ms = self.observe(seq, row, now_ms)
        granted_at_ms = min(now_ms, row[7] & LOW48) - duration_ms
        self.accesses.reverse(seq, granted_at_ms, now_ms)
        if row[3] & TOPIC:
            self.unread.append((row, granted_at_ms))
        failures = min(limits.FAILURES_MAX, (row[5] >> HIGH) + 1)
        timing = Timing(self.node, row[13], duration_ms, outcome)
        self.histories.add(seq, timing, failures)
        enqueued = row[5] & LOW48 | failures << HIGH
        row = (LEASED, row[1] | FAILED_BEFORE, *row[2:5], enqueued, *row[6:])
        reason = self.end_reason(row, now_ms) if self.removes_by_age else None
        if 0 < self.spec.failures_max <= failures:
            reason = Reason.MAX_ATTEMPTS
        if delay_ms is None:
            delay_ms = min(RETRY_DELAY_MS_MAX, self.spec.retry_delay_ms << min(failures - 1, 30))
        rests_ms = delay_ms if reason is None else 0
        self.tell_end(OUTCOMES[outcome], seq, row, now_ms, (duration_ms, rests_ms))
        if reason is not None:
            self.write_row(seq, row)
            self.end_row(seq, row, reason, now_ms)
            return self.index.state_of(seq) != FREE
        if delay_ms:
            self.schedule(seq, row, now_ms + delay_ms)
        else:
            self.make_ready(seq, row, now_ms)
        return True

    def tell_end(self, event: int, seq: int, row: Row, now_ms: int, ms: tuple[int, int]) -> None:
        """Tell of the end of a lease: how long it lasted, how long nobody gets the message."""
        if self.tell is None:
            return
        lease_ms = (row[7] & LOW48) - now_ms + ms[0]
        self.tell(
            Happened(event, self.pid, now_ms, 1, (seq,), (row,), seq, lease_ms, delay_ms=ms[1])
        )

    def schedule(self, seq: int, row: Row, due_ms: int, *, keep_place: bool = False) -> None:
        """Let a row into the order again at an instant: at the tail, or where it was."""
        due = due_ms | row[7] >> HIGH << HIGH
        place = row[8] & LOW48 | keep_place << HIGH
        self.change_state(row[0], SCHEDULED)
        self.write_row(seq, (SCHEDULED, *row[1:7], due, place, *row[9:]))
        self.due_wheel.add(due_ms, seq)

    def make_ready(self, seq: int, row: Row, now_ms: int, *, keep_place: bool = False) -> None:
        """Let a row into the order again: at the tail, or where it was."""
        place = row[8] & LOW48
        if not keep_place and self.spec.requeue == "tail":
            place = self.next_place
            self.next_place += 1
        self.change_state(row[0], READY)
        self.write_row(
            seq,
            (READY, row[1] | DISPLACED, *row[2:7], row[7] >> HIGH << HIGH, place, *row[9:]),
        )
        self.order.enter(seq, place, now_ms)

    def change_state(self, before: int, after: int) -> None:
        """Count a row under another state."""
        self.depth[before] -= 1
        self.depth[after] += 1

    def write_row(self, seq: int, row: Row) -> None:
        """Replace a live row."""
        found = self.index.locate(seq)
        assert found is not None
        page, at = found
        ROW.pack_into(page.buffer, at, *row)
        page.dirty = True

    def note_states(self, seqs: Sequence[int]) -> None:
        """Leave a STATE fact for rows that changed."""
        for start in range(0, len(seqs), limits.RECORD_ROWS_MAX):
            part = seqs[start : start + limits.RECORD_ROWS_MAX]
            self.facts.append(fact.state(self.pid, [self.state_entry(seq) for seq in part]))

    def state_entry(self, seq: int) -> tuple[int, bytes, bytes]:
        """A row with its latency history, as a STATE fact carries it."""
        row = self.index.row_bytes(seq)
        history = b""
        if row[AT_FLAGS] & FAILED_BEFORE:
            history = msgspec.msgpack.encode(self.histories.get(seq))
        return seq, row, history

    # Ends

    def end_row(self, seq: int, row: Row, reason: Reason, now_ms: int) -> None:
        """A message's life in this queue is over: on the record and gone, or to the dead queue."""
        if self.goes_to_dead_queue(reason):
            self.change_state(row[0], DYING)
            self.dying_bytes += row[11]
            self.write_row(seq, (DYING, *row[1:3], row[3] & ORIGIN | int(reason), *row[4:]))
            self.moves.append(Move(seq, reason))
            return
        self.remove([(seq, row)], reason, now_ms)

    def goes_to_dead_queue(self, reason: Reason) -> bool:
        """Whether a message that ends for this reason is kept for a second look."""
        if self.spec.dead_queue is None:
            return False
        if reason is Reason.STALE:
            return self.spec.on_stale == "dead_letter"
        if reason is Reason.OVERFLOW:
            return self.spec.overflow == "dead_letter"
        if reason is Reason.FADED:
            return self.spec.on_faded == "dead_letter"
        return reason in (Reason.EXPIRED, Reason.MAX_ATTEMPTS)

    def remove(
        self,
        gone: Sequence[tuple[int, Row]],
        reason: Reason,
        now_ms: int,
        moved_to: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take messages out, one removal record each."""
        records: list[bytes] = []
        for number, (seq, row) in enumerate(gone):
            pid, moved_seq = moved_to[number] if moved_to else (0, 0)
            records.append(self.removal_record(seq, row, reason, now_ms, pid, moved_seq))
            self.depth[row[0]] -= 1
            if row[0] >= DYING:
                self.dying_bytes -= row[11]
            self.left.append((seq, row[2]))
            self.free(seq, row)
        self._note_all([seq for seq, _ in gone], records, reason, now_ms)

    def note_lost(self, seqs: Sequence[int], now_ms: int) -> None:
        """Put on record messages whose rows cannot be read: when they came is not known."""
        records = [
            fact.REMOVAL.pack(
                self.pid, 0, seq, now_ms, now_ms, 0, 0, 0, 0, 0, int(Reason.DAMAGED), 0
            )
            for seq in seqs
        ]
        self._note_all(seqs, records, Reason.DAMAGED, now_ms)

    def _note_all(
        self, seqs: Sequence[int], records: list[bytes], reason: Reason, now_ms: int
    ) -> None:
        self.totals[REASON_TEXT[reason]] += len(records)
        for start in range(0, len(records), limits.RECORD_ROWS_MAX):
            part = records[start : start + limits.RECORD_ROWS_MAX]
            self.note_removed(b"".join(part), len(part), seqs[start], now_ms)

    def note_removed(self, records: bytes, count: int, first: int, now_ms: int) -> None:
        """Leave a REMOVE fact, and tell of it."""
        self.facts.append(fact.remove(self.pid, records, count, first))
        if self.tell is not None:
            self.tell(Happened(REMOVED, self.pid, now_ms, count, None, records, first))

    def removal_record(
        self, seq: int, row: Row, reason: Reason, now_ms: int, moved_pid: int, moved_seq: int
    ) -> bytes:
        """What the removals log keeps of a message."""
        enqueued_at_ms = row[5] & LOW48
        return fact.REMOVAL.pack(
            self.pid,
            moved_pid,
            seq,
            now_ms,
            enqueued_at_ms,
            row[13],
            row[11],
            self.current_importance(row, now_ms),
            row[5] >> HIGH,
            row[2],
            int(reason),
            moved_seq,
        )

    def current_importance(self, row: Row, now_ms: int) -> float:
        """What a message is worth now, by its exact rate and span."""
        if not row[4]:
            return float(row[2])
        dead = row[6] & LOW48
        enqueued_at_ms = row[5] & LOW48
        span_ms = dead - enqueued_at_ms if dead else self.spec.decay_unit_ms
        return policy.current_importance(
            row[2], row[4] / rows.RATE_UNIT, now_ms - enqueued_at_ms, span_ms
        )

    def band(self, row: Row, now_ms: int) -> int:
        """The band a message is ordered in: by its class, lowered by its failures."""
        width = self.spec.band_width
        if not row[4]:
            band = policy.band_of(row[2], width or 1.0)
        elif width:
            band = self.classes.all[row[6] >> HIGH].band_at(now_ms - (row[5] & LOW48))
        else:
            band = policy.band_of(self.current_importance(row, now_ms), 1.0)
        return max(min(1, band), band - (row[5] >> HIGH) * self.spec.failure_penalty)

    def history(self, seq: int) -> tuple[Timing, ...]:
        """The latency history of a message that failed before."""
        return self.histories.get(seq)

    def restore_history(self, seq: int, packed: bytes) -> None:
        """Put back a latency history."""
        if packed:
            self.histories.replace(seq, _HISTORY.decode(packed))

    def bounds(self) -> tuple[int | None, int | None]:
        """The partition's part of the messages and the bytes its queue may hold."""
        spec = self.spec
        return (
            spec.max_messages and max(1, spec.max_messages // spec.partitions),
            spec.max_bytes and max(1, spec.max_bytes // spec.partitions),
        )

    def _held_bytes(self) -> int:
        spans = [(run.first, run.length) for _, _, runs in self.held for run in runs]
        return sum(
            int(self.index.column(np.arange(at, at + rows, dtype=np.uint64), "length").sum())
            for at, rows in spans
        )

    def trim(self, now_ms: int) -> None:
        """Bring the queue within its bounds by letting the least important messages go.

        What is held does not count before it is let in: then it may be the least itself. What waits
        for the dead queue has bounds of its own, `publishing.check_room`.
        """
        messages_max, bytes_max = self.bounds()
        depth, held_bytes = self.depth, 0
        in_doubt = self.in_doubt()
        if bytes_max and self.body_bytes > bytes_max:
            held_bytes = self._held_bytes()
        while (
            messages_max
            and self.live() - depth[DYING] - in_doubt - depth[REPLICATING] > messages_max
        ) or (bytes_max and self.body_bytes - self.dying_bytes - held_bytes > bytes_max):
            if self.aside is not None:
                self.put_back([self.aside.pop_least(now_ms)], now_ms)
            seq = self.order.pop_least(now_ms)
            if seq < 0:
                return
            row = self.index.read(seq)
            if row is not None and row[0] == READY:
                self.end_row(seq, row, Reason.OVERFLOW, now_ms)

    def live(self) -> int:
        """Messages in the partition, whatever their state."""
        return sum(self.depth)

    def in_doubt(self) -> int:
        """Those of them whose bodies are not where they should be."""
        return sum(self.depth[IN_DOUBT:])


def _share_nothing(page: Page, where: slice) -> bool:
    """Whether rows are all there, and their bodies in the log, for them alone."""
    found = page.view[where]
    return bool(found["state"].all() and not (found["flags"] & (SHARED | ELSEWHERE)).any())
