"""Copies, needs and removals of bodies: the second pure machine."""

from __future__ import annotations

import pytest

from ebbmq.core.copies import (
    LOG,
    NORMAL,
    NOTHING,
    BodyLost,
    DropCopy,
    ForgetCopy,
    Gone,
    Held,
    PutCopy,
)
from ebbmq.core.holdings import Holdings

BODY = 3 << 32 | 4_096
OTHER = 3 << 32 | 8_192
NAME = (1, 77)


@pytest.fixture
def holdings():
    holdings = Holdings()
    holdings.declare_device("ssd", durable=True)
    holdings.declare_device("hdd", durable=True)
    holdings.declare_device("ram", durable=False)
    return holdings


def held(body, copies, *, dropping=(), target=1, min_copies=1, durable=True):
    return Held(body, frozenset(copies), frozenset(dropping), target, min_copies, durable)


def copy_to(holdings, device, body=BODY):
    holdings.add_copy(body, device)
    return holdings.copy_acked(body, device)


def test_one_copy_in_the_log_needed_by_one_message_takes_no_row(holdings):
    assert holdings.of(BODY) == NORMAL
    assert holdings.copies(BODY) == {LOG}
    assert holdings.is_eligible(BODY)
    assert holdings.shortage(BODY) == 0
    assert holdings.place(BODY, [LOG]) == NOTHING
    assert len(holdings) == 0


def test_the_body_of_a_topic_goes_when_the_last_subscription_lets_go(holdings):
    holdings.share(BODY, 3)
    assert [holdings.let_go(BODY) for _ in range(3)] == [False, False, True]
    assert holdings.remove(BODY, NAME) == NOTHING
    assert len(holdings) == 0


def test_a_body_nobody_shares_is_let_go_at_once(holdings):
    assert holdings.let_go(BODY)


def test_counting_the_rows_again_after_a_restart_changes_nothing(holdings):
    holdings.share(BODY, 3)
    holdings.share(BODY, 3)
    assert holdings.of(BODY).needs == 3


def test_a_copy_counts_once_its_device_confirmed_it(holdings):
    assert holdings.add_copy(BODY, "ssd").effects == (PutCopy(BODY, "ssd"),)
    assert holdings.copies_acked(BODY) == 1
    assert holdings.copy_acked(BODY, "ssd").facts == (held(BODY, [LOG, "ssd"]),)
    assert holdings.copies(BODY) == {LOG, "ssd"}


def test_asking_or_confirming_twice_is_once(holdings):
    holdings.add_copy(BODY, "ssd")
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    holdings.copy_acked(BODY, "ssd")
    assert holdings.copy_acked(BODY, "ssd") == NOTHING
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    assert holdings.copies_acked(BODY) == 2


def test_a_message_is_leased_once_min_copies_are_confirmed(holdings):
    holdings.place(BODY, [LOG], min_copies=2)
    assert not holdings.is_eligible(BODY)
    assert holdings.shortage(BODY) == 1
    holdings.add_copy(BODY, "ssd")
    assert holdings.shortage(BODY) == 0
    assert not holdings.is_eligible(BODY)
    holdings.copy_acked(BODY, "ssd")
    assert holdings.is_eligible(BODY)


def test_a_device_that_is_too_slow_is_replaced_and_its_late_copy_deleted(holdings):
    holdings.place(BODY, [LOG], min_copies=2)
    holdings.add_copy(BODY, "ssd")
    assert holdings.copy_failed(BODY, "ssd").effects == (DropCopy(BODY, "ssd"),)
    assert holdings.shortage(BODY) == 1
    assert holdings.copy_acked(BODY, "ssd") == NOTHING
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    holdings.add_copy(BODY, "hdd")
    holdings.copy_acked(BODY, "hdd")
    assert holdings.copies(BODY) == {LOG, "hdd"}


def test_fewer_copies_than_the_target_are_a_shortage(holdings):
    assert holdings.set_target(BODY, 3).facts == (held(BODY, [LOG], target=3),)
    assert holdings.shortage(BODY) == 2
    copy_to(holdings, "ssd")
    holdings.add_copy(BODY, "hdd")
    assert holdings.shortage(BODY) == 0
    holdings.copy_failed(BODY, "hdd")
    assert holdings.shortage(BODY) == 1


def test_the_last_durable_copy_of_a_durable_body_is_not_dropped(holdings):
    copy_to(holdings, "ram")
    assert not holdings.may_drop(BODY, LOG)
    assert holdings.drop_copy(BODY, LOG) == NOTHING
    assert holdings.drop_copy(BODY, "ram").effects == (DropCopy(BODY, "ram"),)
    assert holdings.drop_copy(BODY, LOG) == NOTHING


def test_the_archive_holds_the_body_before_the_first_copy_goes(holdings):
    holdings.add_copy(BODY, "hdd")
    assert holdings.drop_copy(BODY, LOG) == NOTHING
    holdings.copy_acked(BODY, "hdd")
    assert holdings.drop_copy(BODY, LOG).facts == (held(BODY, ["hdd"], dropping=[LOG]),)
    assert holdings.copies(BODY) == {"hdd"}


def test_a_body_that_is_not_durable_keeps_one_copy_of_any_kind(holdings):
    holdings.place(BODY, [LOG, "ram"], durable=False)
    assert holdings.drop_copy(BODY, LOG) != NOTHING
    assert holdings.drop_copy(BODY, "ram") == NOTHING


