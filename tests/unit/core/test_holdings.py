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
    Holding,
    PutCopy,
    name_of,
    parts_of,
)
from ebbmq.core.holdings import Holdings

BODY = name_of(3, 4_096)
OTHER = name_of(3, 8_192)


@pytest.fixture
def holdings():
    holdings = Holdings()
    holdings.declare_device("ssd", durable=True)
    holdings.declare_device("hdd", durable=True)
    holdings.declare_device("ram", durable=False)
    return holdings


def held(  # noqa: PLR0913  # all that is known of a body
    name, copies, *, pending=(), dropping=(), leaving=(), target=1, min_copies=1, durable=True
):
    sets = map(frozenset, (copies, pending, dropping, leaving))
    return Held(name, Holding(*sets, target, min_copies, durable))


def copy_to(holdings, device, body=BODY):
    holdings.add_copy(body, device)
    return holdings.copy_acked(body, device)


def test_a_name_is_a_partition_and_a_number():
    assert parts_of(name_of(7, 1 << 47)) == (7, 1 << 47)


def test_one_copy_in_the_log_takes_no_row(holdings):
    assert holdings.of(BODY) == NORMAL
    assert holdings.copies_acked(BODY) == 1
    assert holdings.is_eligible(BODY)
    assert holdings.shortage(BODY) == 0
    assert holdings.place(BODY, [LOG]) == NOTHING
    assert len(holdings) == 0


def test_a_copy_counts_once_its_device_confirmed_it(holdings):
    step = holdings.add_copy(BODY, "ssd")
    assert step.effects == (PutCopy(BODY, "ssd"),)
    assert step.facts == (held(BODY, [LOG], pending=["ssd"]),)
    assert holdings.copies_acked(BODY) == 1
    assert holdings.copy_acked(BODY, "ssd").facts == (held(BODY, [LOG, "ssd"]),)
    assert holdings.copies_acked(BODY) == 2


def test_asking_or_confirming_twice_is_once(holdings):
    holdings.add_copy(BODY, "ssd")
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    holdings.copy_acked(BODY, "ssd")
    assert holdings.copy_acked(BODY, "ssd") == NOTHING
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    assert holdings.copies_acked(BODY) == 2


def test_what_the_rules_chose_beside_the_log_is_asked_for(holdings):
    step = holdings.place(BODY, [LOG, "ssd"], target=2)
    assert step.facts == (held(BODY, [LOG], pending=["ssd"], target=2),)
    assert holdings.asked(BODY).effects == (PutCopy(BODY, "ssd"),)


def test_the_log_lets_go_once_the_device_the_rules_chose_has_the_body(holdings):
    holdings.place(BODY, ["ssd"])
    assert holdings.of(BODY).leaving == {LOG}
    step = holdings.copy_acked(BODY, "ssd")
    assert step.facts == (held(BODY, ["ssd"]),)
    assert step.effects == (DropCopy(BODY, LOG),)


def test_the_log_keeps_what_the_device_the_rules_chose_did_not_take(holdings):
    holdings.place(BODY, ["ssd"])
    holdings.copy_failed(BODY, "ssd")
    assert holdings.of(BODY).copies == {LOG}
    assert holdings.shortage(BODY) == 1
    holdings.add_copy(BODY, "hdd")
    assert holdings.copy_acked(BODY, "hdd").effects == (DropCopy(BODY, LOG),)


def test_a_durable_body_stays_in_the_log_if_the_rules_chose_ram_alone(holdings):
    holdings.place(BODY, ["ram"])
    assert holdings.copy_acked(BODY, "ram").effects == ()
    assert holdings.of(BODY).copies == {LOG, "ram"}


def test_a_copy_that_is_wanted_again_before_it_left_stays(holdings):
    holdings.place(BODY, ["ssd"])
    holdings.add_copy(BODY, LOG)
    assert holdings.copy_acked(BODY, "ssd").effects == ()
    assert holdings.of(BODY).copies == {LOG, "ssd"}


