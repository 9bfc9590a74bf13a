"""Looking at stored messages again when their decay score has crossed a threshold.

The same question as at intake, `place`, with the score, age and access rate of the moment: a fresh
message may get one more copy, one that is kept moves to the middle tier, and a faded one goes to
the archive with one copy, or leaves. What follows is done by the mover when nothing urgent waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ebbmq.core.copies import names_of
from ebbmq.core.reviewed import Reviewed
from ebbmq.core.reviews import Reviews, ages_of
from ebbmq.core.row import LEASED, LOW48
from ebbmq.core.values import as_run
from ebbmq.model import Reason
from ebbmq.node.advising import pinning
from ebbmq.node.keeping.likeness import Looking
from ebbmq.node.keeping.unmet import Again, Unmet
from ebbmq.policy.decay import Phase, is_scored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.core.copies import Name
    from ebbmq.core.partition import Row
    from ebbmq.node.catalog import Queue, Shard
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.likeness import Alike
    from ebbmq.policy.placement import Terms, Wanted
    from ebbmq.policy.rules.choose import View

_AT_ONCE: Final = 512
#: A message that is leased, or that no device gives, is looked at again after so long.
_AGAIN_MS: Final = 1_000


def is_reviewed(queue: Queue) -> bool:
    """Whether copies of a queue's messages may change as they age or are read."""
    return is_scored(queue.scored) or (queue.spec.max_replicas or 1) > 1


