"""The history checker is proven by histories it must refuse and histories it must accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.history import (
    Drained,
    Event,
    Grant,
    LeaseCall,
    Options,
    Publish,
    Removed,
    Restart,
    Sent,
    Settle,
    check,
)

if TYPE_CHECKING:
    from tests.history.events import Level, Outcome, RestartKind, Verb

TIMEOUT_MS = 1_000


class Story:
    """Writes a history in the order in which things happen; every call takes two stamps."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stamp = 0
        self.now_ms = 10_000
        self.ids: dict[bytes, str] = {}
        self.tokens: dict[bytes, str] = {}
        self.tries: dict[bytes, int] = {}

    def next(self) -> int:
        self.stamp += 1
        return self.stamp

    def publish(
        self,
        *bodies: bytes,
        queue: str = "q",
        level: Level = "synced",
        outcome: Outcome = "ok",
        sent: Sent | None = None,
    ) -> None:
        messages = (sent,) if sent else tuple(Sent(body) for body in bodies)
        for message in messages:
            self.ids.setdefault(message.body, f"1-{len(self.ids) + 1:x}")
        ids = tuple(self.ids[m.body] for m in messages) if outcome == "ok" else ()
        started = self.next()
        ended = None if outcome == "unknown" else self.next()
        self.events.append(Publish(started, ended, queue, level, messages, outcome, ids))

    def lease(
        self, *bodies: bytes, queue: str = "q", asked: int | None = None, **changes: int | str
    ) -> None:
        grants = tuple(self.grant(body, **changes) for body in bodies)
        self.events.append(LeaseCall(self.next(), self.next(), queue, "ok", grants, asked))

    def grant(self, body: bytes, **changes: int | str) -> Grant:
        self.tries[body] = self.tries.get(body, 0) + 1
        self.tokens[body] = f"token {body!r} {self.tries[body]}"
        values = {
            "id": self.ids.get(body, "9-9"),
            "token": self.tokens[body],
            "attempt": self.tries[body],
            "failures": 0,
            "band": 5,
            "enqueued_at_ms": 10_000,
            "granted_at_ms": self.now_ms,
            "deadline_ms": self.now_ms + TIMEOUT_MS,
        } | changes
        return Grant(body=body, **values)  # type: ignore[arg-type]  # a table of mixed values

    def settle(
        self,
        verb: Verb,
        body: bytes,
        *,
        outcome: Outcome = "ok",
        level: Level = "written",
        token: str | None = None,
        **times: int,
    ) -> None:
        started = self.next()
        ended = None if outcome == "unknown" else self.next()
        token = self.tokens[body] if token is None else token
        self.events.append(
            Settle(started, ended, "q", verb, token, outcome, level, self.now_ms, **times)
        )

    def remove(self, body: bytes, reason: str, moved_to: str | None = None) -> None:
        self.events.append(Removed(self.next(), "q", self.ids[body], reason, moved_to))

    def restart(self, kind: RestartKind) -> None:
        self.events.append(Restart(self.next(), kind))

    def drain(self, *bodies: bytes, queue: str = "q") -> None:
        found = tuple((self.ids.get(body, "9-9"), body) for body in bodies)
        self.events.append(Drained(self.next(), queue, found))

    def expire(self) -> None:
        self.now_ms += TIMEOUT_MS

    def kinds(self, options: Options | None = None) -> set[str]:
        return {violation.kind for violation in check(self.events, options)}


ORDERED = Options(ordered=frozenset({"q"}))


def test_a_confirmed_message_that_is_nowhere_is_lost() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.drain(b"a")
    assert story.kinds() == {"lost"}


def test_a_written_message_must_survive_a_kill() -> None:
    story = Story()
    story.publish(b"a", level="written")
    story.restart("kill")
    story.drain()
    assert story.kinds() == {"lost"}


def test_a_synced_message_must_survive_a_power_cut() -> None:
    story = Story()
    story.publish(b"a", level="synced")
    story.restart("power")
    story.drain()
    assert story.kinds() == {"lost"}


def test_a_memory_message_must_survive_a_clean_close() -> None:
    story = Story()
    story.publish(b"a", level="memory")
    story.restart("clean")
    story.drain()
    assert story.kinds() == {"lost"}


def test_an_unconfirmed_message_that_was_delivered_cannot_vanish() -> None:
    story = Story()
    story.publish(b"a", outcome="unknown")
    story.restart("kill")
    story.lease(b"a")
    story.restart("power")
    story.drain()
    assert story.kinds() == {"lost"}


