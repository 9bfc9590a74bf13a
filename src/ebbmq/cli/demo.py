"""`ebbmq demo`: the same overload for a FIFO queue and for one with decaying importance.

Producers publish every message to both queues; each queue has as many, equally fast consumers of
its own. The load starts calm, rises to `SURGE` times what the consumers can handle, calms down and
ends. A message that is acked within its TTL was on time. Clock, threads and disk are real; only the
work of a consumer is a sleep.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.progress import Progress

from ebbmq.cli import demo_picture
from ebbmq.cli.session import Session, data_option, has_files, json_option, pass_session
from ebbmq.cli.values import show_duration
from ebbmq.errors import ClientError
from ebbmq.model import Message, QueueSpec
from ebbmq.node.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIFO: Final = "fifo"
DECAYING: Final = "decaying"
QUEUES: Final = (FIFO, DECAYING)
IMPORTANT: Final = range(8, 11)
PRODUCERS: Final = 3
CONSUMERS: Final = 8
#: Messages that the consumers of a queue handle in a second; every machine keeps up with that.
SERVICE_RATE: Final = 160.0
CALM: Final = 0.6
SURGE: Final = 3.0
#: Shares of the whole time: calm until, surge until, calm until; then nothing new arrives.
CALM_UNTIL: Final = 0.10
SURGE_UNTIL: Final = 0.65
TRAFFIC_UNTIL: Final = 0.85
TTL_SHARE: Final = 0.14
#: How many of 100 messages have importance 1, 2, .. 10: most work is not important.
IMPORTANCE_WEIGHTS: Final = (14, 13, 12, 11, 10, 10, 9, 8, 7, 6)
BODY_BYTES: Final = (256, 2_048)
TICK_S: Final = 0.02
PICTURE: Final = Path("ebbmq-demo.png")


@click.command(short_help="See an overload: FIFO beside decaying importance.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=2, max=600),
    default=28.0,
    show_default=True,
    help="How long the story takes.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    default=PICTURE,
    show_default=True,
    help="Where to save the picture.",
)
@click.option("--no-picture", is_flag=True, help="Numbers only.")
@json_option
@data_option("A new data directory; a temporary one unless given.")
@pass_session
def demo(session: Session, seconds: float, picture: Path, no_picture: bool) -> None:
    """Run three times more work into two queues than their consumers can handle.

    The same messages go to a FIFO queue and to one whose messages lose importance as they age,
    with the same number of equally fast consumers. In the end: how much important work was on
    time in each, and what was let go. The comparison is with FIFO: here fixed importance (decay
    rate 0) is on time as often.

    \b
    Examples:
      ebbmq demo
      ebbmq demo --seconds 10 --picture overload.png
    """
    drawn = not no_picture and demo_picture.is_available()
    if not no_picture and not drawn:
        session.note("no picture will be drawn: pip install 'ebbmq[demo]' adds matplotlib")
    with _directory(session) as directory, Broker.open(directory) as broker:
        story = Story(broker, seconds)
        with Progress(console=session.err, transient=True) as progress:
            task = progress.add_task("", total=seconds)
            story.run(lambda at_s, phase: progress.update(task, completed=at_s, description=phase))
    if drawn:
        demo_picture.draw(story, picture)
    _show(session, story, picture if drawn else None)


@contextlib.contextmanager
def _directory(session: Session) -> Iterator[Path]:
    """The chosen data directory, if it is new, else a temporary one that is removed."""
    if session.chosen_data is None:
        with tempfile.TemporaryDirectory(prefix="ebbmq-demo-") as path:
            yield Path(path)
    elif has_files(session.chosen_data):
        raise ClientError(
            f"{session.chosen_data} is not empty",
            "the demo wants a new directory: name another one, or leave --data away",
            code="directory_not_empty",
        )
    else:
        yield session.chosen_data


@dataclass
class Tally:
    """What became of one queue's messages, by importance."""

    published: Counter[int] = field(default_factory=Counter)
    on_time: Counter[int] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)
    #: (second, messages that wait by importance), five times a second.
    waiting: list[tuple[float, dict[int, int]]] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    waiting_at_end: int = 0

    def on_time_of(self, importances: range) -> tuple[int, int]:
        """How many messages of these importances were on time, and of how many."""
        return sum(self.on_time[i] for i in importances), sum(
            self.published[i] for i in importances
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for programs."""
        on_time, of = self.on_time_of(IMPORTANT)
        return {
            "published": self.published.total(),
            "acked": self.on_time.total() + self.late.total(),
            "acked_late": self.late.total(),
            "removed": self.removed,
            "waiting": self.waiting_at_end,
            "important": {"on_time": on_time, "of": of, "share": share(on_time, of)},
            "on_time_share_by_importance": {
                str(i): share(self.on_time[i], self.published[i]) for i in range(1, 11)
            },
        }


def share(part: int, whole: int) -> float:
    """A part of a whole, 0 of nothing."""
    return part / whole if whole else 0.0


class Story:
    """Producers and consumers at work on an open broker."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        self.seconds = seconds
        #: Long enough for a prompt consumer, short beside the surge.
        self.ttl_ms = round(seconds * TTL_SHARE * 1_000)
        self.tallies = {queue: Tally() for queue in QUEUES}
        self._broker = broker
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._failures: list[BaseException] = []
        self._started_s = 0.0
        # One band as wide as all importances is what makes a queue of them first in, first out.
        broker.declare(QueueSpec.fifo(FIFO, band_width=10.0, dead_queue=None))
        broker.declare(QueueSpec.deadline(DECAYING, ttl_ms=self.ttl_ms, dead_queue=None))

    def run(self, watch: Callable[[float, str], None]) -> None:
        """Tell the story to its end; the first failure of a producer or consumer is raised."""
        threads = [
            threading.Thread(target=self._guard, args=(self._publish, n)) for n in range(PRODUCERS)
        ]
        threads += [
            threading.Thread(target=self._guard, args=(self._consume, queue))
            for queue in QUEUES
            for _ in range(CONSUMERS)
        ]
        self._started_s = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            while self._now_s() < self.seconds and not self._stop.wait(0.2):
                for queue, tally in self.tallies.items():
                    waiting = self._broker.stats(queue)["by_importance"]
                    tally.waiting.append((self._now_s(), waiting))
                watch(self._now_s(), self._phase())
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]
        for queue, tally in self.tallies.items():
            stats = self._broker.stats(queue)
            tally.waiting_at_end = sum(stats["depth"].values())
            tally.removed = {
                reason: count
                for reason in ("stale", "expired")
                if (count := stats["totals"].get(reason, 0))
            }

    def _now_s(self) -> float:
        return time.monotonic() - self._started_s

    def _load(self) -> float:
        """Arrivals as a multiple of what the consumers can handle."""
        at = self._now_s() / self.seconds
        if at >= TRAFFIC_UNTIL:
            return 0.0
        return SURGE if CALM_UNTIL <= at < SURGE_UNTIL else CALM

    def _phase(self) -> str:
        load = self._load()
        if load == SURGE:
            return f"overload: {SURGE:.0f} arrive for each one handled"
        return "calm: consumers keep up" if load else "nothing new arrives"

    def _guard(self, work: Callable[[Any], None], argument: object) -> None:
        """A failure in one thread ends the story instead of passing unseen."""
        try:
            work(argument)
        except BaseException as failure:
            self._failures.append(failure)
            self._stop.set()

    def _publish(self, number: int) -> None:
        """One producer: its share of the load, to both queues, each message confirmed."""
        chance = random.Random(number)  # noqa: S311  # traffic, not secrets
        due, last_s = 0.0, self._now_s()
        while not self._stop.wait(TICK_S):
            now_s = self._now_s()
            due += self._load() * SERVICE_RATE * (now_s - last_s) / PRODUCERS
            last_s = now_s
            batch = [self._message(chance) for _ in range(int(due))]
            due -= len(batch)
            if not batch:
                continue
            for queue in QUEUES:
                self._broker.publish(queue, batch, confirm="synced")
                with self._counting:
                    self.tallies[queue].published.update(m.importance or 0 for m in batch)

    def _message(self, chance: random.Random) -> Message:
        return Message(
            chance.randbytes(chance.randint(*BODY_BYTES)),
            importance=chance.choices(range(1, 11), IMPORTANCE_WEIGHTS)[0],
            ttl_ms=self.ttl_ms,
        )

    def _consume(self, queue: str) -> None:
        """One consumer: a message at a time, the same work for each."""
        tally, done_s, service_s = self.tallies[queue], 0.0, CONSUMERS / SERVICE_RATE
        while not self._stop.is_set():
            for lease in self._broker.lease(queue, count=1, wait_ms=100):
                # Time lost to a busy machine is made up for, or the load would be another one.
                now_s = self._now_s()
                done_s = max(done_s + service_s, now_s + service_s / 2)
                time.sleep(done_s - now_s)
                self._broker.ack(queue, [lease.token], confirm="written")
                late = time.time_ns() // 1_000_000 > lease.enqueued_at_ms + self.ttl_ms
                with self._counting:
                    (tally.late if late else tally.on_time)[lease.importance] += 1


