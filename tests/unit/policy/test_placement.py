"""Where the copies of a message are wanted, at intake, as it ages, and when devices fail."""

import msgspec

from ebbmq.limits import DAY_MS
from ebbmq.policy.decay import Access, Phase, Score
from ebbmq.policy.placement import Pin, Placed, Terms, Wanted, place
from ebbmq.policy.rules.choose import Chooser, View
from ebbmq.policy.rules.properties import ARCHIVE, DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet, make_rule

MINUTE_MS = 60_000
TERMS = Terms(
    score=Score(per_day=10, access_bonus=5, medium=20, high=70),
    tiers=("ssd", "hdd", "object"),
    max_replicas=3,
)
STATES = {
    "MEMORY": DeviceState(durable=False, tier="ram", failure_domain="m"),
    "SSD1": DeviceState(tier="ssd", failure_domain="a"),
    "SSD2": DeviceState(tier="ssd", failure_domain="b"),
    "HDD1": DeviceState(tier="hdd", failure_domain="a"),
    "HDD2": DeviceState(tier="hdd", failure_domain="b"),
    "S3": DeviceState(tier="object", failure_domain="s3"),
}
SMALL_IN_MEMORY = make_rule("small", 80, "MEMORY", "SIZE < 20")
SSD = make_rule("ssd", 50, "SSD1")


def view(*rules, **changes):
    states = {
        name: msgspec.structs.replace(state, **changes.get(name, {}))
        for name, state in STATES.items()
    }
    return Chooser(RuleSet.of(rules or [SSD])).view(states)


def message(**changes):
    return Placed(**{"properties": Properties(size=50), "terms": TERMS, **changes})


def later(before: Placed, wanted: Wanted, **changes) -> Placed:
    """The message once what was wanted is done."""
    return msgspec.structs.replace(
        before,
        copies=wanted.copies,
        target=wanted.target,
        review_at_ms=wanted.review_at_ms,
        **changes,
    )


def test_at_intake_the_rules_choose_and_the_publisher_says_how_many():
    wanted = place(message(replicas=2), 0, view())
    assert wanted.copies[0] == "SSD1"
    assert (wanted.target, wanted.missing, wanted.occasion) == (2, 0, "intake")
    assert wanted.chosen_by is not None
    assert wanted.chosen_by.rule == "ssd"


def test_the_floor_adds_a_durable_device_and_leaves_the_choice_of_the_rules():
    small = Properties(size=1)
    wanted = place(message(properties=small), 0, view(SMALL_IN_MEMORY, SSD))
    assert wanted.copies == ("MEMORY", "SSD1")
    assert (wanted.floor_added, wanted.target) == ("SSD1", 1)
    frail = place(message(properties=small, durable=False), 0, view(SMALL_IN_MEMORY, SSD))
    assert (frail.copies, frail.floor_added) == (("MEMORY",), None)


def test_with_two_copies_the_second_is_the_durable_one():
    wanted = place(message(properties=Properties(size=1), replicas=2), 0, view(SMALL_IN_MEMORY))
    assert wanted.copies[0] == "MEMORY"
    assert STATES[wanted.copies[1]].durable
    assert (len(wanted.copies), wanted.floor_added) == (2, None)


def test_copies_are_on_distinct_failure_domains_and_what_is_missing_is_said():
    wanted = place(message(replicas=6, durable=True), 0, view())
    domains = [STATES[name].failure_domain for name in wanted.copies]
    assert sorted(domains) == ["a", "b", "m", "s3"]
    assert (wanted.target, wanted.missing) == (6, 2)


def test_the_first_evaluation_comes_after_a_minute_and_adds_one_copy_each_time():
    fresh = message()
    first = place(fresh, 0, view())
    assert first.review_at_ms == MINUTE_MS
    second = place(later(fresh, first), MINUTE_MS, view())
    assert (second.occasion, second.target, second.add) == ("review", 2, second.copies[1:])
    third = place(later(fresh, second), 2 * MINUTE_MS, view())
    fourth = place(later(fresh, third), 3 * MINUTE_MS, view())
    assert (third.target, fourth.target) == (3, 3)
    assert set(first.copies) < set(second.copies) < set(third.copies) == set(fourth.copies)


