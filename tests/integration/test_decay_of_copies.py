"""Copies and tiers follow the decay score: seed 000, on real devices."""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from math import exp
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ebbmq import Broker, Message, QueueSpec, TopicSpec
from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import InvalidMessage, InvalidSpec
from ebbmq.limits import DAY_MS
from ebbmq.node.outflow import parse_id
from ebbmq.policy.rules.spec import RuleSpec
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 30.0
ROOM = 64 << 20
CONFIG = {
    "devices": {
        "log": {"tier": "fast"},
        "hdd": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
        "cold": {"kind": "object", "directory": "cold", "capacity_bytes": ROOM, "tier": "archive"},
    }
}
THRESHOLDS = {"score_per_day": 10.0, "score_medium": 20.0, "score_high": 50.0}
FADING = {**THRESHOLDS, "tiers": ("fast", "slow", "archive")}


class Scene:
    """A broker whose days pass at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock()
        self.broker = Broker.open(path, CONFIG, self.clock)

    def reopen(self) -> None:
        self.broker.close()
        self.broker = Broker.open(self.path, CONFIG, self.clock)

    def kill(self) -> None:
        """Go on with what a kill would leave."""
        journal = self.broker.engine.journal
        journal.wait("synced", journal.position)
        left = self.path.with_name("left")
        shutil.copytree(self.path, left)
        self.broker.close()
        self.broker = Broker.open(left, CONFIG, self.clock)

    def holding(self, message_id: str):
        with self.broker.engine.lock:
            return self.broker.engine.holdings.of(name_of(*parse_id(message_id)))

    def until_on(self, message_ids, *devices: str) -> None:
        self.until(
            lambda: all(
                holding.copies == set(devices) and not holding.dropping
                for holding in map(self.holding, message_ids)
            ),
            lambda: f"{[self.holding(each) for each in message_ids]}",
        )

    def until(self, is_so: Callable[[], bool], told: Callable[[], str] = str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, told()
            time.sleep(0.005)

    def days(self, days: float) -> None:
        self.clock.advance(round(days * DAY_MS))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "data")
    yield scene
    scene.broker.close()


def publish(scene: Scene, count: int = 5, **fields) -> list[str]:
    messages = [Message(b"body %d" % number, **fields) for number in range(count)]
    return [receipt.id for receipt in scene.broker.publish("q", messages)]


def test_above_the_high_threshold_one_copy_is_left_in_the_archive(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", **FADING))
    ids = publish(scene, replicas=2)
    scene.until_on(ids, LOG, "hdd")
    scene.days(5.5)
    scene.until_on(ids, "cold")
    assert {scene.holding(each).target for each in ids} == {1}
    assert [lease.body for lease in scene.broker.lease("q", 10)] == [
        b"body %d" % number for number in range(5)
    ]


def test_a_faded_message_has_one_copy_however_many_its_queue_confirmed(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", **FADING, min_copies=2))
    [receipt] = scene.broker.publish("q", [Message(b"x")])
    scene.until_on([receipt.id], LOG, "hdd")
    scene.days(6)
    scene.until_on([receipt.id], "cold")
    with scene.broker.engine.lock:
        scene.broker.engine.keeping.mend([name_of(*parse_id(receipt.id))])
    assert scene.holding(receipt.id).pending == frozenset()
    assert [lease.body for lease in scene.broker.lease("q")] == [b"x"]


def test_between_the_thresholds_a_message_keeps_its_copies_on_the_middle_tier(
    scene: Scene,
) -> None:
    scene.broker.declare(QueueSpec("q", **FADING))
    ids = publish(scene)
    scene.days(1)
    assert {scene.holding(each).copies for each in ids} == {frozenset({LOG})}
    scene.days(1.5)
    scene.until_on(ids, "hdd")


@pytest.mark.parametrize("given", ["score_per_day", "score_high"])
def test_a_score_that_nobody_gave_is_shown_and_does_nothing(scene: Scene, given: str) -> None:
    spec = QueueSpec("q", tiers=FADING["tiers"], on_faded="remove", score_base=31.0)
    shown = {"per_day": 1.0, "access_bonus": 0.0, "medium": 7.0, "high": 30.0, "base": 31.0}
    scene.broker.declare(spec)
    [chosen] = publish(scene, 1)
    scene.days(60)
    [seen] = scene.broker.peek("q")
    assert (seen.decay_score, seen.tier, seen.copies) == (pytest.approx(91.0), "fast", (LOG,))
    assert scene.broker.engine.keeping.decisions.counts == {}
    told = scene.broker.stats("q")
    assert told["score"] == {f"score_{name}": each for name, each in shown.items()}
    assert not told["score_acts"]
    acts = replace(spec, **{given: shown[given.removeprefix("score_")]})
    scene.broker.declare(acts, change=True)
    assert scene.broker.stats("q")["score"] == told["score"]
    assert scene.broker.stats("q")["score_acts"]
    scene.days(1)
    assert [(each.id, each.reason) for each in scene.broker.removals("q")] == [(chosen, "faded")]


def test_a_fresh_message_gets_one_copy_more_at_each_evaluation_up_to_the_most(
    scene: Scene,
) -> None:
    scene.broker.declare(QueueSpec("q", max_replicas=3, evaluate_every_ms=60_000))
    ids = publish(scene, 2)
    scene.clock.advance(59_000)
    assert {scene.holding(each).target for each in ids} == {1}
    scene.clock.advance(2_000)
    scene.until(lambda: all(len(scene.holding(each).copies) == 2 for each in ids))
    scene.clock.advance(61_000)
    scene.until(lambda: all(len(scene.holding(each).copies) == 3 for each in ids))
    scene.clock.advance(600_000)
    assert {scene.holding(each).target for each in ids} == {3}


def test_work_consumed_promptly_costs_no_copy(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", max_replicas=3))
    publish(scene)
    leases = scene.broker.lease("q", 10)
    scene.broker.ack("q", [lease.token for lease in leases])
    scene.clock.advance(120_000)
    assert scene.broker.engine.keeping.decisions.counts == {}


def test_reads_keep_a_message_from_fading(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=100.0, **FADING))
    read, unread = publish(scene, 2)
    scene.days(4.9)
    (lease,) = scene.broker.lease("q", 1)
    assert lease.id == read
    scene.broker.release("q", [lease.token])
    scene.days(0.2)
    scene.until_on([unread], "cold")
    assert "cold" not in scene.holding(read).copies
    scene.days(30)
    scene.until_on([read], "cold")


def test_a_faded_message_that_is_read_again_climbs_back(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=100.0, **FADING))
    ids = publish(scene, 2, replicas=2)
    scene.days(6)
    scene.until_on(ids, "cold")
    (lease,) = scene.broker.lease("q", 1)
    scene.broker.release("q", [lease.token])
    scene.clock.advance(60_000)
    scene.until_on([lease.id], LOG, "hdd")
    assert scene.holding(ids[1]).copies == {"cold"}


def test_a_leased_message_is_moved_when_its_lease_is_over(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", lease_timeout_ms=7 * DAY_MS, **FADING))
    (message_id,) = publish(scene, 1)
    (lease,) = scene.broker.lease("q", 1)
    scene.days(5.5)
    assert scene.holding(message_id).copies == {LOG}
    scene.broker.release("q", [lease.token])
    scene.clock.advance(2_000)
    scene.until_on([message_id], "cold")


@pytest.mark.parametrize(("on_faded", "expected"), [("remove", 0), ("dead_letter", 3)])
def test_a_faded_message_can_leave_instead_on_the_record(
    scene: Scene, on_faded: str, expected: int
) -> None:
    scene.broker.declare(QueueSpec("dead"))
    scene.broker.declare(QueueSpec("q", on_faded=on_faded, dead_queue="dead", **FADING))
    publish(scene, 3)
    scene.days(5.5)
    scene.until(lambda: sum(scene.broker.stats("q")["depth"].values()) == 0)
    assert [removal.reason for removal in scene.broker.removals("q")] == ["faded"] * 3
    assert scene.broker.stats("dead")["depth"]["ready"] == expected


def test_after_a_restart_nothing_is_looked_at_twice_and_nothing_is_left_out(
    scene: Scene,
) -> None:
    scene.broker.declare(QueueSpec("q", **FADING))
    early = publish(scene)
    scene.days(5.5)
    scene.until_on(early, "cold")
    late = publish(scene)
    scene.reopen()
    scene.days(0.1)
    assert scene.broker.engine.keeping.decisions.counts == {}
    scene.days(5.5)
    scene.until_on(late, "cold")
    bodies = [lease.body for lease in scene.broker.lease("q", 20)]
    assert sorted(bodies) == sorted([b"body %d" % number for number in range(5)] * 2)


def test_a_restart_does_not_forget_a_message_that_was_read(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=100.0, **FADING))
    (read, other) = publish(scene, 2)
    (lease,) = scene.broker.lease("q", 1)
    assert lease.id == read
    scene.broker.release("q", [lease.token])
    scene.days(2.1)
    scene.until_on([other], "hdd")
    # A read two days ago counts 13: its crossing of 20 is at 2.7 days, behind the cursor.
    assert scene.holding(read).copies == {LOG}
    scene.reopen()
    assert scene.broker.peek("q", 2)[0].access_rate == pytest.approx(exp(-2.1))
    scene.days(2)
    scene.until_on([read, other], "hdd")


def test_a_restart_does_not_forget_a_message_that_was_leased_when_it_faded(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", lease_timeout_ms=20 * DAY_MS, **FADING))
    ids = publish(scene, 1)
    (lease,) = scene.broker.lease("q", 1)
    scene.days(6)
    scene.reopen()
    scene.broker.release("q", [lease.token])
    scene.days(0.1)
    scene.until_on(ids, "cold")


def test_a_restart_does_not_keep_a_message_from_getting_all_its_copies(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", max_replicas=3, evaluate_every_ms=DAY_MS))
    ids = publish(scene, 1)
    scene.days(1.1)
    scene.until(lambda: len(scene.holding(ids[0]).copies) == 2)
    scene.reopen()
    scene.days(1.1)
    scene.until(lambda: len(scene.holding(ids[0]).copies) == 3)


def test_a_message_that_was_read_after_the_last_checkpoint_is_looked_at_after_a_kill(
    scene: Scene,
) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=100.0, **FADING))
    ids = publish(scene, 1, replicas=2)
    scene.days(6)
    scene.until_on(ids, "cold")
    scene.reopen()
    (lease,) = scene.broker.lease("q", 1)
    scene.broker.release("q", [lease.token])
    scene.clock.advance(60_000)
    scene.until_on(ids, LOG, "hdd")
    scene.kill()
    # That it was read is forgotten, and it goes where it belongs without.
    scene.clock.advance(120_000)

    def is_archived() -> bool:
        scene.clock.advance(1_000)  # its old copy there may still be on its way out
        return scene.holding(ids[0]).copies == {"cold"}

    scene.until(is_archived)


def test_a_fresh_message_that_a_rule_put_on_a_slow_tier_is_promoted(scene: Scene) -> None:
    scene.broker.put_rule(RuleSpec("slow", 9, "hdd", "TYPE == SLOW"))
    scene.broker.put_rule(RuleSpec("cold", 8, "cold", "TYPE == SLOW"))
    specs = (FADING, {"tiers": FADING["tiers"], "score_base": 1.0}, THRESHOLDS)
    promoted, unscored, untiered = (
        QueueSpec(name, **given) for name, given in zip("abc", specs, strict=True)
    )
    ids = {}
    for spec in (promoted, unscored, untiered):
        scene.broker.declare(spec)
        [receipt] = scene.broker.publish(spec.name, [Message(b"x", type="SLOW")])
        ids[spec.name] = receipt.id
    scene.until_on(ids.values(), "hdd")
    scene.clock.advance(59_000)
    scene.until_on(ids.values(), "hdd")
    scene.clock.advance(2_000)
    scene.until_on([ids["a"]], LOG)
    scene.days(1)
    scene.until_on([ids["b"], ids["c"]], "hdd")
    scene.days(2)
    scene.until_on([ids["a"]], "hdd")


@pytest.mark.parametrize(("bonus", "tier"), [(9.0, "cold"), (11.0, "hdd")])
def test_the_way_back_begins_a_tenth_below_the_threshold(
    scene: Scene, bonus: float, tier: str
) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=bonus, **FADING))
    [chosen] = publish(scene, 1)
    scene.days(5.5)
    scene.until_on([chosen], "cold")
    (lease,) = scene.broker.lease("q")
    scene.broker.release("q", [lease.token])
    scene.clock.advance(61_000)
    scene.until(lambda: not scene.holding(chosen).pending | scene.holding(chosen).dropping)
    scene.until_on([chosen], tier)


def test_a_message_moves_at_most_once_in_the_time_between_evaluations(scene: Scene) -> None:
    # A point a second, of which every read takes thirty.
    fast = {"score_per_day": 86_400.0, "score_medium": 100.0, "score_high": 1e6}
    tiers = FADING["tiers"]
    scene.broker.declare(QueueSpec("q", score_access_bonus=30.0, tiers=tiers, **fast))
    [chosen] = publish(scene, 1)
    moved_at_ms: list[int] = []
    before = scene.holding(chosen).copies
    for second in range(400):
        scene.clock.advance(1_000)
        scene.until(lambda: not scene.holding(chosen).pending | scene.holding(chosen).dropping)
        if scene.holding(chosen).copies != before:
            before = scene.holding(chosen).copies
            moved_at_ms.append(second * 1_000)
        if before == {"hdd"} and not second % 7:
            (lease,) = scene.broker.lease("q")
            scene.broker.release("q", [lease.token])
    assert len(moved_at_ms) >= 3, moved_at_ms
    assert all(later - sooner >= 59_000 for sooner, later in pairwise(moved_at_ms)), moved_at_ms


def subscribed(scene: Scene, spec: TopicSpec, *queues: str) -> None:
    scene.broker.declare_topic(spec)
    for name in queues:
        scene.broker.declare(QueueSpec(name, tiers=FADING["tiers"], retry_delay_ms=0))
        scene.broker.subscribe(spec.name, name)


def test_reads_of_one_subscription_count_for_all_that_have_the_body(scene: Scene) -> None:
    subscribed(scene, TopicSpec("news", score_access_bonus=20.0, **THRESHOLDS), "a", "b", "c")
    scene.broker.publish("a", [Message(b"of a alone")])
    told = scene.broker.publish_topic("news", [Message(b"%d" % number) for number in range(40)])

    def rates(queue: str) -> list[float]:
        return [each.access_rate or 0.0 for each in scene.broker.peek(queue, 50)]

    scene.broker.ack("a", [each.token for each in scene.broker.lease("a", 10)])
    failed = scene.broker.lease("b", 1)
    assert rates("b") + rates("c") == pytest.approx(
        [1.0] * 8 + [0.0] * 31 + [2.0] + [1.0] * 8 + [0.0] * 31
    )
    scene.broker.retry("b", [each.token for each in failed])
    assert rates("c") == pytest.approx([1.0] * 9 + [0.0] * 31)
    scene.reopen()
    scene.days(5.5)
    faded = [receipt.id for receipt in told["c"]]
    scene.until_on(faded, "cold")
    scene.broker.release("b", [each.token for each in scene.broker.lease("b", 40)])
    scene.clock.advance(61_000)
    scene.until_on(faded, "hdd")
    assert rates("c") == pytest.approx([1.0] * 40, abs=0.1)


def test_a_topic_says_how_the_messages_of_its_queues_are_scored(scene: Scene) -> None:
    topic = TopicSpec("news", score_base=5.0, **THRESHOLDS)
    subscribed(scene, topic, "a", "b")
    scene.broker.declare(QueueSpec("alone", tiers=FADING["tiers"]))
    scene.broker.publish("alone", [Message(b"x")])
    told = scene.broker.publish_topic("news", [Message(b"x")])
    ids = [receipt.id for receipts in told.values() for receipt in receipts]
    scene.reopen()
    scene.days(4)
    scene.until_on(ids, "hdd")
    assert [scene.broker.peek(name)[0].decay_score for name in ("a", "b", "alone")] == (
        pytest.approx([45.0, 45.0, 4.0])
    )
    assert scene.broker.stats("a")["score"]["score_base"] == 5.0
    (shown,) = scene.broker.topics()
    assert {name: shown[name] for name in (*THRESHOLDS, "score_base")} == {
        **THRESHOLDS, "score_base": 5.0
    }  # fmt: skip
    scene.broker.unsubscribe("news", "b")
    scene.days(1)
    scene.until_on(ids[:1], "cold")
    assert scene.holding(ids[1]).copies == {"hdd"}
    with pytest.raises(InvalidSpec, match="score_high"):
        TopicSpec("news", score_high=1e300)


def test_a_counted_peek_is_an_access_and_another_is_not(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("q", score_access_bonus=100.0, **FADING))
    publish(scene, 1)
    scene.broker.peek("q", 1)
    assert scene.broker.peek("q", 1, counted=True)[0].access_rate == 0.0
    assert scene.broker.peek("q", 1)[0].access_rate == pytest.approx(1.0)
    with pytest.raises(InvalidMessage, match="where"):
        scene.broker.peek("q", 1, counted=True, where=bool)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_lost_copy_is_made_anew_on_the_tier_of_its_message(
    tmp_path: Path, *, is_read: bool
) -> None:
    slow = {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"}
    config = {"devices": {"log": {"tier": "fast"}, "hdd": slow, "hdd2": slow}}
    clock = ManualClock()
    with Broker.open(tmp_path / "data", config, clock) as broker:
        broker.declare(QueueSpec("q", **FADING, score_access_bonus=100.0, min_copies=2))
        [receipt] = broker.publish("q", [Message(b"x")])
        name = name_of(*parse_id(receipt.id))
        engine = broker.engine

        def copies() -> frozenset[str]:
            with engine.lock:
                return engine.holdings.of(name).copies

        def until(devices: set[str]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while copies() != devices:
                assert time.monotonic() < deadline, copies()
                time.sleep(0.005)

        until({LOG, "hdd"})
        clock.advance(3 * DAY_MS)
        until({"hdd", "hdd2"})
        if is_read:
            broker.peek("q", counted=True)
        with engine.lock:
            engine.keeping.copies_lost("hdd2", [name])
            # By being read it is fresh again, for which the fast tier is.
            asked = LOG if is_read else "hdd2"
            assert engine.holdings.of(name).pending == {asked}
        until({"hdd", asked})
