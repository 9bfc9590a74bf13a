"""How faded a stored message is, and when that will matter: the decay score (ADR 0008).

`decay_score` is the one formula, in + - * / only, so that it takes floats, arrays and Spark columns
alike; thresholds stay outside of it. Everything else here is for floats. With the parameters in
their usual range, not below 0, the score never falls while nobody reads the message, so that each
threshold is crossed once, at an instant that can be computed; a read only moves it later.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from ebbmq.limits import DAY_MS, DURATION_MS_MAX

if TYPE_CHECKING:
    from ebbmq.feed.settings import QueueParameters
    from ebbmq.model import Scored

#: An access counts fully when it happens and 1/e of that after so many days.
ACCESS_MEMORY_DAYS: Final = 1.0
#: Shown of whoever does not say: a point a day, kept after a week, faded after a month.
_PER_DAY: Final = 1.0
_MEDIUM: Final = 7.0
_HIGH: Final = 30.0
#: No score is above it.
NEVER: Final = 1e300
#: The way back over a threshold begins so much below it: a part of it, and at least so many points.
WAY_BACK_SHARE: Final = 0.1
WAY_BACK_MIN: Final = 0.1


@overload
def decay_score(
    age_days: float, access_rate: float, base: float, per_day: float, access_bonus: float
) -> float: ...
@overload
def decay_score(
    age_days: Any, access_rate: Any, base: Any, per_day: Any, access_bonus: Any
) -> Any: ...
def decay_score(age_days: Any, access_rate: Any, base: Any, per_day: Any, access_bonus: Any) -> Any:
    """Return how faded a message of that age and access rate (reads a day) is; high is faded."""
    return base + age_days * per_day - access_rate * access_bonus


class Phase(enum.IntEnum):
    """What a decay score asks for."""

    FRESH = 0  # one copy more, on the fastest tier
    KEPT = 1  # as many copies as there should be, on the middle tier
    FADED = 2  # one copy in the archive


class Score(NamedTuple):
    """The parameters of a queue's score."""

    base: float = 0.0
    per_day: float = 0.0
    access_bonus: float = 0.0
    medium: float = _MEDIUM
    high: float = _HIGH

    @classmethod
    def of(cls, spec: Scored | QueueParameters) -> Score:
        """What copies are moved by: nothing crosses a threshold where neither age nor end count."""
        if spec.score_per_day is None and spec.score_high is None:
            return cls(spec.score_base, 0.0, spec.score_access_bonus, NEVER, NEVER)
        return cls.shown(spec)

    @classmethod
    def shown(cls, spec: Scored | QueueParameters) -> Score:
        """What people see: days, unless it says otherwise."""
        per_day, medium, high = spec.score_per_day, spec.score_medium, spec.score_high
        return cls(
            spec.score_base,
            _PER_DAY if per_day is None else per_day,
            spec.score_access_bonus,
            _MEDIUM if medium is None else medium,
            _HIGH if high is None else high,
        )

    @property
    def acts(self) -> bool:
        """Whether copies move by it."""
        return self.high < NEVER

    def way_back(self) -> Score:
        """The same with the thresholds of what has crossed them and comes back."""
        medium, high = (
            each - max(abs(each) * WAY_BACK_SHARE, WAY_BACK_MIN)
            for each in (self.medium, self.high)
        )
        return self._replace(medium=medium, high=high)

    def fields(self) -> dict[str, float]:
        """Them by the names that a queue has for them."""
        return {f"score_{name}": value for name, value in self._asdict().items()}

    def at(self, age_ms: float, access_rate: float) -> float:
        """The score of a message of that age."""
        return decay_score(age_ms / DAY_MS, access_rate, self.base, self.per_day, self.access_bonus)

    def phase(self, score: float) -> Phase:
        """What a score asks for; a threshold itself is not yet above it."""
        if score > self.high:
            return Phase.FADED
        return Phase.KEPT if score > self.medium else Phase.FRESH


def is_scored(spec: Scored) -> bool:
    """Whether copies depend on the score: on its growth, its end, or how often it is read."""
    return bool(
        spec.score_per_day is not None or spec.score_high is not None or spec.score_access_bonus
    )


class Access(NamedTuple):
    """Reads of a message, weighted by how long ago they were: `rate` a day as of `at_ms`."""

    rate: float = 0.0
    at_ms: int = 0

    def rate_at(self, now_ms: int) -> float:
        """The rate at a later instant."""
        if self.rate == 0.0:
            return 0.0
        elapsed_days = max(0, now_ms - self.at_ms) / DAY_MS
        return self.rate * math.exp(-elapsed_days / ACCESS_MEMORY_DAYS)

    def credited(self, now_ms: int) -> Access:
        """After a read: a lease granted, a counted peek, a read of a topic."""
        return Access(self.rate_at(now_ms) + 1 / ACCESS_MEMORY_DAYS, now_ms)

    def reversed(self, granted_at_ms: int, now_ms: int) -> Access:
        """After the lease granted then failed: as if it had never been granted."""
        credit = Access(1 / ACCESS_MEMORY_DAYS, granted_at_ms).rate_at(now_ms)
        return Access(max(0.0, self.rate_at(now_ms) - credit), now_ms)


def next_crossing_ms(score: Score, enqueued_at_ms: int, access: Access, now_ms: int) -> int | None:
    """Return the first instant after `now_ms` at which the phase is another one, if nobody reads.

    None if the phase stays. Parameters below 0 make a score that may fall: then it is the next
    instant at which it rises to another phase, counted as if the score rose from here on.
    """

    def phase_at(instant_ms: int) -> Phase:
        value = score.at(instant_ms - enqueued_at_ms, access.rate_at(instant_ms))
        return score.phase(value)

    phase, latest_ms = phase_at(now_ms), enqueued_at_ms + DURATION_MS_MAX
    if phase is Phase.FADED or now_ms >= latest_ms or phase_at(latest_ms) <= phase:
        return None
    before_ms, after_ms = now_ms, latest_ms
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if phase_at(middle_ms) > phase:
            after_ms = middle_ms
        else:
            before_ms = middle_ms
    return after_ms


def has_crossed(
    score: Score, enqueued_at_ms: int, access: Access, since_ms: int, now_ms: int
) -> bool:
    """Whether a message is in another phase than it was at an earlier instant, or was read since.

    What its score was before a read is not known any more, so a read counts as a crossing.
    """
    if access.rate > 0.0 and access.at_ms > since_ms:
        return True
    before = score.at(max(0, since_ms - enqueued_at_ms), access.rate_at(since_ms))
    after = score.at(now_ms - enqueued_at_ms, access.rate_at(now_ms))
    return score.phase(before) is not score.phase(after)