def test_a_refused_ack_does_not_excuse_a_missing_message() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.expire()
    story.settle("ack", b"a", outcome="failed")
    story.drain()
    assert story.kinds() == {"lost"}


def test_an_unconfirmed_ack_shown_not_to_hold_does_not_excuse_a_missing_message() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", outcome="unknown")
    story.restart("kill")
    story.expire()
    story.lease(b"a", failures=1)
    story.drain()
    assert story.kinds() == {"lost"}


def test_a_dead_lettered_message_must_be_in_the_dead_queue() -> None:
    story = Story()
    story.publish(b"a")
    story.remove(b"a", "max_attempts", moved_to="2-1")
    story.drain()
    story.drain(queue="q.dead")
    assert story.kinds(Options(dead_queues={"q": "q.dead"})) == {"lost"}


def test_a_message_that_nobody_published_is_unexpected() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a", b"ghost")
    story.settle("ack", b"a")
    assert story.kinds() == {"unexpected"}


def test_a_message_found_in_the_drain_of_another_queue_is_unexpected() -> None:
    story = Story()
    story.publish(b"a")
    story.drain(b"a")
    story.drain(b"a", queue="other")
    assert story.kinds() == {"unexpected"}


def test_a_body_delivered_under_the_id_of_another_message_is_unexpected() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a", id=story.ids[b"b"])
    assert "unexpected" in story.kinds()


def test_changed_bytes_are_unexpected() -> None:
    story = Story()
    story.publish(b"abc")
    story.lease(b"abd", id=story.ids[b"abc"])
    assert "unexpected" in story.kinds()


def test_a_message_whose_publish_was_refused_is_unexpected() -> None:
    story = Story()
    story.publish(b"a", outcome="failed")
    story.lease(b"a")
    assert story.kinds() == {"unexpected"}


def test_a_message_delivered_before_its_publish_is_unexpected() -> None:
    story = Story()
    story.lease(b"a", id="1-1")
    story.publish(b"a")
    assert story.kinds() == {"unexpected"}


def test_two_messages_with_one_receipt_id_are_unexpected() -> None:
    story = Story()
    story.publish(b"a")
    story.ids[b"b"] = story.ids[b"a"]
    story.publish(b"b")
    assert story.kinds() == {"unexpected"}


def test_an_id_twice_in_the_final_drain_is_duplicated() -> None:
    story = Story()
    story.publish(b"a")
    story.drain(b"a", b"a")
    assert story.kinds() == {"duplicated"}


def test_a_message_published_twice_under_one_producer_id_is_duplicated() -> None:
    story = Story()
    story.publish(sent=Sent(b"a", producer_id="p1"))
    story.ids[b"a"] = "1-2"
    story.publish(sent=Sent(b"a", producer_id="p1"))
    assert story.kinds() == {"duplicated"}


def test_a_message_delivered_under_two_ids_is_duplicated() -> None:
    story = Story()
    story.publish(b"a", outcome="unknown")
    story.restart("kill")
    story.lease(b"a", id="1-1")
    story.expire()
    story.lease(b"a", id="1-2", failures=1, attempt=1)
    assert story.kinds() == {"duplicated"}


def test_a_synced_ack_must_hold_after_a_power_cut() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", level="synced")
    story.restart("power")
    story.expire()
    story.lease(b"a")
    assert story.kinds() == {"acked_back"}


def test_a_written_ack_must_hold_after_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", level="written")
    story.restart("kill")
    story.drain(b"a")
    assert story.kinds() == {"acked_back"}


def test_an_acked_message_is_not_in_the_final_drain() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", level="memory")
    story.drain(b"a")
    assert story.kinds() == {"acked_back"}


def test_a_removed_message_must_not_come_back() -> None:
    story = Story()
    story.publish(b"a")
    story.remove(b"a", "stale")
    story.restart("kill")
    story.lease(b"a")
    assert story.kinds() == {"removed_back"}


def test_messages_of_one_publish_are_first_delivered_in_their_order() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"b")
    story.lease(b"a")
    assert story.kinds(ORDERED) == {"order"}


def test_messages_of_sequential_publishes_are_first_delivered_in_their_order() -> None:
    story = Story()
    story.publish(b"a")
    story.publish(b"b")
    story.lease(b"b")
    story.lease(b"a")
    assert story.kinds(ORDERED) == {"order"}


def test_messages_of_one_lease_call_are_in_order() -> None:
    story = Story()
    story.publish(b"a")
    story.publish(b"b")
    story.lease(b"b", b"a")
    assert story.kinds(ORDERED) == {"order"}