def test_a_copy_that_is_not_there_cannot_be_dropped(holdings):
    assert holdings.drop_copy(BODY, "ssd") == NOTHING
    assert holdings.drop_acked(BODY, "ssd") == NOTHING


def test_a_dropped_copy_may_be_made_again_once_its_deletion_is_confirmed(holdings):
    copy_to(holdings, "ssd")
    holdings.drop_copy(BODY, "ssd")
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    assert holdings.drop_acked(BODY, "ssd").facts == (held(BODY, [LOG]),)
    assert len(holdings) == 0
    assert holdings.add_copy(BODY, "ssd").effects == (PutCopy(BODY, "ssd"),)


def test_a_removal_waits_for_every_device_that_may_have_a_copy(holdings):
    copy_to(holdings, "ssd")
    copy_to(holdings, "hdd")
    holdings.drop_copy(BODY, "hdd")
    holdings.add_copy(BODY, "ram")
    step = holdings.remove(BODY, NAME)
    waiting = frozenset({"ssd", "hdd", "ram"})
    assert set(step.effects) == {ForgetCopy(NAME, device) for device in waiting}
    assert step.facts == (held(BODY, [LOG]), Gone(NAME, waiting))
    assert holdings.removals_acked(NAME) == 0
    assert holdings.removal_acked(NAME, "ssd") == NOTHING
    assert holdings.removal_acked(NAME, "ssd") == NOTHING
    assert holdings.removals_acked(NAME) == 1
    assert holdings.tombstone(NAME).waiting == {"hdd", "ram"}
    holdings.removal_acked(NAME, "ram")
    assert holdings.removal_acked(NAME, "hdd").facts == (Gone(NAME, frozenset()),)
    assert holdings.tombstone(NAME) is holdings.removals_acked(NAME) is None


def test_a_confirmation_nobody_waits_for_changes_nothing(holdings):
    assert holdings.removal_acked(NAME, "ssd") == NOTHING
    assert holdings.copy_failed(BODY, "ssd") == NOTHING


def test_a_body_still_needed_cannot_be_removed(holdings):
    holdings.share(BODY, 2)
    with pytest.raises(AssertionError):
        holdings.remove(BODY, NAME)


def test_a_lost_device_counts_no_more_and_what_it_alone_had_is_reported(holdings):
    copy_to(holdings, "ssd")
    holdings.place(OTHER, ["ssd"], durable=False)
    copy_to(holdings, "ssd", body=1)
    holdings.remove(1, NAME)
    copy_to(holdings, "ssd", body=2)
    copy_to(holdings, "hdd", body=2)
    holdings.remove(2, (2, 2))
    step = holdings.evict_device("ssd")
    assert step.effects == (BodyLost(OTHER),)
    assert set(step.facts) == {
        held(BODY, [LOG]),
        held(OTHER, [], durable=False),
        Gone(NAME, frozenset()),
        Gone((2, 2), frozenset({"hdd"})),
    }
    assert not holdings.is_eligible(OTHER)
    assert holdings.tombstone(NAME) is None
    assert holdings.removals_acked((2, 2)) == 0
    assert holdings.evict_device("ssd") == NOTHING


def test_a_device_that_returns_deletes_what_left_meanwhile(holdings):
    copy_to(holdings, "ssd")
    copy_to(holdings, "ssd", body=OTHER)
    holdings.evict_device("ssd")
    holdings.remove(OTHER, NAME)
    listed = [((1, 1), BODY), (NAME, None)]
    assert holdings.strays("ssd", listed).effects == (
        ForgetCopy((1, 1), "ssd"),
        ForgetCopy(NAME, "ssd"),
    )
    copy_to(holdings, "ssd")
    assert holdings.strays("ssd", listed).effects == (ForgetCopy(NAME, "ssd"),)


def test_a_relocated_body_keeps_its_copies_and_needs(holdings):
    holdings.share(BODY, 2)
    assert holdings.relocate(BODY, OTHER) == NOTHING
    copy_to(holdings, "ssd", body=OTHER)
    step = holdings.relocate(OTHER, BODY)
    assert step.facts == (held(OTHER, [LOG]), held(BODY, [LOG, "ssd"]))
    assert holdings.of(BODY).needs == 2
    assert holdings.of(OTHER) == NORMAL


def test_after_a_restart_unconfirmed_deletions_are_asked_for_again(holdings):
    facts = []
    facts += copy_to(holdings, "ssd").facts
    facts += holdings.drop_copy(BODY, "ssd").facts
    facts += copy_to(holdings, "hdd", body=OTHER).facts
    facts += holdings.remove(OTHER, NAME).facts
    restarted = Holdings()
    for fact in facts:
        restarted.restore(fact)
    assert list(restarted.owed()) == [DropCopy(BODY, "ssd"), ForgetCopy(NAME, "hdd")]
    assert list(restarted.facts()) == list(holdings.facts())


def test_a_volatile_device_declared_durable_later_counts_as_durable(holdings):
    copy_to(holdings, "ram")
    holdings.declare_device("ram", durable=True)
    assert holdings.may_drop(BODY, LOG)
    holdings.declare_device("ram", durable=False)
    assert not holdings.may_drop(BODY, LOG)
    holdings.declare_device(LOG, durable=False)
    assert holdings.may_drop(BODY, "ram")
