"""The rules about single messages; those about their order are in `tests.history.order`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.history.index import NEVER, STRENGTH, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.history.events import Settle
    from tests.history.index import Delivery, Index, Message


def lost(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        if message.queue not in index.drained or not message.sent:
            continue
        if _must_exist(index, message) and not _accounted_for(index, message, set()):
            levels = "/".join(p.level for p, _ in message.sent)
            yield Violation(
                "lost",
                message.queue,
                message.name,
                f"confirmed at {levels}, not acked, not removed, not in the final drain",
            )


def _must_exist(index: Index, message: Message) -> bool:
    # Which of several publishes under one producer's id made it is not known.
    level = min((p.level for p, _ in message.sent), key=STRENGTH.__getitem__)
    confirmed = [
        (p.ended, p.level) for p, _ in message.sent if p.outcome == "ok" and p.ended is not None
    ]
    delivered = [(d.ended, level) for d in message.deliveries]
    return any(index.holds(at, since, NEVER) for since, at in confirmed + delivered)


def _accounted_for(index: Index, message: Message, seen: set[str]) -> bool:
    if message.found or _ack_may_hold(index, message):
        return True
    if message.queue in seen:
        return False
    dead_queue = index.options.dead_queues.get(message.queue)
    if any(r.moved_to is None or dead_queue not in index.drained for r in message.removals):
        return True
    target = index.messages.get((dead_queue or "", message.body))
    return target is not None and _accounted_for(index, target, seen | {message.queue})


def _ack_may_hold(index: Index, message: Message) -> bool:
    last = max((d.started for d in message.deliveries), default=-1)
    return any(a.outcome != "failed" and index.end_of_effect(a) >= last for a in message.acks())


def unexpected(index: Index) -> Iterator[Violation]:
    bodies: dict[str, Message] = {}
    for message in index.messages.values():
        seen = [(d.grant.id, d.ended) for d in message.deliveries]
        seen += [(id_, at) for at, id_ in message.found]
        calls = index.publishes(message)
        possible = [p for p, _ in calls if p.outcome != "failed"]
        for id_, at in seen:
            if not calls:
                detail = "delivered, but nobody published such a body"
            elif not possible:
                detail = "delivered, although its publish was refused"
            elif all(p.started > at for p in possible):
                detail = "delivered before it was published"
            else:
                continue
            yield Violation("unexpected", message.queue, id_, detail)
        for id_ in message.ids:
            other = bodies.setdefault(id_, message)
            if other is not message:
                detail = f"one id, two messages: {other.name} and {message.name}"
                yield Violation("unexpected", message.queue, id_, detail)


def duplicated(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        found = [id_ for _, id_ in message.found]
        if len(found) > 1:
            detail = f"{len(found)} times in the final drain"
            yield Violation("duplicated", message.queue, message.name, detail)
            continue
        seen = [(d.started, d.ended, d.grant.id) for d in message.deliveries]
        seen += [(at, at, id_) for at, id_ in message.found]
        seen += [(p.started, p.ended or NEVER, p.ids[i]) for p, i in message.sent if p.ids]
        seen.sort()
        # A move to the dead queue is written; one that a power cut undid is done again.
        level = min((p.level for p, _ in message.sent), key=STRENGTH.__getitem__, default="written")
        for (_, ended, one), (started, _, two) in itertools.pairwise(seen):
            if one != two and index.holds(level, ended, started):
                yield Violation("duplicated", message.queue, f"{one} {two}", "one body, two ids")


def came_back(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        seen = [d.started for d in message.deliveries] + [at for at, _ in message.found]
        for ack in message.acks():
            if ack.outcome != "ok" or ack.ended is None:
                continue
            ended = ack.ended
            if _damaged(message):
                continue
            if any(at > ended and index.holds(ack.level, ended, at) for at in seen):
                detail = f"acked at {ack.level}, seen again afterwards"
                yield Violation("acked_back", message.queue, message.name, detail)
                break
        for removal in message.removals:
            since = removal.seen
            if any(at > since and index.holds("written", since, at) for at in seen):
                detail = f"left as {removal.reason}, seen again afterwards"
                yield Violation("removed_back", message.queue, message.name, detail)
                break


def _damaged(message: Message) -> bool:
    """A damage report may name a message whose ack became unreadable: it may come back, said so."""
    return any(r.reason == "damaged" for r in message.removals)


def two_leases(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        for first, second in itertools.pairwise(message.deliveries):
            if index.power_cut_between(first.started, second.ended):
                continue
            settles = message.settles.get(first.grant.token, [])
            if any(_may_have_ended(s, second) for s in settles):
                continue
            deadline = _deadline_binding(first, settles, second)
            if second.grant.granted_at_ms < deadline:
                detail = (
                    f"leased again at {second.grant.granted_at_ms} ms while the lease "
                    f"until {deadline} ms was live"
                )
                yield Violation("two_leases", message.queue, second.grant.id, detail)


def _may_have_ended(settle: Settle, later: Delivery) -> bool:
    return settle.verb != "extend" and settle.outcome != "failed" and settle.started < later.ended


def _deadline_binding(first: Delivery, settles: Iterable[Settle], second: Delivery) -> int:
    """The earliest deadline the lease can have had when the second one was granted."""
    deadline = first.grant.deadline_ms
    extends = [s for s in settles if s.verb == "extend" and s.deadline_ms is not None]
    for extend in sorted(extends, key=lambda s: s.started):
        assert extend.deadline_ms is not None
        is_certain = (
            extend.outcome == "ok" and extend.ended is not None and extend.ended < second.started
        )
        if is_certain:
            deadline = extend.deadline_ms
        elif extend.outcome != "failed":
            deadline = min(deadline, extend.deadline_ms)
    return deadline


def attempts(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        by_id: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in message.deliveries:
            by_id[delivery.grant.id].append(delivery)
        for id_, deliveries in by_id.items():
            yield from _attempt_steps(index, message, id_, deliveries)


def _attempt_steps(
    index: Index, message: Message, id_: str, deliveries: Sequence[Delivery]
) -> Iterator[Violation]:
    born = min((p.started for p, _ in index.publishes(message)), default=0)
    last, since = 0, born
    for delivery in deliveries:
        hidden = index.hidden_grants(message.queue, since, delivery.ended)
        low = 1 if index.power_cut_between(since, delivery.ended) else last + 1
        attempt = delivery.grant.attempt
        # A dead queue keeps the attempts of the source, so its first number is free.
        is_first_in_dead_queue = last == 0 and not message.sent
        high = NEVER if message.queue in index.options.resting else last + 1 + hidden
        if not is_first_in_dead_queue and not low <= attempt <= high:
            detail = f"attempt {attempt} after attempt {last}"
            yield Violation("attempts", message.queue, id_, detail)
        last, since = attempt, delivery.started


def failures(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        limit = index.options.max_attempts.get(message.queue, 0)
        low = high = 0
        for delivery, following in itertools.zip_longest(
            message.deliveries, message.deliveries[1:]
        ):
            failures = delivery.grant.failures
            if limit and failures >= limit:
                detail = f"delivered with {failures} failures, max_attempts is {limit}"
                yield Violation("attempts", message.queue, delivery.grant.id, detail)
            hidden = index.hidden_grants(message.queue, 0, delivery.ended)
            if message.sent and not low <= failures <= high + hidden:
                detail = f"shows {failures} failures, {low} to {high + hidden} happened"
                yield Violation("failures", message.queue, delivery.grant.id, detail)
            if following is not None:
                least, most = _failure_of(index, message, delivery, following)
                low, high = low + least, high + most
                if index.power_cut_between(delivery.started, following.ended):
                    low = 0


def _failure_of(
    index: Index, message: Message, delivery: Delivery, following: Delivery
) -> tuple[int, int]:
    """Least and most that one lease, known not to have been acked, adds to the failures."""
    ends = [
        s
        for s in message.settles.get(delivery.grant.token, [])
        if s.verb != "extend" and s.outcome != "failed"
    ]
    if any(s.outcome == "unknown" for s in ends):
        return 0, 1
    held = [s.verb for s in ends if _holds(index, s, following.started)]
    if held:
        return (0, 0) if "release" in held else (1, 1)
    if index.restarts_between(delivery.started, following.ended):
        return 0, 1
    return 1, 1


def _holds(index: Index, settle: Settle, until: int) -> bool:
    """Whether what a settle did still binds the broker at a stamp."""
    return (
        settle.outcome == "ok"
        and settle.ended is not None
        and index.holds(settle.level, settle.ended, until)
    )


def tokens(index: Index) -> Iterator[Violation]:
    for settle in index.forged:
        if settle.outcome == "ok":
            yield Violation("stale_token", settle.queue, settle.token, "no lease had this token")
    for token, (message, delivery) in index.by_token.items():
        for settle in message.settles.get(token, []):
            if settle.outcome == "ok":
                why = _why_stale(index, message, delivery, settle)
                if why:
                    detail = f"{settle.verb} accepted {why}"
                    yield Violation("stale_token", message.queue, token, detail)
            elif settle.outcome == "failed" and _is_surely_live(index, message, delivery, settle):
                detail = f"{settle.verb} refused although the lease was live"
                yield Violation("live_token_refused", message.queue, token, detail)


def _why_stale(index: Index, message: Message, delivery: Delivery, settle: Settle) -> str | None:
    others = message.settles[delivery.grant.token]
    for other in others:
        if other.verb == "extend" or (other.ended or NEVER) >= settle.started:
            continue
        if _holds(index, other, settle.started):
            return f"after the lease was settled by {other.verb}"
    position = message.deliveries.index(delivery)
    for later in message.deliveries[position + 1 :]:
        if later.ended < settle.started and not index.power_cut_between(
            later.started, settle.started
        ):
            return "after the message was leased again"
    deadlines = [delivery.grant.deadline_ms]
    deadlines += [s.deadline_ms for s in others if s.deadline_ms and s.outcome != "failed"]
    if settle.at_ms is not None and settle.at_ms >= max(deadlines):
        return f"at {settle.at_ms} ms, after its deadline {max(deadlines)} ms"
    return None


def _is_surely_live(index: Index, message: Message, delivery: Delivery, settle: Settle) -> bool:
    if settle.ended is None or message.removals:
        return False
    levels = ["written", *(publish.level for publish, _ in index.publishes(message))]
    if not all(index.holds(level, delivery.started, settle.ended) for level in levels):
        return False
    others = [s for s in message.settles[delivery.grant.token] if s is not settle]
    if any(s.outcome != "failed" and s.started <= settle.ended for s in others):
        return False
    return _latest_ms(delivery, settle) < delivery.grant.deadline_ms


def _latest_ms(delivery: Delivery, settle: Settle) -> int:
    """The latest queue time at which a settle can have been carried out."""
    if settle.at_ms is not None:
        return settle.at_ms
    assert settle.ended is not None
    # Both clocks go on alike, over restarts too, but round.
    return delivery.grant.granted_at_ms + (settle.ended - delivery.started) // 1_000_000 + 2


def timing(index: Index) -> Iterator[Violation]:
    for message in index.messages.values():
        for delivery in message.deliveries:
            grant = delivery.grant
            age_ms = grant.granted_at_ms - grant.enqueued_at_ms
            sents = [p.messages[i] for p, i in message.sent]
            if sents and age_ms < min(s.delay_ms for s in sents):
                detail = f"delivered {age_ms} ms after its publish, before its delay ended"
                yield Violation("early", message.queue, grant.id, detail)
            ttls = [s.ttl_ms for s in sents if s.ttl_ms is not None]
            if len(ttls) == len(sents) > 0 and age_ms >= max(ttls):
                detail = f"delivered {age_ms} ms after its publish, past its TTL"
                yield Violation("expired", message.queue, grant.id, detail)


def delayed(index: Index) -> Iterator[Violation]:
    """A retry's delay holds over restarts, like the delay of a publish."""
    for message in index.messages.values():
        for first, second in itertools.pairwise(message.deliveries):
            for settle in message.settles.get(first.grant.token, []):
                if not settle.delay_ms or not _holds(index, settle, second.started):
                    continue
                since_ms = first.grant.granted_at_ms if settle.at_ms is None else settle.at_ms
                waited_ms = second.grant.granted_at_ms - since_ms
                if waited_ms < settle.delay_ms:
                    detail = f"delivered {waited_ms} ms after a retry in {settle.delay_ms} ms"
                    yield Violation("early", message.queue, second.grant.id, detail)


