"""Which devices should have a message: the rules and the queue's terms, asked once for many alike.

Messages that no rule can tell apart get the same answer, so the answer is kept while the rules, the
devices' states and the queue's terms stay what they are.
"""

from __future__ import annotations

from collections import Counter
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from ebbmq import limits
from ebbmq.core import envelope
from ebbmq.core.copies import LOG, NORMAL, Holding
from ebbmq.core.holdings import placed
from ebbmq.core.origin import QUEUED, TO_TOPIC, destination_of, level_of
from ebbmq.core.row import DURABLE, HIGH, LOW48
from ebbmq.node.keeping.decision_log import Said
from ebbmq.policy.decay import Access, Phase, Score, has_crossed
from ebbmq.policy.placement import Pin, Placed, Terms, place, sole_choice
from ebbmq.policy.rules.properties import Properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.core.arrivals import Batch
    from ebbmq.core.envelope import Envelope
    from ebbmq.core.partition import Row
    from ebbmq.model import Message, QueueSpec, Scored
    from ebbmq.node.catalog import Catalog, Queue, Shard
    from ebbmq.policy.placement import Wanted
    from ebbmq.policy.rules.alike import Alike
    from ebbmq.policy.rules.choose import Choice, View

_ANSWERS_MAX: Final = 4_096
#: Rules come and go; of so many is known how often they chose.
_COUNTED_MAX: Final = 65_536
_NO_ACCESS: Final = Access()
#: Reasons for which a message stays in the log without a word.
_NOTHING_SAID: Final = frozenset({"", "default"})


class Stored(NamedTuple):
    """A message that is stored, with what placement asks about it."""

    row: Row
    #: The headers block; None where it is not at hand.
    headers: bytes | None
    holding: Holding
    access: Access
    review_at_ms: int | None
    #: What a plan holds it to.
    pin: Pin | None = None


class Answer(NamedTuple):
    """Where a message should be, and why."""

    holding: Holding
    devices: str
    reason: str
    #: The rule that chose the first device.
    rule: str | None = None
    #: The decision to tell of; None: it stays in the log because nothing is said of it.
    said: Said | None = None


def _answer(holding: Holding, devices: str, reason: str, rule: str | None = None) -> Answer:
    """An answer; who stays in the log has the one `NORMAL` holding."""
    if holding != NORMAL:
        return Answer(holding, devices, reason, rule, Said(devices, reason))
    said = None if reason in _NOTHING_SAID else Said(devices, reason)
    return Answer(NORMAL, devices, reason, rule, said)


class _Known(NamedTuple):
    """Answers for messages that share a queue and a client."""

    #: By what the rules see of a message.
    by_key: dict[object, Answer]
    #: By all that a message says of itself, which is quicker to compare than to understand.
    by_look: dict[object, Answer]


class _Asking:
    """Messages of one batch, as the rules are asked about them."""

    def __init__(self, queue: Queue, batch: Batch, client: str) -> None:
        self.spec, self.batch = queue.spec, batch
        self.sizes = list(map(sub, map(len, batch.payloads), batch.header_sizes))
        self.destination = TO_TOPIC if batch.topic else QUEUED
        self.client, self.consumer = client, queue.consumer

    def properties(self, number: int) -> Properties:
        """What one of them says of itself."""
        message, spec = self.batch.messages[number], self.spec
        importance = spec.default_importance if message.importance is None else message.importance
        return Properties(
            size=self.sizes[number] / limits.KIB,
            type=message.type,
            headers=message.headers or {},
            destination=self.destination,
            client_id=self.client,
            importance=float(importance),
            queue=spec.name,
            routing_key=message.key,
            producer=self.client,
            consumer=self.consumer,
            qos=self.batch.qos,
            store=message.store,
        )


def _looks(batch: Batch, sizes: Sequence[int], alike: Alike) -> list[object]:
    """All that messages say of themselves: their headers block, and what is not in it."""
    blocks = [
        payload[:size] for payload, size in zip(batch.payloads, batch.header_sizes, strict=True)
    ]
    told = [(message.importance, message.durable) for message in batch.messages]
    return list(zip(blocks, told, alike.sizes(sizes), strict=True))


