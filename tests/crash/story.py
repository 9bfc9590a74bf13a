"""Several lives of one data directory, what their clients recorded, and the verdict on it."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ebbmq import Broker
from tests.crash.worker import CONFIG, LEASE_TIMEOUT_MS, MAX_ATTEMPTS, QUEUES, Job, OldLease
from tests.history import (
    Drained,
    Event,
    LeaseCall,
    Options,
    Publish,
    Removed,
    Restart,
    Settle,
    Violation,
    check,
)
from tests.recorder import MemoryKeeper, Recorder, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.crash.server import Server
    from tests.history import Sent
    from tests.history.events import RestartKind

DRAIN_TIMEOUT_S: Final = 30.0
OPTIONS: Final = Options(
    max_attempts={"failing": MAX_ATTEMPTS},
    dead_queues={"failing": "failing.dead"},
    ordered=frozenset({"plain", "bands", "split"}),
)


class Story:
    """A data directory that is used, killed and used again."""

    def __init__(  # noqa: PLR0913  # what a story is told of itself
        self,
        root: Path,
        server: Server,
        seed: int,
        directory: Path | None = None,
        config: Mapping[str, Any] = CONFIG,
        options: Options = OPTIONS,
        *,
        hands_back: bool = True,
    ) -> None:
        self.directory = directory or root / "data"
        self.config = dict(config)
        self.options = options
        self.hands_back = hands_back
        self.record = root / "record"
        self.record.mkdir()
        self.events: list[Event] = []
        self._server = server
        self._seed = seed
        self._lives = 0

    def job(self) -> Job:
        """The next life."""
        self._lives += 1
        return Job(
            directory=str(self.directory),
            record=str(self.record),
            life=self._lives,
            seed=self._seed,
            config=self.config,
            repeat=tuple(self._unconfirmed()),
            old=tuple(self._leased()),
            hands_back=self.hands_back,
        )

    def live(self, *, kill_after_s: float | None = None, **changes: object) -> int:
        """One life of the worker; returns its exit status."""
        job = msgspec.structs.replace(self.job(), **changes)
        status = self._server.run(job, kill_after_s)
        self.ended("kill" if status == -signal.SIGKILL else "clean")
        return status

    def live_until_cut(self, cut: Callable[[], None], after_s: float, **changes: object) -> None:
        """One life of the worker, which ends when the power of its disk is cut.

        The worker lives on for an instant, as nobody does whose machine lost its power: what it saw
        after the cut is not believed.
        """
        cut_at: list[int] = []

        def cut_now() -> None:
            cut_at.append(time.monotonic_ns())
            cut()

        job = msgspec.structs.replace(self.job(), calls=100_000, **changes)
        self._server.run(job, after_s, before_kill=cut_now)
        self.ended("power", *cut_at)

    def ended(self, kind: RestartKind, until: int | None = None) -> None:
        """Take over what the last life recorded; its broker ended in this way before now."""
        for path in sorted(self.record.glob(f"calls-{self._lives}-*.jsonl")):
            seen = read_file(path)
            self.events += seen if until is None else seen_until(seen, until)
        self.events.append(Restart(time.monotonic_ns(), kind))

    def error(self) -> str:
        """What made the last life end by itself, if something did."""
        path = self.record / f"error-{self._lives}.txt"
        return path.read_text() if path.exists() else ""

    def _unconfirmed(self) -> Iterable[tuple[str, Sent]]:
        for event in self.events[-40:]:
            if isinstance(event, Publish) and event.outcome == "unknown":
                yield from ((event.queue, s) for s in event.messages if s.producer_id is not None)

    def _leased(self) -> Iterable[OldLease]:
        for event in self.events[-200:]:
            if isinstance(event, LeaseCall):
                yield from (OldLease(event.queue, grant.token) for grant in event.grants)

    def verdict(
        self, damaged: Iterable[str] = (), also: Callable[[Broker], None] = lambda _: None
    ) -> list[Violation]:
        """Open the directory once more, drain every queue and judge the whole history.

        Args:
            damaged: messages that are known to be.
            also: what else is looked at, before and after the queues are drained.
        """
        with Broker.open(self.directory, config=self.config) as broker:
            for spec in QUEUES.values():
                broker.declare(spec, change=True)
            also(broker)
            self.events += drain(broker)
            also(broker)
        stamp = time.monotonic_ns()
        self.events += [Removed(stamp, "", id_, "damaged") for id_ in damaged]
        return check(self.events, self.options)


def seen_until(events: Iterable[Event], until: int) -> Iterator[Event]:
    """What was known at an instant: calls that had not returned by then have no outcome."""
    for event in events:
        match event:
            case Publish() | LeaseCall() | Settle():
                if event.ended is None or event.ended <= until:
                    yield event
                else:
                    yield msgspec.structs.replace(
                        event,
                        ended=None,
                        outcome="unknown",
                        **{name: () for name in ("ids", "grants") if hasattr(event, name)},
                    )
            case Removed() if event.seen <= until:
                yield event
            case _:
                pass


def drain(broker: Broker) -> list[Event]:
    """Lease and ack everything there is until nothing is left in any state."""
    keeper = MemoryKeeper()
    recorder = Recorder(broker, keeper, time.monotonic_ns)
    found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in QUEUES}
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while any(sum(broker.stats(name)["depth"].values()) for name in QUEUES):
        assert time.monotonic() < deadline, {name: broker.stats(name)["depth"] for name in QUEUES}
        for name in QUEUES:
            # The broker's own long poll waits for leases and delays of the past to end.
            leases = recorder.lease(name, 1_000, LEASE_TIMEOUT_MS * 100, wait_ms=5)
            found[name] += [(lease.id, lease.body) for lease in leases]
            broker.ack(name, [lease.token for lease in leases])
    for name in QUEUES:
        recorder.removals(name)
    stamp = time.monotonic_ns()
    return keeper.events() + [Drained(stamp, name, tuple(got)) for name, got in found.items()]