def test_a_message_is_leased_once_min_copies_are_confirmed(holdings):
    holdings.place(BODY, [LOG, "ssd"], target=2, min_copies=2)
    assert not holdings.is_eligible(BODY)
    assert holdings.shortage(BODY) == 0
    holdings.copy_acked(BODY, "ssd")
    assert holdings.is_eligible(BODY)


def test_a_device_that_is_too_slow_is_replaced_and_its_late_copy_deleted(holdings):
    holdings.place(BODY, [LOG, "ssd"], target=2, min_copies=2)
    assert holdings.copy_failed(BODY, "ssd").effects == (DropCopy(BODY, "ssd"),)
    assert holdings.shortage(BODY) == 1
    assert holdings.copy_acked(BODY, "ssd") == NOTHING
    assert holdings.add_copy(BODY, "ssd") == NOTHING
    holdings.add_copy(BODY, "hdd")
    holdings.copy_acked(BODY, "hdd")
    assert holdings.of(BODY).copies == {LOG, "hdd"}


def test_fewer_copies_than_the_target_are_a_shortage(holdings):
    assert holdings.set_target(BODY, 3).facts == (held(BODY, [LOG], target=3),)
    assert holdings.shortage(BODY) == 2
    copy_to(holdings, "ssd")
    holdings.add_copy(BODY, "hdd")
    assert holdings.shortage(BODY) == 0
    holdings.copy_failed(BODY, "hdd")
    assert holdings.shortage(BODY) == 1


def test_a_copy_the_target_needs_is_not_dropped(holdings):
    copy_to(holdings, "ssd")
    holdings.set_target(BODY, 2)
    assert not holdings.may_drop(BODY, "ssd")
    holdings.set_target(BODY, 1)
    assert holdings.may_drop(BODY, "ssd")


def test_the_last_durable_copy_of_a_durable_body_is_not_dropped(holdings):
    copy_to(holdings, "ram")
    assert not holdings.may_drop(BODY, LOG)
    assert holdings.drop_copy(BODY, LOG) == NOTHING
    assert holdings.drop_copy(BODY, "ram").effects == (DropCopy(BODY, "ram"),)
    assert holdings.drop_copy(BODY, LOG) == NOTHING


def test_the_archive_holds_the_body_before_the_first_copy_goes(holdings):
    holdings.add_copy(BODY, "hdd")
    assert holdings.drop_copy(BODY, LOG).effects == ()
    assert holdings.of(BODY).copies == {LOG}
    step = holdings.copy_acked(BODY, "hdd")
    assert step.facts == (held(BODY, ["hdd"]),)
    assert step.effects == (DropCopy(BODY, LOG),)


def test_a_body_that_is_not_durable_keeps_one_copy_of_any_kind(holdings):
    holdings.place(BODY, [LOG, "ram"], durable=False)
    holdings.copy_acked(BODY, "ram")
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


def test_a_copy_a_device_has_lost_counts_no_more_and_the_last_one_is_reported(holdings):
    holdings.place(BODY, [LOG, "ssd"], target=2)
    holdings.copy_acked(BODY, "ssd")
    assert holdings.copy_lost(BODY, "ssd").effects == ()
    assert holdings.shortage(BODY) == 1
    assert holdings.copy_lost(BODY, "ssd") == NOTHING
    assert holdings.copy_lost(BODY, LOG).effects == (BodyLost(BODY),)


def test_a_copy_does_not_leave_when_the_one_it_made_room_for_is_lost(holdings):
    holdings.place(BODY, ["ssd", "hdd"], target=2)
    holdings.copy_acked(BODY, "ssd")
    holdings.copy_lost(BODY, "ssd")
    holdings.copy_failed(BODY, "hdd")
    assert holdings.of(BODY).copies == {LOG}
    assert holdings.copy_lost(BODY, "ssd") == NOTHING