class Placing:
    """Asks the rules for messages of one node."""

    def __init__(self, client: str, catalog: Catalog) -> None:
        """Makes one.

        Args:
            client: who published what no other client is noted for.
            catalog: which change of their parameters queues have, and whose score counts.
        """
        self._client = client
        self._catalog = catalog
        self._view: View | None = None
        #: What is asked of the devices in it.
        self._seen: object = None
        #: By what the messages of a batch share.
        self._answers: dict[object, _Known] = {}
        self._known = 0
        #: By what is the same in the choices of one device.
        self._sole: dict[object, Answer] = {}
        self._terms: dict[str, tuple[QueueSpec, Scored, Terms]] = {}
        #: By rule: messages whose device it chose as they came.
        self.placed: Counter[str] = Counter()

    def count(self, answers: Sequence[Answer]) -> None:
        """Messages came, and rules chose where they go."""
        self.placed.update([answer.rule for answer in answers if answer.rule is not None])

    def terms(self, spec: QueueSpec) -> Terms:
        """What a queue asks of placement: without a default device of its own, the node's log."""
        known, queue = self._terms.get(spec.name), self._catalog.queues.get(spec.name)
        scored: Scored = spec if queue is None else queue.scored
        if known is None or known[0] is not spec or known[1] is not scored:
            if known is not None:
                self._forget()
            version = self._catalog.version_of(spec.name)
            terms = replace(Terms.of(spec, default=LOG, version=version), score=Score.of(scored))
            known = self._terms[spec.name] = spec, scored, terms
        return known[2]

    def answers(self, shard: Shard, batch: Batch, view: View) -> list[Answer]:
        """Where each message of a batch should be."""
        self._forget_if_outdated(view)
        spec, alike = shard.queue.spec, view.chooser.alike
        self.terms(spec)  # of another specification nothing is known
        asking = _Asking(shard.queue, batch, batch.client or self._client)
        # What all messages of the batch have in common is told once.
        shared = (
            spec.name,
            alike.text("destination", asking.destination),
            alike.text("client_id", asking.client),
            alike.text("producer", asking.client),
            alike.text("consumer", asking.consumer),
            alike.text("qos", batch.qos),
        )
        known = self._answers.get(shared)
        if known is None:
            known = self._answers[shared] = _Known({}, {})
        if batch.has_ids:
            # A producer's id is among the headers: no two blocks are the same.
            return self._by_key(asking, range(len(batch.messages)), known, view)
        looks = _looks(batch, asking.sizes, alike)
        found = list(map(known.by_look.get, looks))
        missing = [number for number, answer in enumerate(found) if answer is None]
        if missing:
            if len(known.by_look) > _ANSWERS_MAX:
                known.by_look.clear()
            for number, answer in zip(
                missing, self._by_key(asking, missing, known, view), strict=True
            ):
                found[number] = known.by_look[looks[number]] = answer
        return found  # type: ignore[return-value]  # what was missing was asked for

    def _by_key(
        self, asking: _Asking, numbers: Sequence[int], known: _Known, view: View
    ) -> list[Answer]:
        """Answers for some messages of a batch, by what the rules see of them."""
        messages = [asking.batch.messages[number] for number in numbers]
        sizes = [asking.sizes[number] for number in numbers]
        keys = list(view.chooser.alike.keys(messages, sizes))
        answers = known.by_key
        for number, key in zip(numbers, keys, strict=True):
            if key not in answers:
                message = asking.batch.messages[number]
                answers[key] = self._ask(asking.spec, message, asking.properties(number), view)
                self._known += 1
        return [answers[key] for key in keys]

    def _forget_if_outdated(self, view: View) -> None:
        """Answers count while the rules are these and what is asked of the devices is the same."""
        if view is not self._view:
            before, self._view = self._view, view
            seen, self._seen = self._seen, view.chooser.alike.devices(view.states)
            if before is not None and before.chooser is view.chooser and seen == self._seen:
                return
        elif self._known <= _ANSWERS_MAX:
            return
        self._forget()

    def _forget(self) -> None:
        if len(self.placed) > _COUNTED_MAX:
            self.placed.clear()
        self._known = 0
        self._answers.clear()
        self._sole.clear()

    def _ask(self, spec: QueueSpec, message: Message, properties: Properties, view: View) -> Answer:
        terms, replicas = self.terms(spec), message.replicas or 1
        asked = Placed(
            properties=properties, terms=terms, durable=message.durable, replicas=replicas
        )
        sole, passed_over = sole_choice(asked, view), view.passed_over(properties)
        if sole is not None:
            return self._sole_answer(sole, passed_over, durable=message.durable)
        wanted = place(asked, 0, view)
        if not wanted.copies:
            return _answer(NORMAL, LOG, "")
        holding = placed(
            frozenset(wanted.copies),
            wanted.target,
            terms.min_copies,
            durable=message.durable,
            replicas=replicas,
        )
        rule = wanted.chosen_by.rule if wanted.chosen_by is not None else None
        return _answer(holding, ", ".join(wanted.copies), _reason(wanted, passed_over), rule)

    def _sole_answer(self, choice: Choice, passed_over: Choice | None, *, durable: bool) -> Answer:
        """What follows from a choice of one device; as few answers as there are rules."""
        reason = _by(choice, passed_over)
        key = choice.device, choice.rule, reason, durable
        found = self._sole.get(key)
        if found is None:
            holding = placed(frozenset({choice.device}), 1, 1, durable=durable)
            found = self._sole[key] = _answer(holding, choice.device, reason, choice.rule)
        return found

    def anew(self, shard: Shard, stored: Stored, now_ms: int, view: View) -> Wanted:
        """Where a stored message would be put if it came now."""
        return self._place(shard, stored, now_ms, view, copies=())

    def by_rules(self, shard: Shard, stored: Stored, now_ms: int, view: View) -> Wanted:
        """Where the rules want a stored message: one that is not fresh on a device of its tier."""
        score = self.terms(shard.queue.spec).score
        rate, age_ms = stored.access.rate_at(now_ms), now_ms - (stored.row[5] & LOW48)
        if score.phase(score.at(age_ms, rate)) is Phase.FRESH:
            return self.anew(shard, stored, now_ms, view)
        return self.again(shard, stored._replace(review_at_ms=now_ms, pin=None), now_ms, view)

    def again(self, shard: Shard, stored: Stored, now_ms: int, view: View) -> Wanted:
        """Where a stored message should be now."""
        return self._place(shard, stored, now_ms, view, copies=best_first(stored.holding, view))

    def _place(
        self, shard: Shard, stored: Stored, now_ms: int, view: View, *, copies: tuple[str, ...]
    ) -> Wanted:
        row, holding = stored.row, stored.holding
        spec = shard.queue.spec
        age_ms, rate = now_ms - (row[5] & LOW48), stored.access.rate_at(now_ms)
        read = envelope.unpack(stored.headers) if stored.headers else envelope.EMPTY
        replicas = _replicas(holding, read)
        return place(
            Placed(
                properties=Properties(
                    size=(row[11] - (row[7] >> HIGH)) / limits.KIB,
                    type=read.type,
                    headers=envelope.headers_of(read),
                    destination=destination_of(row[3]),
                    client_id=read.client or self._client,
                    importance=float(row[2]),
                    queue=spec.name,
                    routing_key=read.key,
                    producer=read.client or self._client,
                    consumer=shard.queue.consumer,
                    qos=level_of(row[3]),
                    store=read.store,
                    decay_score=self.terms(spec).score.at(age_ms, rate),
                    age=age_ms / limits.DAY_MS,
                    access_rate=rate,
                ),
                terms=self.terms(spec),
                durable=bool(row[1] & DURABLE),
                replicas=replicas,
                copies=copies,
                target=holding.target,
                enqueued_at_ms=row[5] & LOW48,
                access=stored.access,
                review_at_ms=stored.review_at_ms,
                generation=row[13],
                # Where it comes anew, as by an operator's rules, a plan counts no more.
                pin=stored.pin if copies else None,
                crossed_at_ms=_crossed_at_ms(self.terms(spec), stored, now_ms),
            ),
            now_ms,
            view,
        )


