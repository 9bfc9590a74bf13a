"""How far the moves of a device are: copies on their way to it, and those that leave it.

Theory of operation. How many are left is counted from the holdings whenever somebody asks, how many
are done where results arrive. Moves of a device that overlap are one: it begins when something is
left to do and ends when nothing is, as seen by the mover a few times in a second. How fast it goes
is how fast it went in the last seconds, or, if nothing came then, all the time.

Everything here is called with the engine's lock held.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ebbmq.model import Moving

if TYPE_CHECKING:
    from ebbmq.node.engine import Engine

Way = Literal["to", "from"]
_LOOK_MS: Final = 250
#: How fast it goes is said of so long.
_LOOKS: Final = 21


class _Look(NamedTuple):
    at_ms: int
    done: int
    nbytes: int


class _Run:
    """Moves one way that overlap, since there were some."""

    __slots__ = ("before", "looks", "since_ms")

    def __init__(self, since_ms: int, before: _Look) -> None:
        self.since_ms = since_ms
        self.before = before
        self.looks: deque[_Look] = deque([before], maxlen=_LOOKS)


def _per_s(first: _Look, last: _Look) -> float:
    spent_ms = last.at_ms - first.at_ms
    return 1_000 * (last.done - first.done) / spent_ms if spent_ms else 0.0


class Progress:
    """What is under way on all devices."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done: Counter[tuple[str, Way]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._last: dict[tuple[str, Way], _Look] = {}
        self._runs: dict[tuple[str, Way], _Run] = {}
        self._to_do: Counter[tuple[str, Way]] = Counter()
        self._looked_at_ms = 0

    def arrived(self, device: str, count: int) -> None:
        """A device has so many copies more."""
        self._done[device, "to"] += count

    def took(self, device: str, nbytes: int) -> None:
        """A device was given so many bytes; of each device only one thread says so."""
        self._bytes[device] += nbytes

    def left(self, device: str, count: int) -> None:
        """So many copies are gone from a device, which live on elsewhere."""
        self._done[device, "from"] += count

    def look(self) -> None:
        """See what is under way."""
        # Devices take their time also where a clock is moved by hand.
        at_ms = time.monotonic_ns() // 1_000_000
        to_do = self._to_do = self._count()
        for ended in self._runs.keys() - to_do.keys():
            del self._runs[ended]
        for key in to_do:
            here = _Look(at_ms, self._done[key], self._bytes[key[0]] if key[1] == "to" else 0)
            run = self._runs.get(key)
            if run is None:
                before = self._last.get(key, _Look(self._looked_at_ms or at_ms, 0, 0))
                run = self._runs[key] = _Run(self._engine.now_ms(), before)
            if at_ms - run.looks[-1].at_ms >= _LOOK_MS:
                run.looks.append(here)
        self._looked_at_ms = at_ms
        self._last = {
            key: _Look(at_ms, done, self._bytes[key[0]] if key[1] == "to" else 0)
            for key, done in self._done.items()
        }

    def of(self, device: str, way: Way) -> Moving | None:
        """How far the moves of a device were one way at the last look; None: there were none."""
        run, left = self._runs.get((device, way)), self._to_do[device, way]
        if run is None:
            return None
        done = self._done[device, way] - run.before.done
        nbytes = self._bytes[device] - run.before.nbytes if way == "to" else None
        # Where it goes by fits and starts, as at a pace, all of it says how fast it goes.
        per_s = _per_s(run.looks[0], run.looks[-1]) or _per_s(run.before, run.looks[-1])
        return Moving(
            done=done,
            left=left,
            since_ms=run.since_ms,
            per_s=per_s,
            left_ms=round(1_000 * left / per_s) if per_s else None,
            bytes=nbytes,
            # A device takes many at once, and they are counted a few at a time.
            bytes_per_s=per_s * nbytes / done if nbytes and done else None,
            bytes_left=round(left * nbytes / done) if nbytes and done else None,
        )

    def _count(self) -> Counter[tuple[str, Way]]:
        to_do: Counter[tuple[str, Way]] = Counter()
        for holding, count in self._engine.holdings.alike():
            for device in holding.pending:
                to_do[device, "to"] += count
            for device in holding.leaving | holding.dropping:
                to_do[device, "from"] += count
        return to_do