def test_order_holds_across_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.publish(b"b")
    story.lease(b"b")
    story.restart("kill")
    story.lease(b"a")
    assert story.kinds(ORDERED) == {"order"}


def test_a_lower_band_is_not_served_while_a_higher_one_is_ready() -> None:
    story = Story()
    story.publish(sent=Sent(b"low", importance=2))
    story.publish(sent=Sent(b"high", importance=9))
    story.lease(b"low", band=2)
    story.lease(b"high", band=9)
    assert story.kinds(ORDERED) == {"band_order"}


def test_a_lower_band_does_not_stand_before_a_higher_one_in_one_lease_call() -> None:
    story = Story()
    story.publish(sent=Sent(b"low", importance=2))
    story.publish(sent=Sent(b"high", importance=9))
    low = story.grant(b"low", band=2)
    high = story.grant(b"high", band=9)
    story.events.append(LeaseCall(story.next(), story.next(), "q", "ok", (low, high)))
    assert story.kinds(ORDERED) == {"band_order"}


def test_a_message_is_not_leased_twice_while_its_lease_is_live() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.now_ms += TIMEOUT_MS - 1
    story.lease(b"a", failures=1)
    assert story.kinds() == {"two_leases"}


def test_an_extended_lease_is_respected() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("extend", b"a", deadline_ms=story.now_ms + 5 * TIMEOUT_MS)
    story.expire()
    story.lease(b"a", failures=1)
    assert story.kinds() == {"two_leases"}


def test_a_lease_stays_live_across_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.restart("kill")
    story.lease(b"a")
    assert story.kinds() == {"two_leases"}


def test_a_refused_release_does_not_end_a_lease() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("release", b"a", outcome="failed", token="somebody else's")
    story.lease(b"a", failures=1)
    assert story.kinds() == {"two_leases"}


def test_an_attempt_number_is_not_skipped() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.expire()
    story.lease(b"a", failures=1, attempt=3)
    assert story.kinds() == {"attempts"}


def test_an_attempt_number_is_not_used_twice() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.restart("kill")
    story.expire()
    story.lease(b"a", failures=1, attempt=1)
    assert story.kinds() == {"attempts"}


def test_a_message_is_not_delivered_after_max_attempts_failures() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("retry", b"a")
    story.lease(b"a", failures=1)
    story.expire()
    story.lease(b"a", failures=2)
    assert story.kinds(Options(max_attempts={"q": 2})) == {"attempts"}


def test_an_expired_lease_counts_as_a_failure() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.expire()
    story.lease(b"a", failures=0)
    assert story.kinds() == {"failures"}


def test_a_release_is_no_failure() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("release", b"a")
    story.lease(b"a", failures=1)
    assert story.kinds() == {"failures"}


def test_a_token_is_refused_once_the_message_is_leased_again() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    old = story.tokens[b"a"]
    story.expire()
    story.lease(b"a", failures=1)
    story.settle("ack", b"a", token=old)
    assert story.kinds() == {"stale_token"}


def test_a_token_settles_only_once() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a")
    story.settle("retry", b"a")
    assert story.kinds() == {"stale_token"}


def test_a_forged_token_is_refused() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", token="0" * 48)
    assert story.kinds() == {"stale_token"}


def test_a_token_is_refused_after_its_deadline() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.expire()
    story.settle("ack", b"a")
    assert story.kinds() == {"stale_token"}


def test_a_live_token_is_accepted() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", outcome="failed")
    assert story.kinds() == {"live_token_refused"}


def test_a_delayed_message_is_not_delivered_early() -> None:
    story = Story()
    story.publish(sent=Sent(b"a", delay_ms=500))
    story.now_ms += 499
    story.lease(b"a")
    assert story.kinds() == {"early"}


def test_a_delay_of_a_retry_is_not_cut_short_by_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("retry", b"a", delay_ms=500)
    story.restart("kill")
    story.now_ms += 499
    story.lease(b"a", failures=1)
    assert story.kinds() == {"early"}


def test_an_extended_lease_keeps_its_deadline_over_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("extend", b"a", deadline_ms=story.now_ms + 5 * TIMEOUT_MS)
    story.restart("kill")
    story.expire()
    story.lease(b"a", failures=1)
    assert story.kinds() == {"two_leases"}


def test_a_live_token_is_accepted_after_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.restart("kill")
    story.settle("ack", b"a", outcome="failed")
    assert story.kinds() == {"live_token_refused"}