def replicas_of(stored: Stored) -> int:
    """How many copies the publisher of a message asked for."""
    read = envelope.unpack(stored.headers) if stored.headers else envelope.EMPTY
    return _replicas(stored.holding, read)


def _replicas(holding: Holding, read: Envelope) -> int:
    return max(holding.replicas, read.replicas or 1)


def _crossed_at_ms(terms: Terms, stored: Stored, now_ms: int) -> int:
    """When its score crossed a threshold after it was pinned, as far as that can matter."""
    pin = stored.pin
    if pin is None or not now_ms:
        return 0
    enqueued_at_ms = stored.row[5] & LOW48
    crossed = has_crossed(terms.score, enqueued_at_ms, stored.access, pin.decided_at_ms, now_ms)
    return now_ms if crossed else 0


def _reason(wanted: Wanted, passed_over: Choice | None) -> str:
    choice = wanted.chosen_by
    if choice is None:
        return "no device can be used"
    reason = _by(choice, passed_over)
    more = [device for device in wanted.copies[1:] if device != wanted.floor_added]
    if more:
        reason += f"; {', '.join(more)} as the message wants {wanted.target} copies"
    if wanted.floor_added is not None:
        reason += f"; {wanted.floor_added} because it is durable"
    return reason


def _by(choice: Choice, passed_over: Choice | None) -> str:
    if choice.rule is not None:
        return f"rule {choice.rule}"
    if passed_over is None:
        return choice.ground
    by = f"rule {passed_over.rule}" if passed_over.rule is not None else "rules"
    return f"{choice.ground}, as {passed_over.device} of {by} cannot be used"


def best_first(holding: Holding, view: View) -> tuple[str, ...]:
    """The reachable copies that are meant to stay, or are on their way; the volatile ones first."""
    states = view.states
    present = [
        device
        for device in holding.staying() | holding.pending
        if device in states and states[device].usable
    ]
    if not present and LOG in holding.leaving:
        present = [LOG]
    return tuple(sorted(present, key=lambda device: (states[device].durable, device)))
