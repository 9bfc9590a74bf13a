"""The rules of order: first in first out inside a band, higher bands before lower ones."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.history.index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.history.events import Publish
    from tests.history.index import Delivery, Index, Message


def order(index: Index) -> Iterator[Violation]:
    partitions: dict[tuple[str, str], list[_Turn]] = defaultdict(list)
    for message in index.messages.values():
        if message.queue not in index.options.ordered:
            continue
        for number, delivery in enumerate(message.deliveries):
            partition = delivery.grant.id.partition("-")[0]
            turn = _turn(index, message, delivery, is_first=number == 0)
            partitions[message.queue, partition].append(turn)
    for (queue, _), turns in partitions.items():
        yield from _order_of(queue, turns)


@dataclass(slots=True)
class _Turn:
    """A delivery with what the order rules need; `publish` only if it is a judged first one."""

    delivery: Delivery
    publish: Publish | None
    index_in_publish: int
    ready_at: int

    @property
    def band(self) -> int:
        return self.delivery.grant.band


def _turn(index: Index, message: Message, delivery: Delivery, *, is_first: bool) -> _Turn:
    """Only a plain message, published once, seen first at attempt 1, has a place that is known."""
    is_judged = is_first and delivery.grant.attempt == 1 and len(message.sent) == 1
    if is_judged:
        publish, place = message.sent[0]
        sent = publish.messages[place]
        crashes = [
            r for r in index.restarts_between(publish.started, delivery.ended) if r.kind != "clean"
        ]
        # An unseen grant that a crash took back lets others be served first.
        is_hidden = bool(crashes) and (
            index.hidden_grants(message.queue, publish.started, delivery.ended) > 0
        )
        if publish.outcome == "ok" and not sent.delay_ms and not sent.decays and not is_hidden:
            return _Turn(delivery, publish, place, index.surely_ready_at(publish))
    return _Turn(delivery, None, 0, 0)


class _Latest:
    """The latest publish and lease starts among deliveries that are surely in the past."""

    def __init__(self) -> None:
        self.publish_started: dict[int, int] = {}
        self.place: dict[tuple[int, int], int] = {}
        self.lease_started: dict[int, int] = {}

    def add(self, turn: _Turn) -> None:
        band = turn.band
        started = max(self.lease_started.get(band, -1), turn.delivery.started)
        self.lease_started[band] = started
        if turn.publish is not None:
            latest = max(self.publish_started.get(band, -1), turn.publish.started)
            self.publish_started[band] = latest
            key = (id(turn.publish), band)
            self.place[key] = max(self.place.get(key, -1), turn.index_in_publish)

    def is_overtaken(self, turn: _Turn) -> bool:
        """Whether a message published later, of the same band, was delivered before this one."""
        assert turn.publish is not None
        assert turn.publish.ended is not None
        if self.publish_started.get(turn.band, -1) > turn.publish.ended:
            return True
        return self.place.get((id(turn.publish), turn.band), -1) > turn.index_in_publish

    def is_outranked(self, turn: _Turn) -> bool:
        """Whether a lower band was served by a call that began when this one was ready."""
        lower = [at for band, at in self.lease_started.items() if band < turn.band]
        return max(lower, default=-1) > turn.ready_at


def _order_of(queue: str, turns: list[_Turn]) -> Iterator[Violation]:
    turns.sort(key=lambda t: (t.delivery.started, id(t.delivery.call), t.delivery.place))
    by_end = sorted(turns, key=lambda t: t.delivery.ended)
    past, absorbed = _Latest(), 0
    for _, group in itertools.groupby(turns, key=lambda t: id(t.delivery.call)):
        within = _Latest()
        for turn in group:
            while by_end[absorbed].delivery.ended < turn.delivery.started:
                past.add(by_end[absorbed])
                absorbed += 1
            if turn.publish is not None:
                id_ = turn.delivery.grant.id
                if past.is_overtaken(turn) or within.is_overtaken(turn):
                    detail = "a message of its band published later was delivered before it"
                    yield Violation("order", queue, id_, detail)
                if past.is_outranked(turn) or within.is_outranked(turn):
                    detail = f"a lower band was served while it was ready in band {turn.band}"
                    yield Violation("band_order", queue, id_, detail)
            within.add(turn)
