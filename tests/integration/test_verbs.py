"""Every verb and error, the same in this process and over HTTP, blocking and awaitable."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import AdaptSpec, Message, QueueSpec, TopicSpec
from ebbmq.errors import (
    ClosedBroker,
    EbbError,
    InvalidMessage,
    InvalidSpec,
    LeaseLost,
    QueueFull,
    UnknownQueue,
)
from tests.serving import Running
from tests.verbs import OVER_HTTP, WAYS, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NUMBERS = itertools.count()
#: Longer than anything takes; who waits so long has not been woken.
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("server") / "data") as server:
        yield server.url
        assert server.stop() == 0


@pytest.fixture(scope="module", params=WAYS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    way = request.param
    address = request.getfixturevalue("url") if way in OVER_HTTP else None
    with Opened(way, tmp_path_factory.mktemp("embedded") / "data", address) as opened:
        yield opened.broker


@pytest.fixture
def fresh(broker: Any) -> Callable[..., str]:
    """Declares a queue nobody else uses."""

    def declare(name: str = "q", **fields: Any) -> str:
        queue = f"{name}-{next(NUMBERS)}"
        broker.declare(QueueSpec(queue, **fields))
        return queue

    return declare


@pytest.fixture
def queue(fresh: Callable[..., str]) -> str:
    return fresh(retry_delay_ms=0)


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def lease_one(broker: Any, queue: str, **options: Any) -> Any:
    (lease,) = broker.lease(queue, wait_ms=PATIENCE_MS, **options)
    return lease


def die(broker: Any, queue: str) -> None:
    """Fail everything that is ready until it is in the dead queue."""
    for lease in broker.lease(queue, count=100):
        broker.retry(queue, [lease.token], delay_ms=0)


class TestDeclaring:
    def test_what_is_declared_is_listed_as_it_was_declared(self, broker: Any) -> None:
        spec = QueueSpec(
            f"all-{next(NUMBERS)}",
            partitions=2,
            decay_rate=0.5,
            band_width=0.0,
            on_stale="dead_letter",
            dead_queue=f"dead-{next(NUMBERS)}",
            retention_ms=86_400_000,
            max_messages=1_000,
            overflow="drop_lowest",
            adapt=AdaptSpec(step=1.5),
            tiers=("ssd", "hdd"),
        )
        broker.declare(spec)
        known = {each.name: each for each in broker.queues()}
        assert known[spec.name] == spec
        assert spec.dead_queue in known

    def test_declaring_again_changes_the_queue_if_asked_to(self, broker: Any, queue: str) -> None:
        broker.declare(QueueSpec(queue, lease_timeout_ms=7_000), change=True)
        assert {each.name: each for each in broker.queues()}[queue].lease_timeout_ms == 7_000

    def test_a_deleted_queue_is_unknown(self, broker: Any, queue: str) -> None:
        broker.delete(queue)
        with pytest.raises(UnknownQueue):
            broker.publish(queue, [Message(b"m")])
        with pytest.raises(UnknownQueue):
            broker.delete(queue)

    @pytest.mark.parametrize(
        "name", ["a/b", "a b", "ä ö 漢字", "100%", "a?b=c&d#e", "..", ".", "%2F", "+", "q\\n"]
    )
    def test_any_printable_name_is_a_queue(self, broker: Any, name: str) -> None:
        broker.declare(QueueSpec(name))
        (receipt,) = broker.publish(name, [Message(name.encode())])
        assert broker.stats(name)["queue"] == name
        assert broker.why(receipt.id)["queue"] == name
        (lease,) = broker.lease(name)
        assert lease.body == name.encode()
        broker.ack(name, [lease.token])
        broker.delete(name)

    @pytest.mark.parametrize("spec", ["q", None, {"name": "q"}])
    def test_what_is_no_spec_is_refused(self, broker: Any, spec: Any) -> None:
        with pytest.raises(InvalidSpec):
            broker.declare(spec)
        with pytest.raises(InvalidSpec):
            broker.declare_topic(spec)

    def test_the_number_of_partitions_does_not_change(self, broker: Any, queue: str) -> None:
        with pytest.raises(InvalidSpec) as caught:
            broker.declare(QueueSpec(queue, partitions=3))
        assert caught.value.code == "invalid_spec"
        assert "partitions" in caught.value.detail
        assert caught.value.action


class TestPublishing:
    @pytest.mark.parametrize("confirm", [None, "memory", "written", "synced"])
    def test_every_level_gives_a_receipt_per_message(
        self, broker: Any, queue: str, confirm: Any
    ) -> None:
        receipts = broker.publish(queue, [Message(b"a"), Message(b"b")], confirm=confirm)
        assert len({receipt.id for receipt in receipts}) == 2
        assert [receipt.duplicate for receipt in receipts] == [False, False]
        assert bodies(broker.lease(queue, count=10)) == [b"a", b"b"]

    def test_one_message_need_not_be_a_list(self, broker: Any, queue: str) -> None:
        (receipt,) = broker.publish(queue, Message(b"one"), timeout_ms=PATIENCE_MS)
        assert lease_one(broker, queue).id == receipt.id

    def test_no_message_is_no_error(self, broker: Any, queue: str) -> None:
        assert broker.publish(queue, []) == []

    @pytest.mark.parametrize(
        ("body", "kind"),
        [
            (b"", "BYTE"),
            (bytes(range(256)), "BYTE"),
            ("text äö漢字 \x00 \U0001f600".encode(), "TEXT"),
            (b"\xff not utf-8", "TEXT"),
            (b"{}", "application/json"),
            (b"x" * 1_000_000, "BYTE"),
        ],
    )
    def test_a_body_arrives_byte_by_byte_with_its_type(
        self, broker: Any, queue: str, body: bytes, kind: str
    ) -> None:
        broker.publish(queue, [Message(body, type=kind)])
        (peeked,) = broker.peek(queue)
        lease = lease_one(broker, queue)
        assert (peeked.body, peeked.type) == (lease.body, lease.type) == (body, kind)

    def test_every_field_of_a_message_arrives(self, broker: Any, queue: str) -> None:
        headers = {"tenant": "acme", "leer": "", "ü": "\n"}
        message = Message(
            b"m",
            importance=9,
            ttl_ms=3_600_000,
            decay_rate=0.5,
            headers=headers,
            key="k",
            replicas=1,
            durable=False,
        )
        (receipt,) = broker.publish(queue, [message])
        lease = lease_one(broker, queue)
        assert lease.id == receipt.id
        assert (lease.importance, lease.ttl_ms, lease.decay_rate) == (9, 3_600_000, 0.5)
        assert dict(lease.headers) == headers
        assert 8.9 < lease.current_importance <= 9
        assert (lease.attempt, lease.failures, lease.latency_history) == (1, 0, ())
        assert lease.deadline_ms > lease.enqueued_at_ms

    def test_the_most_important_is_delivered_first(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"low", importance=1), Message(b"high", importance=10)])
        assert bodies(broker.lease(queue, count=2)) == [b"high", b"low"]

    def test_an_id_of_the_producer_is_stored_once(self, broker: Any, queue: str) -> None:
        message = Message(b"m", id="invoice-17")
        (first,) = broker.publish(queue, [message])
        second, other = broker.publish(queue, [message, Message(b"m")])
        assert (second.id, second.duplicate) == (first.id, True)
        assert (other.id != first.id, other.duplicate) == (True, False)
        assert broker.stats(queue)["depth"]["ready"] == 2

    def test_a_delayed_message_is_scheduled(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"later", delay_ms=3_600_000)])
        assert broker.lease(queue) == []
        (peeked,) = broker.peek(queue, state="scheduled")
        assert (peeked.body, peeked.state) == (b"later", "scheduled")

    def test_a_full_queue_takes_nothing_of_a_batch(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        queue = fresh(max_messages=2)
        with pytest.raises(QueueFull) as caught:
            broker.publish(queue, [Message(b"m")] * 3)
        assert caught.value.code == "queue_full"
        assert "2" in caught.value.detail
        assert broker.stats(queue)["depth"]["ready"] == 0

    @pytest.mark.parametrize(
        "messages", [b"m", b"", "m", "", None, 7, [b"m"], [None], {"body": b""}]
    )
    def test_what_is_no_message_is_refused(self, broker: Any, queue: str, messages: Any) -> None:
        with pytest.raises(InvalidMessage):
            broker.publish(queue, messages)

    def test_an_unknown_level_is_refused(self, broker: Any, queue: str) -> None:
        with pytest.raises(InvalidMessage) as caught:
            broker.publish(queue, [Message(b"m")], confirm="sometime")
        assert "synced" in caught.value.action

    def test_headers_beyond_their_bound_are_refused(self, broker: Any, queue: str) -> None:
        with pytest.raises(InvalidMessage) as caught:
            broker.publish(queue, [Message(b"m", headers={"h": "x" * 100_000})])
        assert "header" in caught.value.detail


class TestTopics:
    def test_every_subscribed_queue_gets_the_message(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        topic = f"news-{next(NUMBERS)}"
        mail, web, other = fresh("mail"), fresh("web"), fresh("other")
        broker.declare_topic(TopicSpec(topic, max_age_ms=86_400_000))
        for queue in (mail, web, other):
            broker.subscribe(topic, queue)
        broker.unsubscribe(topic, other)
        receipts = broker.publish_topic(topic, [Message(b"a"), Message(b"b")])
        assert {queue: len(each) for queue, each in receipts.items()} == {mail: 2, web: 2}
        assert not any(receipt.duplicate for each in receipts.values() for receipt in each)
        assert bodies(broker.lease(mail, count=5)) == bodies(broker.lease(web, count=5))
        assert broker.stats(other)["depth"]["ready"] == 0
        shown = {(each["topic"], each["max_age_ms"], *each["queues"]) for each in broker.topics()}
        assert (topic, 86_400_000, mail, web) in shown

    def test_a_deleted_topic_is_unknown_and_its_queues_keep_what_they_got(
        self, broker: Any, queue: str
    ) -> None:
        topic = f"news-{next(NUMBERS)}"
        broker.declare_topic(TopicSpec(topic))
        broker.subscribe(topic, queue)
        broker.publish_topic(topic, [Message(b"kept")])
        broker.delete_topic(topic)
        assert topic not in [each["topic"] for each in broker.topics()]
        for call in (
            lambda: broker.publish_topic(topic, [Message(b"m")]),
            lambda: broker.delete_topic(topic),
        ):
            with pytest.raises(UnknownQueue, match=topic):
                call()
        assert bodies(broker.peek(queue)) == [b"kept"]
        broker.declare_topic(TopicSpec(topic))
        assert broker.publish_topic(topic, [Message(b"m")]) == {}

    def test_an_unknown_topic_or_queue_is_named(self, broker: Any, queue: str) -> None:
        topic = f"topic-{next(NUMBERS)}"
        broker.declare_topic(TopicSpec(topic))
        for call in (
            lambda: broker.publish_topic("no-topic", [Message(b"m")]),
            lambda: broker.subscribe("no-topic", queue),
            lambda: broker.subscribe(topic, "no-queue"),
            lambda: broker.unsubscribe(topic, "no-queue"),
            lambda: broker.delete_topic("no-topic"),
        ):
            with pytest.raises(UnknownQueue):
                call()


class TestLeasing:
    def test_nothing_ready_is_an_empty_list(self, broker: Any, queue: str) -> None:
        assert broker.lease(queue) == []
        assert broker.lease(queue, wait_ms=5) == []

    def test_a_wait_ends_when_a_message_arrives(self, broker: Any, queue: str) -> None:
        found: list[Any] = []
        waiting = threading.Thread(
            target=lambda: found.extend(broker.lease(queue, wait_ms=PATIENCE_MS))
        )
        waiting.start()
        broker.publish(queue, [Message(b"news")])
        waiting.join(PATIENCE_MS / 1_000)
        assert bodies(found) == [b"news"]

    def test_a_named_lease_is_the_same_when_asked_for_again(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"a"), Message(b"b"), Message(b"c")])
        first = broker.lease(queue, count=2, name="mine")
        again = broker.lease(queue, count=2, name="mine")
        assert [lease.token for lease in again] == [lease.token for lease in first]
        assert bodies(broker.read_lease(queue, "mine")) == [b"a", b"b"]
        assert bodies(broker.read_lease(queue, "mine", 1, 2)) == [b"b"]
        broker.ack(queue, [first[0].token])
        assert bodies(broker.read_lease(queue, "mine")) == [b"b"]
        assert broker.read_lease(queue, "nobody's") == []

    def test_an_expired_lease_is_lost_and_its_message_comes_back(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"m")])
        first = lease_one(broker, queue, lease_timeout_ms=1)
        second = lease_one(broker, queue)
        assert (second.id, second.attempt, second.failures) == (first.id, 2, 1)
        with pytest.raises(LeaseLost):
            broker.ack(queue, [first.token])
        broker.ack(queue, [second.token])

    @pytest.mark.parametrize(
        "arguments",
        [
            {"count": 0},
            {"count": -1},
            {"count": 1_000_000},
            {"count": True},
            {"count": "1"},
            {"count": 1.5},
            {"wait_ms": -1},
            {"wait_ms": None},
            {"lease_timeout_ms": 0},
            {"lease_timeout_ms": "long"},
        ],
    )
    def test_arguments_that_make_no_sense_are_refused(
        self, broker: Any, queue: str, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidMessage) as caught:
            broker.lease(queue, **arguments)
        assert next(iter(arguments)) in caught.value.detail


class TestSettling:
    @pytest.mark.parametrize("confirm", ["memory", "written", "synced"])
    def test_what_is_acked_is_gone(self, broker: Any, queue: str, confirm: Any) -> None:
        broker.publish(queue, [Message(b"a"), Message(b"b")])
        leases = broker.lease(queue, count=2)
        broker.ack(queue, [lease.token for lease in leases], confirm=confirm)
        assert sum(broker.stats(queue)["depth"].values()) == 0
        assert broker.stats(queue)["totals"]["acked"] == 2

    def test_a_retried_message_comes_back_with_its_failure(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"m")])
        broker.retry(queue, [lease_one(broker, queue).token], delay_ms=0)
        again = lease_one(broker, queue)
        assert (again.attempt, again.failures) == (2, 1)
        (timing,) = again.latency_history
        assert (timing.attempt, timing.outcome) == (1, "retried")

    def test_a_retry_waits_out_its_delay(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"m")])
        broker.retry(queue, [lease_one(broker, queue).token], delay_ms=3_600_000)
        assert broker.stats(queue)["depth"]["scheduled"] == 1

    def test_a_released_message_keeps_its_place_without_a_failure(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"a"), Message(b"b")])
        broker.release(queue, [lease_one(broker, queue).token])
        again = lease_one(broker, queue)
        assert (again.body, again.failures) == (b"a", 0)

    def test_an_extended_lease_has_a_later_deadline(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"m")])
        lease = lease_one(broker, queue, name="x")
        broker.extend(queue, [lease.token], 86_400_000)
        (extended,) = broker.read_lease(queue, "x")
        assert extended.deadline_ms > lease.deadline_ms
        broker.ack(queue, iter([lease.token]))

    @pytest.mark.parametrize("verb", ["ack", "retry", "release", "extend"])
    def test_valid_tokens_apply_and_the_others_are_named(
        self, broker: Any, queue: str, verb: str
    ) -> None:
        more = (60_000,) if verb == "extend" else ()
        broker.publish(queue, [Message(b"a"), Message(b"b")])
        done, open_ = broker.lease(queue, count=2)
        broker.ack(queue, [done.token])
        with pytest.raises(LeaseLost) as caught:
            getattr(broker, verb)(queue, [done.token, open_.token, "no token"], *more)
        assert caught.value.tokens == [done.token, "no token"]
        assert caught.value.code == "lease_lost"
        leased = broker.stats(queue)["depth"]["leased"]
        assert leased == (1 if verb == "extend" else 0)

    @pytest.mark.parametrize("verb", ["ack", "retry", "release", "extend"])
    @pytest.mark.parametrize("tokens", ["a token", b"bytes", None, 7, [7], [None]])
    def test_what_are_no_tokens_is_refused(
        self, broker: Any, queue: str, verb: str, tokens: Any
    ) -> None:
        more = (60_000,) if verb == "extend" else ()
        with pytest.raises(InvalidMessage):
            getattr(broker, verb)(queue, tokens, *more)

    @pytest.mark.parametrize("value", [-1, 1.5, "1", True, 10**18])
    def test_durations_that_make_no_sense_are_refused(
        self, broker: Any, queue: str, value: Any
    ) -> None:
        with pytest.raises(InvalidMessage):
            broker.retry(queue, [], delay_ms=value)
        with pytest.raises(InvalidMessage):
            broker.extend(queue, [], value)

    def test_no_tokens_are_no_error(self, broker: Any, queue: str) -> None:
        broker.ack(queue, [])
        broker.retry(queue, [])
        broker.release(queue, [])
        broker.extend(queue, [], 1_000)

    def test_an_unknown_level_is_refused(self, broker: Any, queue: str) -> None:
        with pytest.raises(InvalidMessage):
            broker.ack(queue, [], confirm="sometime")


class TestConsuming:
    @pytest.mark.parametrize("batch", [1, 2, 10])
    def test_what_was_worked_on_is_acked(self, broker: Any, queue: str, batch: int) -> None:
        broker.publish(queue, [Message(b"%d" % n) for n in range(5)])
        seen = [m.body for m in broker.consume(queue, batch=batch, wait_ms=0, stop_when_empty=True)]
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
        assert broker.stats(queue)["totals"]["acked"] == 5

    def test_an_exception_gives_back_the_message_as_failed_and_releases_the_rest(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"a"), Message(b"b"), Message(b"c")])
        loop = broker.consume(queue, batch=3)
        assert next(loop).body == b"a"
        with pytest.raises(RuntimeError, match="work failed"):
            loop.throw(RuntimeError("work failed"))
        messages = {m.body: m.failures for m in broker.lease(queue, count=3, wait_ms=PATIENCE_MS)}
        while len(messages) < 3:
            lease = lease_one(broker, queue)
            messages[lease.body] = lease.failures
        assert messages == {b"a": 1, b"b": 0, b"c": 0}

    def test_leaving_the_loop_gives_the_message_back(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"m")])
        loop = broker.consume(queue)
        next(loop)
        loop.close()
        assert lease_one(broker, queue).failures == 1

    def test_leases_are_extended_while_the_work_lasts(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        queue = fresh(lease_timeout_ms=3_000)
        broker.publish(queue, [Message(b"m")])
        loop = broker.consume(queue)
        first = next(loop)
        until = time.monotonic() + PATIENCE_MS / 1_000
        while broker.peek(queue, state="leased")[0].deadline_ms <= first.deadline_ms:
            assert time.monotonic() < until
            time.sleep(0.05)
        loop.close()

    def test_an_unknown_queue_is_named(self, broker: Any) -> None:
        with pytest.raises(UnknownQueue):
            next(broker.consume("no-queue"))


class TestLooking:
    def test_a_peek_shows_what_is_delivered_next_and_changes_nothing(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"low", importance=2), Message(b"high", importance=8)])
        assert bodies(broker.peek(queue)) == [b"high", b"low"]
        assert bodies(broker.peek(queue, 1)) == [b"high"]
        assert broker.stats(queue)["totals"]["leased"] == 0

    def test_where_chooses_beyond_the_first(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"%d" % n) for n in range(200)])
        with pytest.raises(InvalidMessage):
            broker.peek(queue, 2, where=bool, counted=True)
        assert len(broker.peek(queue, 2, counted=True)) == 2
        found = broker.peek(queue, 2, where=lambda message: message.body.endswith(b"99"))
        assert bodies(found) == [b"99", b"199"]
        assert broker.peek(queue, 2, where=lambda message: False) == []

    def test_an_error_of_where_is_the_callers(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"m")])
        with pytest.raises(ZeroDivisionError):
            broker.peek(queue, where=lambda message: 1 // 0 == 0)

    def test_an_unknown_state_is_refused(self, broker: Any, queue: str) -> None:
        with pytest.raises(InvalidMessage) as caught:
            broker.peek(queue, state="lost")
        assert "scheduled" in caught.value.action

    def test_stats_count_everything(self, broker: Any, queue: str) -> None:
        broker.publish(queue, [Message(b"1234", importance=9), Message(b"5678")])
        broker.lease(queue)
        stats = broker.stats(queue)
        assert stats["queue"] == queue
        assert stats["depth"] == {
            "ready": 1,
            "leased": 1,
            "scheduled": 0,
            "replicating": 0,
            "dying": 0,
        }
        assert stats["by_importance"] == {5: 1, 9: 1}
        assert stats["bytes"] >= 8
        assert set(stats["rates"]) == {"publish", "lease", "ack", "retry"}
        assert set(stats["cache"]) == {"bytes", "hits", "misses"}
        assert (stats["totals"]["published"], stats["totals"]["leased"]) == (2, 1)
        assert (stats["decay_factor"], stats["paused"]) == (1.0, False)
        assert stats["partitions"][0]["state"] == "ok"
        assert stats["residency"] == "normal"
        assert stats["oldest_age_ms"] >= 0

    def test_why_tells_where_a_message_is_and_how_it_left(self, broker: Any, queue: str) -> None:
        acked, purged = broker.publish(queue, [Message(b"a"), Message(b"b")])
        assert broker.why(acked.id)["state"] == "ready"
        assert broker.why(acked.id)["queue"] == queue
        broker.ack(queue, [lease_one(broker, queue).token])
        broker.purge(queue)
        assert broker.why(acked.id)["state"] == "gone"
        why = broker.why(purged.id)
        assert (why["state"], why["reason"]) == ("removed", "purged")

    def test_why_tells_the_ttl_the_rate_and_until_when_a_message_is_leased(
        self, broker: Any, queue: str
    ) -> None:
        (sent,) = broker.publish(queue, [Message(b"a", ttl_ms=3_600_000, decay_rate=0.25)])
        told = broker.why(sent.id)
        assert (told["ttl_ms"], told["decay_rate"], told["deadline_ms"]) == (3_600_000, 0.25, None)
        lease = lease_one(broker, queue)
        assert broker.why(sent.id)["deadline_ms"] == lease.deadline_ms
        (plain,) = broker.publish(queue, [Message(b"b")])
        assert broker.why(plain.id)["ttl_ms"] is None

    @pytest.mark.parametrize("identity", ["", "what", "1-zz", "a/b", "../queues"])
    def test_what_is_no_id_is_refused(self, broker: Any, identity: str) -> None:
        with pytest.raises(InvalidMessage):
            broker.why(identity)

    def test_health_is_told(self, broker: Any) -> None:
        told = {"ready": True, "problems": [], "damage": [], "devices": [], "feed": []}
        assert broker.health() == told


class TestManaging:
    def test_a_paused_queue_grants_nothing_until_it_is_resumed(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"m")])
        broker.pause(queue)
        assert broker.lease(queue) == []
        assert broker.stats(queue)["paused"] is True
        broker.resume(queue)
        assert lease_one(broker, queue).body == b"m"

    def test_a_purge_removes_what_is_not_leased_on_the_record(
        self, broker: Any, queue: str
    ) -> None:
        receipts = broker.publish(queue, [Message(b"a"), Message(b"b"), Message(b"c")])
        broker.lease(queue)
        assert broker.purge(queue) == 2
        assert broker.purge(queue) == 0
        removals = broker.removals(queue)
        assert [removal.id for removal in removals] == [receipt.id for receipt in receipts[1:]]
        assert {(removal.reason, removal.queue) for removal in removals} == {("purged", queue)}
        assert broker.removals(queue, reason="stale") == []
        assert broker.removals(queue, since_ms=removals[0].at_ms + 86_400_000) == []
        with pytest.raises(InvalidMessage):
            broker.removals(queue, reason="boredom")

    def test_what_a_deleted_queue_held_stays_on_the_record(self, broker: Any, queue: str) -> None:
        acked, leased, ready = broker.publish(queue, [Message(b"a"), Message(b"b"), Message(b"c")])
        broker.ack(queue, [lease_one(broker, queue).token])
        broker.lease(queue)
        broker.delete(queue)
        removals = broker.removals(queue)
        assert {(removal.id, removal.reason) for removal in removals} == {
            (leased.id, "deleted"),
            (ready.id, "deleted"),
        }
        assert (broker.why(acked.id)["queue"], broker.why(acked.id)["state"]) == (queue, "gone")
        assert (broker.why(ready.id)["queue"], broker.why(ready.id)["state"]) == (queue, "removed")
        never = f"{ready.id.split('-')[0]}-ff"
        assert broker.why(never)["state"] == "unknown"
        broker.declare(QueueSpec(queue))
        assert broker.removals(queue) == removals

    def test_dead_messages_go_back_to_where_they_came_from(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        dead = fresh("dead")
        queue = fresh(dead_queue=dead, max_attempts=1)
        broker.publish(queue, [Message(b"a", headers={"h": "1"}), Message(b"b")])
        die(broker, queue)
        assert broker.stats(dead)["depth"]["ready"] == 2
        assert broker.redrive(dead) == 2
        assert broker.redrive(dead) == 0
        lease = lease_one(broker, queue)
        assert (lease.body, lease.headers["h"]) == (b"a", "1")

    def test_where_and_to_choose_what_is_redriven_and_where_to(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        dead, other = fresh("dead"), fresh("other")
        queue = fresh(dead_queue=dead, max_attempts=1)
        broker.publish(queue, [Message(b"%d" % n) for n in range(20)])
        die(broker, queue)
        moved = broker.redrive(dead, to=other, where=lambda m: m.body.endswith(b"7"))
        assert moved == 2
        assert bodies(broker.lease(other, count=10)) == [b"7", b"17"]
        assert broker.redrive(dead, where=lambda m: False) == 0
        assert broker.stats(dead)["depth"]["ready"] == 18

    def test_what_knows_no_way_back_stays_and_holds_up_nobody(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        dead = fresh("dead")
        queue = fresh(dead_queue=dead, max_attempts=1)
        source = "x-ebbmq-source"
        lost = [
            broker.publish(dead, Message(b"lost", headers=headers, importance=10))[0].id
            for headers in ({}, {source: "no-queue"}, {source: dead})
        ]
        broker.publish(queue, [Message(b"a"), Message(b"b")])
        die(broker, queue)
        assert broker.redrive(dead) == 2
        assert [seen.id for seen in broker.peek(dead)] == lost
        with pytest.raises(UnknownQueue) as caught:
            broker.redrive(dead)
        assert lost[0] in caught.value.detail
        assert "to=" in caught.value.action
        assert broker.redrive(dead, to=queue) == 3

    def test_a_queue_is_not_redriven_to_itself(self, broker: Any, queue: str) -> None:
        broker.publish(queue, Message(b"m"))
        with pytest.raises(InvalidMessage) as caught:
            broker.redrive(queue, to=queue)
        assert queue in caught.value.detail
        assert len(broker.peek(queue)) == 1

    def test_a_redrive_that_cannot_be_is_refused(self, broker: Any, queue: str) -> None:
        with pytest.raises(UnknownQueue):
            broker.redrive(queue, to="no-queue")
        with pytest.raises(InvalidMessage):
            broker.redrive(queue, rate=0)
        with pytest.raises(InvalidMessage):
            broker.redrive(queue, rate=-1)

    def test_a_decay_factor_holds_until_its_instant(
        self, broker: Any, fresh: Callable[..., str]
    ) -> None:
        queue = fresh(decay_rate=0.1)
        broker.publish(queue, [Message(b"before")])
        (before,) = broker.peek(queue)
        broker.set_decay_factor(queue, 2.0, before.enqueued_at_ms + 86_400_000, "run-1")
        assert broker.stats(queue)["decay_factor"] == 2.0
        broker.publish(queue, [Message(b"after")])
        (after,) = broker.peek(queue, where=lambda message: message.body == b"after")
        assert after.decay_rate == pytest.approx(2 * before.decay_rate, abs=0.01)

    def test_a_decay_factor_until_an_instant_that_is_past_is_refused(
        self, broker: Any, queue: str
    ) -> None:
        broker.publish(queue, [Message(b"m")])
        (seen,) = broker.peek(queue)
        with pytest.raises(InvalidSpec, match="until_ms") as caught:
            broker.set_decay_factor(queue, 2.0, seen.enqueued_at_ms)
        assert "past" in caught.value.detail
        assert broker.stats(queue)["decay_factor"] == 1.0

    def test_a_backup_is_a_store(self, broker: Any, queue: str, tmp_path: Path) -> None:
        broker.publish(queue, [Message(b"kept")])
        told: list[tuple[int, int]] = []
        copied = broker.backup(tmp_path / "copy", lambda done, total: told.append((done, total)))
        assert copied > 0
        assert told[-1][0] == told[-1][1]
        with Opened("Broker", tmp_path / "copy") as copy:
            assert bodies(copy.broker.peek(queue)) == [b"kept"]


VERBS: dict[str, Any] = {
    "delete": lambda broker, queue: broker.delete(queue),
    "publish": lambda broker, queue: broker.publish(queue, [Message(b"m")]),
    "lease": lambda broker, queue: broker.lease(queue),
    "read_lease": lambda broker, queue: broker.read_lease(queue, "x"),
    "ack": lambda broker, queue: broker.ack(queue, ["00" * 24]),
    "retry": lambda broker, queue: broker.retry(queue, ["00" * 24]),
    "release": lambda broker, queue: broker.release(queue, ["00" * 24]),
    "extend": lambda broker, queue: broker.extend(queue, ["00" * 24], 1_000),
    "peek": lambda broker, queue: broker.peek(queue),
    "redrive": lambda broker, queue: broker.redrive(queue),
    "stats": lambda broker, queue: broker.stats(queue),
    "removals": lambda broker, queue: broker.removals(queue),
    "pause": lambda broker, queue: broker.pause(queue),
    "resume": lambda broker, queue: broker.resume(queue),
    "purge": lambda broker, queue: broker.purge(queue),
    "set_decay_factor": lambda broker, queue: broker.set_decay_factor(queue, 2.0, 1),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["no-queue", "", "no/queue", None, 7])
def test_an_unknown_queue_is_named_by_every_verb(broker: Any, verb: str, name: Any) -> None:
    with pytest.raises(UnknownQueue) as caught:
        VERBS[verb](broker, name)
    assert caught.value.code == "unknown_queue"
    assert caught.value.action
    assert str(name) in caught.value.detail


@pytest.mark.parametrize("way", WAYS)
def test_what_was_closed_says_so(way: str, tmp_path: Path, url: str) -> None:
    with Opened(way, tmp_path / "data", url) as opened:
        opened.broker.close()
        with pytest.raises(ClosedBroker) as caught:
            opened.broker.queues()
        assert isinstance(caught.value, EbbError)
        opened.broker.close()