class Reviewer:
    """Looks at what is due; run by the upkeep thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reviews: dict[int, tuple[Terms, Reviews]] = {}
        self._unmet = Unmet()
        self._ran_at_s = time.monotonic()
        #: Cursors of the last checkpoint, by partition and age.
        self.resumed: dict[int, dict[int, int]] = {}
        #: Messages with an instant of their own in the last checkpoint, by partition.
        self.singles: dict[int, list[tuple[int, int]]] = {}

    def run(self) -> None:
        """Look at everything that is due, the lock free between slices."""
        engine = self._engine
        with engine.in_turn:
            self._go_back()
            pids = list(engine.catalog.shards)
        for pid in pids:
            while engine.closed is None:
                with engine.in_turn:
                    shard = engine.catalog.shards.get(pid)
                    seqs = self._due(shard) if shard is not None else []
                if shard is None or not seqs:
                    break
                fetched = engine.keeping.fetch_headers(shard, seqs)
                with engine.in_turn:
                    self._review(shard, seqs, fetched)
                engine.in_turn.rest()
        self._ran_at_s = time.monotonic()

    def run_meanwhile(self) -> None:
        """`run` unless that was a moment ago, for the same thread while it is at something long."""
        if time.monotonic() - self._ran_at_s > self._engine.config.upkeep_every_ms / 1_000:
            self.run()

    def was_read(self, shard: Shard, seqs: Iterable[int], until_ms: int) -> None:
        """Have messages looked at after a lease, unless they are gone by then (lock is held)."""
        reviews = self.of(shard)
        for seq in seqs:
            reviews.look_at(seq, until_ms)

    def cursors(self) -> dict[int, dict[int, int]]:
        """How far messages were looked at, for a checkpoint (the lock is held)."""
        return {
            pid: {age: self._settled(pid, age, seq) for age, seq in reviews.cursors.items()}
            for pid, (_, reviews) in self._reviews.items()
            if reviews.cursors
        }

    def reviewed(self, shard: Shard) -> Reviewed | None:
        """What a checkpoint keeps of messages of a partition, if anything (the lock is held)."""
        pid, rates = shard.partition.pid, shard.partition.accesses.rates
        known = self._reviews.get(pid)
        singles = self.singles.get(pid, []) if known is None else known[1].singles()
        return Reviewed(singles, dict(rates)) if singles or rates else None

    def resume(self, shard: Shard, kept: Reviewed) -> None:
        """Go on with what a checkpoint kept of messages of a partition; nobody else is there."""
        self.singles[shard.partition.pid] = kept.singles
        shard.partition.accesses.rates.update(kept.rates)

    def resume_with(self, shard: Shard, touched: Sequence[int], now_ms: int) -> None:
        """Look at messages about which more was told since the checkpoint; nobody else is there.

        As late as would be had they just been looked at: a message may get a copy each time.
        """
        partition, spec = shard.partition, shard.queue.spec
        for seq in [seq for seq in partition.accesses.rates if partition.index.read(seq) is None]:
            partition.accesses.forget(seq)
        if not touched:
            return
        singles = self.singles.setdefault(partition.pid, [])
        for seq in touched:
            row = partition.index.read(seq)
            if row is not None:
                until_ms = row[7] & LOW48 if row[0] == LEASED else 0
                singles.append((max(now_ms, until_ms) + spec.evaluate_every_ms, seq))

    def _settled(self, pid: int, age: int, seq: int) -> int:
        """How far messages were looked at, and are where they should be."""
        first = self._unmet.first(pid, age)
        return seq if first is None else min(seq, first)

    def not_taken(self, device: str, names: Iterable[Name]) -> None:
        """A device did not take copies: where they were to be moved there, look again later."""
        keeper = self._engine.keeping
        state = keeper.view().states.get(device)
        if state is None:
            return
        tier = state.tier
        for name in names:
            known = keeper.row_of(name)
            if known is not None:
                shard, seq, row = known
                self._look_back(shard, seq, row, tier)

    def _look_back(self, shard: Shard, seq: int, row: Row, tier: str) -> None:
        now_ms = self._engine.now_ms()
        age_ms = self.of(shard).passed_age(row[5] & LOW48, now_ms)
        if age_ms is not None:
            self._unmet.note(Again(shard.partition.pid, age_ms, seq), tier, now_ms)

    def _go_back(self) -> None:
        """Begin again where messages are not where they should be, and now may be."""
        for again in self._unmet.due(self._engine.now_ms(), self._engine.keeping.view().states):
            shard = self._engine.catalog.shards.get(again.pid)
            if shard is not None:
                self.of(shard).go_back(again.age_ms, again.seq)

    def of(self, shard: Shard) -> Reviews:
        """The reviews of a partition, as its queue wants them now (the lock is held)."""
        pid, terms = shard.partition.pid, self._engine.keeping.placing.terms(shard.queue.spec)
        known = self._reviews.get(pid)
        if known is None or known[0] is not terms:
            reviews = Reviews(shard.partition.index) if known is None else known[1]
            if known is None:
                reviews.cursors = self.resumed.pop(pid, {})
                reviews.resume(self.singles.pop(pid, []))
            reviews.adopt(ages_of(terms))
            known = self._reviews[pid] = terms, reviews
        return known[1]

    def _due(self, shard: Shard) -> Sequence[int]:
        """Some messages that are to be looked at now (the lock is held)."""
        if shard.faulty is not None:
            return []
        reviews = self.of(shard)
        if reviews.is_idle and not shard.partition.accesses.rates:
            return []
        return as_run(reviews.due(self._engine.now_ms(), _AT_ONCE))

    def _review(self, shard: Shard, seqs: Sequence[int], fetched: dict[int, bytes]) -> None:
        """Look at messages (the lock is held)."""
        engine, now_ms = self._engine, self._engine.now_ms()
        reviews, view = self.of(shard), engine.keeping.view()
        looked = Looking(engine, shard, view, fetched).at(seqs, now_ms)
        for seq in looked.later:
            reviews.look_at(seq, now_ms + _AGAIN_MS)
        for each in looked.alike:
            self._look(each, now_ms, view)
        engine.settle(shard)

    def _look(self, alike: Alike, now_ms: int, view: View) -> None:
        keeper, shard = self._engine.keeping, alike.shard
        stored = alike.stored._replace(review_at_ms=now_ms)
        wanted = keeper.placing.again(shard, stored, now_ms, view)
        if stored.pin is not None and not wanted.pinned:
            pinning.unpin(self._engine, shard, alike.seqs, "a crossing or a lease is newer")
        if wanted.action == "keep":
            terms, is_read = keeper.placing.terms(shard.queue.spec), stored.access.rate > 0.0
            every_ms = terms.evaluate_every_ms if terms.promotes and is_read and wanted.add else 0
            last_ms = self._last_look_ms(alike, now_ms)
            if last_ms < now_ms < last_ms + every_ms:
                self._rest(alike, last_ms + every_ms)
                return
            self._next_look(alike, wanted, now_ms)
            reason = f"{wanted.phase.name.lower()}, score {wanted.score:.1f}"
            if keeper.rearrange(alike, wanted, reason) and every_ms:
                self._rest(alike, now_ms + every_ms)
            if not self._is_met(wanted, view, promotes=terms.promotes):
                assert wanted.tier is not None
                self._look_back(shard, min(alike.seqs), stored.row, wanted.tier)
            self.look_again_if_blocked(alike, wanted, now_ms)
            return
        names = names_of(shard.partition.pid, alike.seqs)
        keeper.decisions.note(now_ms, names, "faded", "", f"score {wanted.score:.1f}")
        for seq in alike.seqs:
            row = shard.partition.index.read(seq)
            if row is not None:
                shard.partition.end_row(seq, row, Reason.FADED, now_ms)

    def _last_look_ms(self, alike: Alike, now_ms: int) -> int:
        """When a cursor last came by messages; 0: none has."""
        enqueued_at_ms = alike.stored.row[5] & LOW48
        age_ms = self.of(alike.shard).passed_age(enqueued_at_ms, now_ms)
        return 0 if age_ms is None else enqueued_at_ms + age_ms

    def _rest(self, alike: Alike, until_ms: int) -> None:
        """Leave messages where they are for a while: they moved, or may have, a moment ago."""
        for seq in alike.seqs:
            self.of(alike.shard).rest(seq, until_ms)

    def look_again_if_blocked(self, alike: Alike, wanted: Wanted, now_ms: int) -> None:
        """Have messages looked at soon whose new device still deletes an old copy of theirs."""
        if alike.stored.holding.dropping.intersection(wanted.add):
            reviews = self.of(alike.shard)
            for seq in alike.seqs:
                reviews.look_at(seq, now_ms + _AGAIN_MS)

    def _is_met(self, wanted: Wanted, view: View, *, promotes: bool) -> bool:
        """Whether messages can be on the tier where they should be, if there is one."""
        if wanted.tier is None or not promotes:
            return True
        states = view.states
        return any(states[name].tier == wanted.tier for name in wanted.copies) or not any(
            state.tier == wanted.tier for state in states.values()
        )

    def _next_look(self, alike: Alike, wanted: Wanted, now_ms: int) -> None:
        """Have messages looked at where no cursor will come by in time."""
        at_ms = wanted.review_at_ms
        if at_ms is None or at_ms <= now_ms:
            return
        terms = self._engine.keeping.placing.terms(alike.shard.queue.spec)
        grows = wanted.phase is Phase.FRESH and wanted.target < (terms.max_replicas or 1)
        if grows or alike.stored.access.rate > 0.0:
            reviews = self.of(alike.shard)
            for seq in alike.seqs:
                reviews.look_at(seq, at_ms)