def test_work_of_a_queue_that_sets_nothing_is_never_looked_at_again():
    assert place(message(terms=Terms()), 0, view()).review_at_ms is None


def test_extra_copies_wait_while_a_device_is_strained_but_the_publishers_do_not():
    strained = {name: {"status": -30.0} for name in STATES}
    intake = place(message(replicas=2), 0, view(**strained))
    assert len(intake.copies) == 2
    review = place(later(message(replicas=2), intake), MINUTE_MS, view(**strained))
    assert (review.target, review.add, review.missing) == (2, (), 0)


def test_a_kept_message_moves_to_the_middle_tier_and_is_dropped_elsewhere_only_then():
    fresh = message(terms=msgspec.structs.replace(TERMS, max_replicas=1))
    intake = place(fresh, 0, view())
    assert intake.review_at_ms == 2 * DAY_MS + 1
    moving = place(later(fresh, intake), intake.review_at_ms, view())
    assert (moving.phase, moving.tier, moving.target) == (Phase.KEPT, "hdd", 1)
    assert STATES[moving.copies[0]].tier == "hdd"
    assert (moving.add, moving.drop) == (moving.copies, ())
    both = msgspec.structs.replace(later(fresh, moving), copies=("SSD1", *moving.copies))
    assert place(both, moving.review_at_ms - 1, view()).drop == ("SSD1",)


def test_a_faded_message_has_one_copy_in_the_archive():
    old = message(copies=("SSD1", "SSD2", "HDD2"), target=3, replicas=3, review_at_ms=0)
    wanted = place(old, 8 * DAY_MS, view())
    assert (wanted.phase, wanted.copies, wanted.target) == (Phase.FADED, ("S3",), 1)
    assert (wanted.add, wanted.drop, wanted.action) == (("S3",), (), "keep")
    archived = msgspec.structs.replace(old, copies=(*old.copies, "S3"))
    assert place(archived, 8 * DAY_MS, view()).drop == old.copies


def test_a_faded_message_may_be_removed_or_sent_to_the_dead_queue_instead():
    for asked in ("remove", "dead_letter"):
        terms = msgspec.structs.replace(TERMS, on_faded=asked)
        wanted = place(message(terms=terms, copies=("SSD1",), review_at_ms=0), 8 * DAY_MS, view())
        assert wanted.action == asked


def test_a_faded_message_that_is_read_often_climbs_back():
    now_ms = 8 * DAY_MS
    hot = message(
        copies=("S3",), replicas=2, access=Access(20.0, now_ms), review_at_ms=now_ms, terms=TERMS
    )
    wanted = place(hot, now_ms, view())
    assert (wanted.phase, wanted.target) == (Phase.FRESH, 2)
    assert len(wanted.copies) == 2


def test_a_copy_on_a_device_that_failed_is_made_elsewhere_and_not_judged():
    held = message(copies=("SSD1", "SSD2"), replicas=2, target=2, review_at_ms=5 * DAY_MS)
    wanted = place(held, 1, view(SSD1={"usable": False}))
    assert wanted.occasion == "repair"
    assert "SSD2" in wanted.copies
    assert len(wanted.add) == 1
    assert wanted.review_at_ms == 5 * DAY_MS
    repaired = msgspec.structs.replace(held, copies=(*held.copies, *wanted.add))
    assert place(repaired, 1, view(SSD1={"usable": False})).drop == ()
    assert len(place(repaired, 1, view()).drop) == 1


def test_a_device_that_failed_at_intake_means_the_next_choice():
    wanted = place(message(), 0, view(SSD1={"usable": False}))
    assert len(wanted.copies) == 1
    assert wanted.copies[0] != "SSD1"