def test_the_token_of_a_released_message_is_refused_after_a_kill() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("release", b"a")
    story.restart("kill")
    story.settle("ack", b"a")
    assert story.kinds() == {"stale_token"}


@pytest.mark.parametrize("restarts", [(), ("clean",), ("kill",)])
def test_a_released_message_is_ready_at_once(restarts: tuple[RestartKind, ...]) -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a")
    story.settle("release", b"a")
    for kind in restarts:
        story.restart(kind)
    story.lease(b"b", asked=2)
    assert story.kinds() == {"withheld"}


@pytest.mark.parametrize(("verb", "failures"), [("release", 1), ("retry", 0)])
def test_a_kill_does_not_change_what_counts_as_a_failure(verb: Verb, failures: int) -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle(verb, b"a")
    story.restart("kill")
    story.expire()
    story.lease(b"a", failures=failures)
    assert story.kinds() == {"failures"}


def test_a_message_is_not_delivered_past_its_ttl() -> None:
    story = Story()
    story.publish(sent=Sent(b"a", ttl_ms=500))
    story.now_ms += 500
    story.lease(b"a")
    assert story.kinds() == {"expired"}


def test_a_plain_history_is_accepted() -> None:
    story = Story()
    story.publish(b"a", b"b", b"c")
    story.lease(b"a", b"b")
    story.settle("ack", b"a")
    story.settle("retry", b"b")
    story.lease(b"c")
    story.lease(b"b", failures=1)
    story.settle("release", b"c")
    story.settle("ack", b"b", level="synced")
    story.restart("power")
    story.drain(b"c")
    assert story.kinds(Options({"q": 3}, {}, frozenset({"q"}))) == set()


def test_an_unconfirmed_publish_may_be_there_or_not() -> None:
    story = Story()
    story.publish(b"a", outcome="unknown")
    story.publish(b"b", outcome="unknown")
    story.restart("kill")
    story.drain(b"b")
    assert story.kinds() == set()


def test_an_unconfirmed_ack_may_hold_or_not() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a", b"b")
    story.settle("ack", b"a", outcome="unknown", level="synced")
    story.settle("ack", b"b", outcome="unknown", level="synced")
    story.restart("kill")
    story.expire()
    story.drain(b"b")
    assert story.kinds() == set()


def test_a_restart_may_take_what_was_promised_at_a_weaker_level() -> None:
    story = Story()
    story.publish(b"a", level="memory")
    story.restart("kill")
    story.publish(b"b", level="written")
    story.restart("power")
    story.drain()
    assert story.kinds() == set()


def test_a_written_ack_may_be_undone_by_a_power_cut() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("ack", b"a", level="written")
    story.restart("power")
    story.lease(b"a", attempt=1)
    story.drain(b"a")
    assert story.kinds() == set()


def test_concurrent_publishes_have_no_order() -> None:
    story = Story()
    story.ids = {b"a": "1-1", b"b": "1-2"}
    story.events.append(Publish(1, 10, "q", "synced", (Sent(b"a"),), "ok", ("1-1",)))
    story.events.append(Publish(2, 9, "q", "synced", (Sent(b"b"),), "ok", ("1-2",)))
    story.stamp = 10
    story.lease(b"b")
    story.lease(b"a")
    assert story.kinds(ORDERED) == set()


def test_partitions_have_no_common_order() -> None:
    story = Story()
    story.ids = {b"a": "1-1", b"b": "2-1"}
    story.publish(b"a", b"b")
    story.lease(b"b")
    story.lease(b"a")
    assert story.kinds(ORDERED) == set()


def test_a_higher_band_published_during_the_lease_call_may_come_later() -> None:
    story = Story()
    story.publish(b"low")
    low = story.grant(b"low", band=2)
    started = story.next()
    story.publish(sent=Sent(b"high", importance=9))
    story.events.append(LeaseCall(started, story.next(), "q", "ok", (low,)))
    story.lease(b"high", band=9)
    assert story.kinds(ORDERED) == set()


def test_a_batch_may_wait_for_a_stronger_one_that_began_before_it() -> None:
    story = Story()
    story.publish(b"low")
    started = story.next()
    story.publish(sent=Sent(b"high", importance=9), level="memory")
    story.lease(b"low", band=2)
    strong = Publish(started, story.next(), "q", "synced", (Sent(b"strong"),), "ok", ("1-7",))
    story.events.append(strong)
    story.lease(b"high", band=9)
    assert story.kinds(ORDERED) == set()


def test_a_redelivered_message_may_come_after_later_ones() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a")
    story.settle("retry", b"a")
    story.lease(b"b")
    story.lease(b"a", failures=1)
    assert story.kinds(ORDERED) == set()