def test_a_removal_waits_for_every_device_that_may_have_a_copy(holdings):
    copy_to(holdings, "ssd")
    copy_to(holdings, "hdd")
    holdings.drop_copy(BODY, "hdd")
    holdings.add_copy(BODY, "ram")
    step = holdings.remove(BODY)
    waiting = frozenset({"ssd", "hdd", "ram"})
    assert set(step.effects) == {ForgetCopy(BODY, device) for device in waiting}
    assert step.facts == (Gone(BODY, waiting),)
    assert len(holdings) == 0
    assert holdings.removal_acked(BODY, "ssd") == NOTHING
    assert holdings.removal_acked(BODY, "ssd") == NOTHING
    assert holdings.tombstone(BODY) == ({"hdd", "ram"}, {"ssd"})
    holdings.removal_acked(BODY, "ram")
    assert holdings.removal_acked(BODY, "hdd").facts == (Gone(BODY, frozenset()),)
    assert holdings.tombstone(BODY) is None
    assert holdings.tombstones() == 0


def test_a_confirmation_nobody_waits_for_changes_nothing(holdings):
    assert holdings.removal_acked(BODY, "ssd") == NOTHING
    assert holdings.copy_failed(BODY, "ssd") == NOTHING
    assert holdings.remove(BODY) == NOTHING


def test_a_lost_device_counts_no_more_and_what_it_alone_had_is_reported(holdings):
    copy_to(holdings, "ssd")
    holdings.place(OTHER, ["ssd"])
    holdings.copy_acked(OTHER, "ssd")
    copy_to(holdings, "ssd", body=1)
    holdings.remove(1)
    copy_to(holdings, "ssd", body=2)
    copy_to(holdings, "hdd", body=2)
    holdings.remove(2)
    step = holdings.evict_device("ssd")
    assert step.effects == (BodyLost(OTHER),)
    assert set(step.facts) == {
        held(BODY, [LOG]),
        held(OTHER, []),
        Gone(1, frozenset()),
        Gone(2, frozenset({"hdd"})),
    }
    assert not holdings.is_eligible(OTHER)
    assert holdings.tombstone(1) is None
    assert holdings.evict_device("ssd") == NOTHING


def test_a_device_that_returns_deletes_what_left_meanwhile(holdings):
    copy_to(holdings, "ssd")
    copy_to(holdings, "ssd", body=OTHER)
    holdings.evict_device("ssd")
    holdings.remove(OTHER)
    assert holdings.strays("ssd", [BODY, OTHER]).effects == (
        ForgetCopy(BODY, "ssd"),
        ForgetCopy(OTHER, "ssd"),
    )
    copy_to(holdings, "ssd")
    assert holdings.strays("ssd", [BODY, OTHER]).effects == (ForgetCopy(OTHER, "ssd"),)


def test_after_a_restart_what_is_not_confirmed_is_asked_for_again(holdings):
    facts = []
    facts += copy_to(holdings, "ssd").facts
    facts += holdings.drop_copy(BODY, "ssd").facts
    facts += copy_to(holdings, "hdd", body=OTHER).facts
    facts += holdings.remove(OTHER).facts
    facts += holdings.place(5, ["hdd"]).facts
    restarted = Holdings()
    for fact in facts:
        restarted.restore(fact)
    assert set(restarted.owed()) == {
        DropCopy(BODY, "ssd"),
        ForgetCopy(OTHER, "hdd"),
        PutCopy(5, "hdd"),
    }
    assert list(restarted.facts()) == list(holdings.facts())
    assert restarted.fact_of(OTHER) == Gone(OTHER, frozenset({"hdd"}))
    assert restarted.fact_of(BODY) == held(BODY, [LOG], dropping=["ssd"])


def test_what_is_not_normal_can_be_read_in_parts(holdings):
    for name in range(10):
        copy_to(holdings, "ssd", body=name)
    some = holdings.after(0, 4)
    assert [name for name, _ in some] == [0, 1, 2, 3]
    assert [name for name, _ in holdings.after(4, 100)] == [4, 5, 6, 7, 8, 9]
    assert holdings.after(10, 4) == []
    assert dict(holdings.items())[9].copies == {LOG, "ssd"}


def test_a_volatile_device_declared_durable_later_counts_as_durable(holdings):
    copy_to(holdings, "ram")
    holdings.declare_device("ram", durable=True)
    assert holdings.may_drop(BODY, LOG)
    holdings.declare_device("ram", durable=False)
    assert not holdings.may_drop(BODY, LOG)
    holdings.declare_device(LOG, durable=False)
    assert holdings.may_drop(BODY, "ram")