def test_no_usable_device_is_said():
    unusable = {name: {"usable": False} for name in STATES}
    wanted = place(message(), 0, view(**unusable))
    assert (wanted.copies, wanted.missing) == ((), 1)


def pinned(**changes):
    pin = Pin(1, "object", 10, 1_000, 3, 7)._replace(**changes)
    terms = msgspec.structs.replace(TERMS, version=7)
    return message(
        copies=("SSD1",), generation=3, pin=pin, terms=terms, crossed_at_ms=5, review_at_ms=0
    )


def test_a_plan_moves_even_a_fresh_message_until_its_end():
    wanted = place(pinned(), 100, view())
    assert (wanted.target, wanted.tier, wanted.copies) == (1, "object", ("S3",))
    assert place(pinned(), 1_000, view()).tier == "ssd"


def test_a_plan_for_another_generation_or_policy_or_before_a_crossing_is_outdated():
    for changes in ({"generation": 2}, {"policy_version": 6}, {"decided_at_ms": 4}):
        assert place(pinned(**changes), 100, view()).tier == "ssd"


def test_at_a_crossing_rules_that_ask_for_the_score_are_asked_again():
    devices: View = view(SSD, make_rule("cold", 90, "HDD2", "DECAY_SCORE > 30"))
    held = message(terms=Terms(score=TERMS.score), copies=("SSD1",), review_at_ms=4 * DAY_MS)
    assert place(held, 4 * DAY_MS - 1, devices).copies == ("SSD1",)
    wanted = place(held, 4 * DAY_MS, devices)
    assert (wanted.copies, wanted.add) == (("HDD2",), ("HDD2",))
    assert wanted.chosen_by is not None
    assert wanted.chosen_by.rule == "cold"


PLAIN = Terms(default="log")
MIXED = {
    "archive": DeviceState(tier="archive", failure_domain="s3", slowness=ARCHIVE),
    "db": DeviceState(tier="sql", failure_domain="db", slowness=3),
    "disk": DeviceState(tier="file", failure_domain="d", slowness=2, cost_per_gib_month=0.2),
    "cheap": DeviceState(tier="file", failure_domain="c", slowness=2, cost_per_gib_month=0.1),
    "log": DeviceState(tier="log", failure_domain="l", slowness=2),
    "ram": DeviceState(durable=False, tier="memory", failure_domain="r"),
}


def mixed(replicas, *, terms=PLAIN, **changes):
    states = {
        name: msgspec.structs.replace(state, **changes.get(name, {}))
        for name, state in MIXED.items()
    }
    asked = message(terms=terms, replicas=replicas)
    return place(asked, 0, Chooser(RuleSet.of([])).view(states)).copies


def test_further_copies_go_by_status_then_to_the_faster_kind_then_to_the_cheaper_device():
    assert mixed(2) == ("log", "cheap")
    assert mixed(4) == ("log", "cheap", "disk", "db")
    assert mixed(2, cheap={"status": -10.0}) == ("log", "disk")
    same = {"cost_per_gib_month": 0.2}
    assert mixed(3, cheap=same) == ("log", "cheap", "disk")


def test_an_archive_has_a_copy_of_a_fresh_message_only_where_no_other_device_that_lasts_can():
    strained = {name: {"status": -15.0} for name in ("disk", "cheap", "db")}
    assert "archive" not in mixed(4, **strained)
    assert mixed(5)[4] == "archive"
    down = {name: {"usable": False} for name in ("disk", "cheap", "db")}
    assert mixed(2, **down) == ("log", "archive")


def test_a_queue_that_names_an_archive_among_its_tiers_may_have_a_copy_there():
    named = Terms(default="log", tiers=("log", "archive"))
    assert mixed(2, terms=named) == ("log", "archive")


def test_a_rule_that_chooses_the_archive_is_followed():
    view = Chooser(RuleSet.of([make_rule("cold", 10, "archive", "SIZE > 10")])).view(MIXED)
    assert place(message(terms=PLAIN, replicas=2), 0, view).copies == ("archive", "log")