def _show(session: Session, story: Story, picture: Path | None) -> None:
    if session.as_json:
        queues = {queue: tally.to_dict() for queue, tally in story.tallies.items()}
        told = {"seconds": story.seconds, "ttl_ms": story.ttl_ms, "queues": queues}
        session.show_json({**told, "picture": None if picture is None else str(picture)})
        return
    both = [story.tallies[queue] for queue in QUEUES]
    session.say(
        f"{both[0].published.total():,} messages to each queue, at the worst {SURGE:.0f} for each "
        f"one its consumers could handle; a message is of use for {show_duration(story.ttl_ms)}.\n"
    )
    rows: list[tuple[str, Callable[[Tally], str]]] = [
        ("important work on time", lambda tally: _share(*tally.on_time_of(IMPORTANT))),
        *((f"  importance {i}", partial(_share_of, i)) for i in range(10, 0, -1)),
        ("done, but too late to be of use", lambda tally: f"{tally.late.total():,}"),
        ("let go, each on the record", lambda tally: f"{sum(tally.removed.values()):,}"),
        ("still waiting", lambda tally: f"{tally.waiting_at_end:,}"),
    ]
    session.show_table(
        ("", *(demo_picture.NAMES[queue] for queue in QUEUES)),
        [(title, *(of(tally) for tally in both)) for title, of in rows],
    )
    if picture is not None:
        session.say(f"\nThe picture: {picture}")


def _share_of(importance: int, tally: Tally) -> str:
    return _share(tally.on_time[importance], tally.published[importance])


def _share(part: int, whole: int) -> str:
    return f"{share(part, whole):4.0%} ({part:,} of {whole:,})"
