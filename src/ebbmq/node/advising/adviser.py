"""Takes advice: looks for new runs in the lake, or is told of one; one run after the other.

Theory of operation. A run becomes visible by its manifest. One that is not known is new, whatever
instant it bears: that is of another machine's clock. It is read, a batch of rows at a time; each
row is checked and applied or refused (`applying`). Rows of a plan are dated by this node's own
time: if all of them are more than an hour old, they are counted as such and not read. What became
of a run is a fact, appended when all of it was looked at; until then it is new, and to look again
costs nothing but time. A plan there is not room for is read in turns, the most valuable first, so
that they are so of all of it, and not of each batch alone. A lake that fails is tried again; a file
that is none is named, and its run is not tried again unless somebody asks for it.

The pipeline keeps its last hundred runs. Manifests are read once, so that looking costs a list of
names; a node that sees a lake for the first time goes through all of them once.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ebbmq import limits
from ebbmq.errors import EbbError, InvalidSpec, OutdatedAdvice, UnknownRun
from ebbmq.feed import advice, layout
from ebbmq.feed.advice import Applied
from ebbmq.feed.manifests import UnknownFeed
from ebbmq.feed.plans import PLANS
from ebbmq.feed.rates import RATES
from ebbmq.node import declaring
from ebbmq.node.advising import pinning, ranking, rates
from ebbmq.node.advising.applying import Applying
from ebbmq.node.advising.room import Room
from ebbmq.node.advising.rows import COLUMNS, rows_of
from ebbmq.node.advising.runs import Runs, fact_of
from ebbmq.node.catalog import unknown
from ebbmq.node.log import log
from ebbmq.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ebbmq.errors import ClientError
    from ebbmq.feed.advice import AdviceTable, FactorOutcome
    from ebbmq.node.advising.reading import Found, Sight
    from ebbmq.node.engine import Engine
    from ebbmq.node.feeding.lake import Lake

    Progress = Callable[[Applied], None]

_DONE: Final = ("applied", "in_force")
_CLOSE_S: Final = 10.0


class Adviser:
    """What a node makes of plans and rates."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._node = engine.config.node
        self._every_ms = engine.config.feed.plans_every_ms
        #: Held while a run is applied: rows of two runs must not be mixed.
        self._turn = threading.Lock()
        self.runs = Runs()
        self._room = Room(engine)
        self._rates = rates.Rates(engine)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_ms = 0
        self._now: Applied | None = None
        self._opened: Lake | None = None
        #: What is visible in the lake, and which of it was gone through, whatever is on record.
        self._sights: list[Sight] = []
        self._passed: set[tuple[AdviceTable, str]] = set()
        self._unreadable: dict[str, str] = {}
        #: Why the lake cannot be read; None while it can.
        self.problem: str | None = None
        #: Rows by table and outcome, since the start.
        self.outcomes: Counter[tuple[str, str]] = Counter()

    # Life

    @property
    def _looks(self) -> bool:
        return self._engine.config.feed.lake is not None and self._every_ms > 0

    def start(self, *, threaded: bool) -> None:
        """Begin to look for runs; without a thread `run_due` does."""
        # Not at once: who opens a store for a moment has other things to do.
        self._next_ms = self._engine.clock.elapsed_ms() + self._every_ms
        if self._looks and threaded:
            self._thread = threading.Thread(target=self._run, name="ebbmq-advice", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more; what is under way ends after the rows at hand."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def run_due(self) -> None:
        """Look if it is time to; for a clock that is moved by hand."""
        if self._looks and self._thread is None:
            now_ms = self._engine.clock.elapsed_ms()
            if now_ms >= self._next_ms:
                self._next_ms = now_ms + self._every_ms
                self._look_quietly()

    def let_run_out(self) -> None:
        """Let go of pins whose time has passed; called now and then (the lock is free)."""
        pinning.let_run_out(self._engine)

    def _run(self) -> None:
        while not self._stop.wait(self._every_ms / 1_000):
            self._look_quietly()

    def _look_quietly(self) -> None:
        try:
            self.look()
            if self.problem is not None:
                log.info("advice_well_again", lake=self._engine.config.feed.lake)
            self.problem = None
        except Exception as error:  # advice that cannot be had harms nothing else
            told = error.detail if isinstance(error, EbbError) else str(error)
            if self._engine.closed is None and self.problem is None:
                log.warning("advice_failed", lake=self._engine.config.feed.lake, detail=told)
            if not isinstance(error, OSError | EbbError):
                log.error("advice_bug", error=repr(error))
            self.problem = told

    # What others call

    def look(self, progress: Progress | None = None) -> list[Applied]:
        """Take what is new in the lake.

        Raises:
            InvalidSpec: no lake is configured.
        """
        lake = self._lake()
        out: list[Applied] = []
        with self._turn:
            found = self._found([sight.find() for sight in self._seeing(lake)])
            self._passed &= {(table, each.run) for each, table in found}
            for each, table in found:
                if self._is_new(each, table) and not self._stop.is_set():
                    out.append(self._apply(lake, each, table, progress))
                    self._passed.add((table, each.run))
        return out

    def _is_new(self, found: Found, table: AdviceTable) -> bool:
        """Whether a run was not gone through; somebody may have handed over a part of it."""
        known = self.runs.get(table, found.run)
        if known is None:
            return (table, found.run) not in self._passed
        return known.state == "applied" and not known.is_whole(found.rows)

    def apply_run(self, run: str, progress: Progress | None = None) -> list[Applied]:
        """Take the plan and the rates of a run in the lake, also if that was done before.

        Raises:
            InvalidSpec: no lake is configured.
            UnknownRun: it has no such run.
        """
        lake = self._lake()
        with self._turn:
            every = self._found(self._find_all(lake))
            found = [each for each in every if each[0].run == run]
            if not found:
                problems = [*self._unreadable.values()]
                raise UnknownRun(
                    f"there is no run {run!r:.80} in the lake {lake.where}",
                    problems[0] if problems else "see plans/_manifests there for what there is",
                )
            return [self._apply(lake, each, table, progress) for each, table in found]

    def apply_rows(
        self, run: str, columns: Mapping[str, Sequence[Any]], table: AdviceTable = "plans"
    ) -> Applied:
        """Take rows of a plan that somebody else read; those about other nodes are left out.

        No rows say that there are no more: without that, a plan is one of which a part is missing.
        """
        with self._turn:
            began = Applied(run=run, table=table, began_at_ms=self._engine.clock.wall_ms())
            if not any(map(len, columns.values())):
                known = self.runs.get(table, run) or began
                began = replace(began, rows_in_all=known.rows - known.in_force)
                return self._end(began, Counter())
            return self._end(began, self._counted(run, table, _own(columns, self._node)))

    def apply_factor(
        self, run: str, queue: str, factor: float, decided_at_ms: int, until_ms: int
    ) -> FactorOutcome:
        """Take one factor of a run that somebody else read; what became of it is on the record.

        Raises:
            InvalidSpec: a value cannot be, or `until_ms` is past.
            UnknownQueue: there is no such queue.
            OutdatedAdvice: a later decision counts, or this one is not of the present.
        """
        factor, run = declaring.checked_factor(factor, until_ms, run)
        declaring.check_instant("decided_at_ms", decided_at_ms)
        if not run:
            raise InvalidSpec(
                "a factor that was decided at an instant is of no run",
                "say which run decided it, or leave decided_at_ms out",
            )
        row = {"queue": plain(queue), "factor": factor, "decided_at_ms": decided_at_ms}
        columns = {name: [value] for name, value in (*row.items(), ("until_ms", until_ms))}
        told = self.apply_rows(run, columns, "rates")
        for why in told.refused:
            raise self._refusal(why, queue, factor, until_ms)
        return "in_force" if told.in_force else "applied"

    def _refusal(self, why: str, queue: str, factor: float, until_ms: int) -> ClientError:
        if why == "unknown_queue":
            with self._engine.lock:
                return unknown("queue", queue, self._engine.catalog.queues)
        if why == "run_out":
            return declaring.past_factor(until_ms, self._engine.now_ms())
        if why in advice.OUTDATED:
            return OutdatedAdvice(
                f"the factor {factor!r} of queue {queue!r:.80} is not used: {advice.REFUSALS[why]}",
                "nothing is to be done: the next run of the pipeline decides anew",
                code=why,
            )
        return InvalidSpec(f"factor is {factor!r:.80}", "use a number above 0, up to 1,000,000")

    def told(self) -> advice.Plans:
        """What was made of advice so far."""
        engine = self._engine
        with engine.lock:
            engine.check_open()
            pinned = engine.pins.runs()
            runs = [
                replace(each, pinned=pinned.get(each.run, 0) if each.table == PLANS.name else 0)
                for each in self.runs
            ]
            now, total = self._now, len(engine.pins)
        return advice.Plans(
            node=self._node,
            lake=engine.config.feed.lake,
            pinned=total,
            runs=[*runs, now] if now is not None else runs,
            problems=self.troubles(),
        )

    def troubles(self) -> list[str]:
        """What is wrong with advice, for people."""
        known = [f"advice cannot be read: {each}" for each in self._unreadable.values()]
        if self.problem is not None:
            known.append(f"the lake cannot be read for advice: {self.problem}")
        return known

    # One run

    def _lake(self) -> Lake:
        feed = self._engine.config.feed
        if feed.lake is None:
            raise InvalidSpec(
                "this node has no lake to read plans from",
                "set feed.lake in its configuration, or hand the rows over",
            )
        from ebbmq.node.feeding.lake import open_lake  # noqa: PLC0415  # needs the extra `feed`

        if self._opened is None:
            self._opened = open_lake(feed.lake, feed.options or {}, self._engine.directory.path)
        return self._opened

    def _seeing(self, lake: Lake) -> list[Sight]:
        from ebbmq.node.advising.reading import Sight  # noqa: PLC0415  # needs the extra `feed`

        if not self._sights:
            self._sights = [Sight(lake, table) for table in (RATES, PLANS)]
        return self._sights

    def _find_all(self, lake: Lake) -> list[tuple[list[Found], list[UnknownFeed]]]:
        from ebbmq.node.advising import reading  # noqa: PLC0415  # needs the extra `feed`

        return [reading.find(lake, table) for table in (RATES, PLANS)]

    def _found(
        self, seen: Sequence[tuple[list[Found], list[UnknownFeed]]]
    ) -> list[tuple[Found, AdviceTable]]:
        """Runs of both tables; what cannot be read is noted."""
        (factors, no_rates), (plans, no_plans) = seen
        self._unreadable = {error.detail: error.detail for error in (*no_plans, *no_rates)}
        # Rates count for what is published from now on: they come first.
        found: list[tuple[Found, AdviceTable]] = [(each, "rates") for each in factors]
        return [*found, *((each, "plans") for each in plans)]

    def _apply(
        self, lake: Lake, found: Found, table: AdviceTable, progress: Progress | None
    ) -> Applied:
        """All rows of a run that are about this node."""
        began = Applied(
            run=found.run,
            table=table,
            state="applying",
            began_at_ms=self._engine.clock.wall_ms(),
            rows_in_all=found.rows,
        )
        counts: Counter[str] = Counter()
        try:
            if (too_old := self._too_old(lake, found, table)) is not None:
                return self._end(began, Counter(too_old=too_old))
            for batch in self._batches(lake, found, table):
                counts += self._counted(found.run, table, batch)
                self._now = _with(began, counts)
                if progress is not None:
                    progress(self._now)
            return self._end(began, counts)
        except UnknownFeed as error:
            log.warning("advice_unreadable", run=found.run, table=table, detail=error.detail)
            return self._end(replace(began, detail=error.detail), counts, state="failed")
        finally:
            self._now = None

    def _batches(
        self, lake: Lake, found: Found, table: AdviceTable
    ) -> Iterator[dict[str, list[Any]]]:
        """Rows of a run that are about this node; where not all of a plan fits, by value."""
        from ebbmq.node.advising import reading  # noqa: PLC0415  # needs the extra `feed`

        if table == layout.RATES:
            yield from reading.batches(lake, RATES, found, rates.COLUMNS, None)
            return
        self._room.look()
        try:
            worth = reading.worth(lake, found, self._node)
        except UnknownFeed:  # it is told once rows before it are taken
            worth = {}
        cut = ranking.cut(self._engine, self._room, worth)
        if cut is None:
            yield from reading.batches(lake, PLANS, found, COLUMNS, self._node)
            return
        for band in reading.bands(worth.values(), cut):
            read = reading.batches(lake, PLANS, found, COLUMNS, self._node, band)
            yield from reading.joined(read)

    def _too_old(self, lake: Lake, found: Found, table: AdviceTable) -> int | None:
        """How many rows a plan has that nothing is known of, if all are too old; else None."""
        from ebbmq.node.advising import reading  # noqa: PLC0415  # needs the extra `feed`

        if table != layout.PLANS or self.runs.get(table, found.run) is not None:
            return None
        before_ms = self._engine.now_ms() - limits.ADVICE_AGE_MS_MAX
        return reading.outdated(lake, PLANS, found, self._node, before_ms)

    def _counted(
        self, run: str, table: AdviceTable, columns: Mapping[str, Sequence[Any]]
    ) -> Counter[str]:
        if table == layout.RATES:
            return self._rates.apply(run, columns)
        self._room.look()
        applying = Applying(self._engine, run, self._room)
        applying.apply(rows_of(columns))
        return applying.counts

    def _end(self, began: Applied, counts: Counter[str], *, state: Any = "applied") -> Applied:
        """Put what became of a run on the record."""
        engine = self._engine
        told = replace(_with(began, counts), state=state, ended_at_ms=engine.clock.wall_ms())
        for outcome, count in counts.items():
            self.outcomes[began.table, outcome] += count
        with engine.lock:
            engine.check_open()
            known = self.runs.with_before(told)
            position = engine.append([fact_of([known])])
            self.runs.put(known)
        engine.journal.wait("synced", position)
        if told.rows:
            _tell(told)
        return told


def _tell(told: Applied) -> None:
    log.info(
        "advice_taken",
        run=told.run,
        table=told.table,
        rows=told.rows,
        applied=told.applied,
        in_force=told.in_force,
        refused=told.refused,
    )


def _with(began: Applied, counts: Mapping[str, int]) -> Applied:
    return replace(
        began,
        rows=sum(counts.values()),
        applied=counts.get("applied", 0),
        in_force=counts.get("in_force", 0),
        refused={why: count for why, count in sorted(counts.items()) if count and why not in _DONE},
    )


def _own(columns: Mapping[str, Sequence[Any]], node: str) -> Mapping[str, Sequence[Any]]:
    """Rows about a node; one that names none is about whoever gets it."""
    whose = columns.get("node", ())
    mine = [at for at, name in enumerate(whose) if name is None or name == node]
    if len(mine) == len(whose):
        return columns
    return {name: [values[at] for at in mine] for name, values in columns.items()}