def test_a_lease_call_that_was_killed_may_have_granted_unseen() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.events.append(LeaseCall(story.next(), None, "q", "unknown"))
    story.lease(b"b")
    story.restart("kill")
    story.expire()
    story.lease(b"a", attempt=2, failures=1)
    assert story.kinds(ORDERED) == set()


def test_a_long_poll_may_get_what_another_consumer_released_meanwhile() -> None:
    story = Story()
    waiting_since = story.next()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("release", b"a")
    second = story.grant(b"a")
    story.events.append(LeaseCall(waiting_since, story.next(), "q", "ok", (second,)))
    story.settle("ack", b"a")
    assert story.kinds(ORDERED) == set()


def test_a_power_cut_may_undo_a_grant() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.restart("power")
    story.lease(b"a", attempt=1)
    story.settle("ack", b"a")
    assert story.kinds(ORDERED) == set()


def test_a_dead_lettered_message_found_in_the_dead_queue_is_accounted_for() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.expire()
    story.remove(b"a", "max_attempts", moved_to="2-1")
    story.drain()
    story.ids[b"a"] = "2-1"
    story.drain(b"a", queue="q.dead")
    assert story.kinds(Options({"q": 1}, {"q": "q.dead"})) == set()


def test_a_move_to_the_dead_queue_that_a_power_cut_undid_is_done_again() -> None:
    story = Story()
    story.publish(b"a")
    story.ids[b"a"] = "2-1"
    story.lease(b"a", queue="q.dead")
    story.restart("power")
    story.drain()
    story.ids[b"a"] = "2-2"
    story.drain(b"a", queue="q.dead")
    assert story.kinds(Options(dead_queues={"q": "q.dead"})) == set()


def test_a_producer_may_repeat_a_publish_under_its_id() -> None:
    story = Story()
    story.publish(sent=Sent(b"a", producer_id="p1"), outcome="unknown")
    story.restart("kill")
    story.publish(sent=Sent(b"a", producer_id="p1"))
    story.publish(sent=Sent(b"a", producer_id="p1"))
    story.drain(b"a")
    assert story.kinds() == set()


def test_a_message_named_in_the_damage_report_is_accounted_for() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.remove(b"a", "damaged")
    story.drain(b"b")
    assert story.kinds() == set()


def test_a_second_ack_may_be_refused_and_a_late_one_too() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a", b"b")
    story.settle("ack", b"a")
    story.settle("ack", b"a", outcome="failed")
    story.expire()
    story.settle("ack", b"b", outcome="failed")
    story.settle("ack", b"b", token="0" * 48, outcome="failed")
    story.drain(b"b")
    assert story.kinds() == set()


@pytest.mark.parametrize("verb", ["release", "retry", "extend"])
def test_a_power_cut_may_undo_what_was_only_written(verb: Verb) -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle(verb, b"a", deadline_ms=story.now_ms + 5 * TIMEOUT_MS, delay_ms=5 * TIMEOUT_MS)
    story.restart("power")
    story.lease(asked=1)
    story.expire()
    story.lease(b"a", failures=1)
    assert story.kinds() == set()


def test_who_asks_for_less_than_there_is_may_not_get_what_was_released() -> None:
    story = Story()
    story.publish(b"a", b"b")
    story.lease(b"a")
    story.settle("release", b"a")
    story.lease(b"b", asked=1)
    story.drain(b"a", b"b")
    assert story.kinds() == set()


def test_a_released_message_may_be_with_a_consumer_that_was_killed() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    story.settle("release", b"a")
    story.events.append(LeaseCall(story.next(), None, "q", "unknown"))
    story.lease(asked=1)
    story.restart("kill")
    story.lease(asked=1)
    story.expire()
    story.lease(b"a", attempt=3, failures=1)
    assert story.kinds() == set()


def test_a_lease_call_that_began_before_a_release_may_miss_it() -> None:
    story = Story()
    story.publish(b"a")
    story.lease(b"a")
    started = story.next()
    story.settle("release", b"a")
    story.events.append(LeaseCall(started, story.next(), "q", "ok", (), 1))
    story.lease(b"a")
    assert story.kinds() == set()


def test_a_released_message_may_end_by_its_ttl() -> None:
    story = Story()
    story.publish(sent=Sent(b"a", ttl_ms=500))
    story.lease(b"a")
    story.settle("release", b"a")
    story.now_ms += 500
    story.lease(asked=1)
    story.remove(b"a", "expired")
    assert story.kinds() == set()