def withheld(index: Index) -> Iterator[Violation]:
    """What was released is ready at once, over restarts too: who asks for all there is gets it."""
    for message in index.messages.values():
        if message.queue in index.options.resting or message.removals or _may_end(index, message):
            continue
        for first, second in itertools.zip_longest(message.deliveries, message.deliveries[1:]):
            for settle in message.settles.get(first.grant.token, []):
                if settle.verb == "release" and _is_withheld(index, message, settle, second):
                    detail = "released, and a call that took all there was did not get it"
                    yield Violation("withheld", message.queue, first.grant.id, detail)


def _may_end(index: Index, message: Message) -> bool:
    sents = [p.messages[i] for p, i in index.publishes(message)]
    return any(sent.ttl_ms is not None or sent.decays for sent in sents)


def _is_withheld(index: Index, message: Message, settle: Settle, second: Delivery | None) -> bool:
    """Whether a call came back with less than it asked for while a message was ready."""
    since = NEVER if settle.ended is None else settle.ended
    until = NEVER if second is None else second.started
    call = next(index.short_leases(message.queue, since, until), None)
    return (
        call is not None
        and _holds(index, settle, call.started)
        and not index.hidden_grants(message.queue, since, call.started)
    )


RULES = (
    lost,
    unexpected,
    duplicated,
    came_back,
    two_leases,
    attempts,
    failures,
    tokens,
    timing,
    delayed,
    withheld,
)
