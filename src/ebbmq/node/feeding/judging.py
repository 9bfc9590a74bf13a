"""What messages of a snapshot are judged by, and which of them a plan would do something about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ebbmq.feed.settings import DeviceRoom, QueueParameters, Settings
from ebbmq.node import looking
from ebbmq.node.devices import settings
from ebbmq.policy.advice import Kept, advised
from ebbmq.policy.decay import Phase, Score

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ebbmq.node.catalog import Queue
    from ebbmq.node.engine import Engine
    from ebbmq.policy.placement import Terms

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

_OF_QUEUES = tuple(
    name for name in QueueParameters.__struct_fields__ if name not in ("name", "version")
)
_OF_DEVICES = tuple(name for name in DeviceRoom.__struct_fields__ if name != "place")
#: Runs of which a snapshot says what became of them.
_RUNS: Final = 8
_WAITS: Final = 1
_URGENT: Final = 2


def settings_of(engine: Engine) -> Settings:
    """The parameters of a node's queues, the room on its devices, and what became of plans."""
    configured = engine.config.devices
    devices = [
        DeviceRoom(
            place=settings.place_of(configured.get(each.name)),
            **{name: getattr(each, name) for name in _OF_DEVICES},
        )
        for each in looking.devices(engine)
    ]
    with engine.lock:
        terms = engine.keeping.placing.terms
        queues = [
            QueueParameters(
                name=queue.spec.name,
                version=terms(queue.spec).version,
                **_scored(queue),
            )
            for queue in engine.catalog.queues.values()
        ]
    plans = [each for each in engine.adviser.told().runs if each.table == "plans" and each.rows]
    return Settings(queues=tuple(queues), devices=tuple(devices), advice=tuple(plans[-_RUNS:]))


def _scored(queue: Queue) -> dict[str, Any]:
    """The parameters of a queue, and those of the score that moves its messages."""
    own = {name: getattr(queue.spec, name) for name in _OF_QUEUES}
    return own | Score.of(queue.scored).fields()


class Judged(NamedTuple):
    """Messages of a queue as a plan sees them, by columns."""

    terms: Terms
    #: The distinct ways messages are kept, and which of these each has.
    kept: Sequence[Kept]
    which: npt.NDArray[np.int32]
    scores: Floats
    enqueued: Ints


def review_at(judged: Judged, crossing: Ints, now_ms: int) -> Ints:
    """When messages are to be looked at; 0 for never.

    At once where a plan has something to do, else when their score crosses a threshold; what was
    published a moment ago is left alone until it is evaluated, unless it lacks a copy.
    """
    terms, kept, which, scores, enqueued = judged
    if not acts(kept, terms):
        return crossing
    urgencies = np.array([[_acts(each, terms, phase) for phase in Phase] for each in kept])
    settled = np.array(
        [[[terms.settled(p, back, each.tier) for back in Phase] for p in Phase] for each in kept]
    )
    phases = settled[which, _phases(terms.score, scores), _phases(terms.score.way_back(), scores)]
    urgency = urgencies[which, phases]
    evaluated = np.maximum(enqueued + terms.evaluate_every_ms, now_ms)
    return np.select([urgency == _URGENT, urgency == _WAITS], [now_ms, evaluated], crossing)


def _phases(score: Score, scores: Floats) -> npt.NDArray[np.int8]:
    """`Score.phase` of many."""
    phases = (scores > score.medium).astype(np.int8)
    phases[scores > score.high] = int(Phase.FADED)
    return phases


def acts(kept: Sequence[Kept], terms: Terms) -> bool:
    """Whether a plan has something to do about messages that are kept in some of these ways."""
    return any(_acts(each, terms, phase) for each in kept for phase in Phase)


def _acts(kept: Kept, terms: Terms, phase: Phase) -> int:
    """Whether a plan has something to do: not, once the message is evaluated, or at once."""
    if advised(kept, terms, phase, young=True) is not None:
        return _URGENT
    return _WAITS if advised(kept, terms, phase, young=False) is not None else 0
