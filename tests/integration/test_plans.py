"""Plans of the pipeline on a real broker: what fits is done, what is outdated is refused."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbmq import Broker, Message, QueueSpec, UnknownRun, limits
from ebbmq.core.copies import LOG, Holding, name_of
from ebbmq.feed import layout
from ebbmq.feed.arrow import schema_of
from ebbmq.feed.events import EVENTS
from ebbmq.feed.plans import PLANS
from ebbmq.limits import DAY_MS
from ebbmq.node.advising.applying import AT_ONCE
from ebbmq.node.outflow import parse_id
from ebbmq.testing import ManualClock
from tests.advice import plan_row, publish, until_usable, write, write_bad_plan, write_plan
from tests.feeds import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ebbmq.feed.advice import Applied

PATIENCE_S = 30.0
ROOM = 64 << 20
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
SPEC = QueueSpec(
    "q",
    score_per_day=10.0,
    score_medium=20.0,
    score_high=50.0,
    score_access_bonus=1.0,
    max_replicas=2,
    tiers=("fast", "slow", "archive"),
)


class Scene:
    """A broker with three tiers and a lake; its clock is moved by hand."""

    def __init__(
        self, path: Path, *, settings: dict[str, Any] | None = None, **devices: Any
    ) -> None:
        self.path, self.lake = path, path / "lake"
        self.clock = ManualClock(START_MS)
        self.config = {
            "node": "n1",
            "feed": {"lake": str(self.lake), "plans_every_ms": 0},
            "devices": {
                "log": {"tier": "fast"},
                "hdd": {"kind": "file", "capacity_bytes": ROOM, "tier": "slow"},
                "cold": {
                    "kind": "object",
                    "directory": "cold",
                    "capacity_bytes": ROOM,
                    "tier": "archive",
                },
                **devices,
            },
            **(settings or {}),
        }
        self.broker = self.open()
        self.broker.declare(SPEC)

    def open(self) -> Broker:
        broker = Broker.open(self.path / "data", self.config, self.clock)
        until_usable(broker, "tape")
        return broker

    def reopen(self) -> None:
        self.broker.close()
        self.broker = self.open()

    def publish(self, count: int = 1, **fields: Any) -> list[str]:
        messages = [Message(b"body %d" % number, **fields) for number in range(count)]
        return [receipt.id for receipt in self.broker.publish("q", messages)]

    def row(self, message_id: str, **fields: Any) -> dict[str, Any]:
        now_ms = self.broker.engine.now_ms()
        times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
        return plan_row(message_id, **{**times, **fields})

    def apply(self, *rows: dict[str, Any], run: str = "r1") -> Applied:
        write_plan(self.lake, run, rows, self.broker.engine.clock.wall_ms())
        (told,) = self.broker.apply_plans(run)
        return told

    def holding(self, message_id: str) -> Holding:
        with self.broker.engine.lock:
            return self.broker.engine.holdings.of(name_of(*parse_id(message_id)))

    def copies(self, message_id: str) -> frozenset[str]:
        return self.holding(message_id).copies

    def until_on(self, message_id: str, *devices: str) -> None:
        """Wait until these devices have it, and no other is still deleting it."""
        self.until(
            lambda: (held := self.holding(message_id)).copies == set(devices) and not held.dropping
        )

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def held(self, ids: list[str]) -> set[str]:
        """Those of some messages that are held to plans."""
        with self.broker.engine.lock:
            found = self.broker.engine.pins.of_many([name_of(*parse_id(each)) for each in ids])
        return {each for each, advice in zip(ids, found, strict=True) if advice is not None}

    def pinned(self) -> int:
        with self.broker.engine.lock:
            return len(self.broker.engine.pins)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.broker.close()


def test_a_planned_message_really_moves_from_the_file_to_the_archive(scene: Scene) -> None:
    (one,) = scene.publish(store="hdd")
    scene.broker.put_rule(_rule("hdd"))
    (two,) = scene.publish()
    scene.until_on(two, "hdd")
    told = scene.apply(scene.row(one), scene.row(two))
    assert (told.rows, told.applied, told.refused) == (2, 2, {})
    for each in (one, two):
        scene.until_on(each, "cold")
    assert [lease.body for lease in scene.broker.lease("q", 9)] == [b"body 0", b"body 0"]


def test_what_a_plan_did_is_told_by_why_and_in_the_feed(scene: Scene) -> None:
    (one,) = scene.publish()
    scene.apply(scene.row(one, reason="room is short"))
    scene.until_on(one, "cold")
    told = scene.broker.why(one)
    assert told["pinned"]["run"] == "r1"
    assert told["pinned"]["tier"] == "archive"
    reasons = {(each["event"], each["reason"]) for each in told["decisions"]}
    assert ("pinned", "plan r1: archive, room is short") in reasons
    scene.broker.close()
    events = {(row["event"], row["device"], row["reason"]) for row in rows_of(scene.lake, EVENTS)}
    assert ("pinned", "archive", "plan r1: archive, room is short") in events
    assert ("asked", "cold", "plan r1: archive, room is short") in events


def test_twice_is_as_once(scene: Scene) -> None:
    ids = scene.publish(5)
    first = scene.apply(*(scene.row(each) for each in ids))
    for each in ids:
        scene.until_on(each, "cold")
    position = scene.broker.engine.journal.position
    (again,) = scene.broker.apply_plans("r1")
    assert (first.applied, first.in_force) == (5, 0)
    assert (again.applied, again.in_force, again.refused) == (0, 5, {})
    assert scene.broker.apply_plans() == []
    (run,) = scene.broker.plans().runs
    assert (run.rows, run.applied, run.in_force, run.pinned) == (5, 0, 5, 5)
    # Nothing but what became of it was written.
    assert scene.broker.engine.journal.position - position < 4_096


def test_after_a_restart_messages_are_held_to_the_plan_and_runs_are_known(scene: Scene) -> None:
    ids = scene.publish(3)
    scene.apply(*(scene.row(each) for each in ids))
    for closing in (True, False):
        if closing:
            scene.reopen()
        else:
            scene.broker.engine.checkpoint()
            scene.reopen()
        assert scene.pinned() == 3
        assert scene.broker.apply_plans() == []
        (run,) = scene.broker.plans().runs
        assert (run.run, run.state, run.applied, run.pinned) == ("r1", "applied", 3, 3)
    for each in ids:
        scene.until_on(each, "cold")


def test_a_message_that_leaves_takes_its_pin_along(scene: Scene) -> None:
    ids = scene.publish(2)
    scene.apply(*(scene.row(each) for each in ids))
    scene.until_on(ids[0], "cold")
    (lease,) = scene.broker.lease("q", 1)
    scene.broker.ack("q", [lease.token])
    assert scene.pinned() == 1
    scene.reopen()
    assert scene.pinned() == 1
    assert scene.broker.purge("q") == 1
    assert scene.pinned() == 0


def test_after_its_time_a_message_is_where_its_own_score_wants_it(scene: Scene) -> None:
    (one,) = scene.publish()
    scene.clock.advance(3 * DAY_MS)
    scene.until_on(one, "hdd")
    promoted = scene.row(one, action="promote", to_tier="fast", from_tier="slow")
    assert scene.apply(promoted).applied == 1
    scene.until_on(one, LOG)
    scene.clock.advance(HOUR_MS - 1)
    assert (scene.pinned(), scene.copies(one)) == (1, {LOG})
    scene.clock.advance(1)
    assert scene.pinned() == 0
    scene.until_on(one, "hdd")


def test_a_crossing_that_is_newer_wins(scene: Scene) -> None:
    (one,) = scene.publish()
    scene.clock.advance(2 * DAY_MS - 60_000)
    held = scene.row(one, action="move", to_tier="slow")
    assert scene.apply(held).applied == 1
    scene.until_on(one, "hdd")
    scene.clock.advance(1)
    pinned = scene.row(one, action="promote", to_tier="fast", from_tier="slow")
    assert scene.apply(pinned, run="r2").applied == 1
    scene.until_on(one, LOG)
    # 20 points, which it has after two days, are not yet above the threshold.
    scene.clock.advance(60_000)
    assert scene.pinned() == 0
    scene.until_on(one, "hdd")


def test_a_row_about_a_message_that_is_kept_so_already_is_not_counted_as_applied(
    scene: Scene,
) -> None:
    there, elsewhere = scene.publish(2)
    assert scene.apply(scene.row(there, action="move", to_tier="slow"), run="before").applied == 1
    scene.until_on(there, "hdd")
    scene.clock.advance(1)
    rows = [scene.row(each, action="move", to_tier="slow") for each in (there, elsewhere)]
    told = scene.apply(*rows)
    assert (told.rows, told.applied, told.in_force, told.refused) == (2, 1, 1, {})
    # It is held to it all the same.
    assert scene.pinned() == 2
    scene.until_on(elsewhere, "hdd")
    assert scene.copies(there) == {"hdd"}


def _leased(scene: Scene, message_id: str) -> dict[str, Any]:
    scene.broker.lease("q", 1)
    return scene.row(message_id)


def _leased_before(scene: Scene, message_id: str) -> dict[str, Any]:
    (lease,) = scene.broker.lease("q", 1)
    scene.broker.release("q", [lease.token])
    return scene.row(message_id)


def _declared_anew(scene: Scene, message_id: str) -> dict[str, Any]:
    row = scene.row(message_id)
    scene.broker.declare(QueueSpec("q", max_replicas=2), change=True)
    return row


def _crossed(scene: Scene, message_id: str) -> dict[str, Any]:
    scene.clock.advance(2 * DAY_MS - 1_000)
    row = scene.row(message_id)
    scene.clock.advance(2_000)
    return row


def _read(scene: Scene, message_id: str) -> dict[str, Any]:
    row = scene.row(message_id)
    scene.clock.advance(1)
    scene.broker.peek("q", counted=True)
    return row


def _acked(scene: Scene, message_id: str) -> dict[str, Any]:
    (lease,) = scene.broker.lease("q", 1)
    scene.broker.ack("q", [lease.token])
    return scene.row(message_id, generation=1)


def _old(scene: Scene, message_id: str) -> dict[str, Any]:
    row = scene.row(message_id, until_ms=START_MS + DAY_MS)
    scene.clock.advance(HOUR_MS + 1)
    return row


def _run_out(scene: Scene, message_id: str) -> dict[str, Any]:
    row = scene.row(message_id, until_ms=START_MS + 1_000)
    scene.clock.advance(1_000)
    return row


def _faded(scene: Scene, message_id: str) -> dict[str, Any]:
    """Faded while it was leased: it is about to be removed, but was not looked at yet."""
    scene.broker.declare(msgspec.structs.replace(SPEC, on_faded="remove"), change=True)
    (lease,) = scene.broker.lease("q", 1, lease_timeout_ms=10 * DAY_MS)
    scene.clock.advance(6 * DAY_MS)
    scene.broker.release("q", [lease.token])
    return scene.row(message_id, generation=1, policy_version=2)


OUTDATED: dict[str, Callable[[Scene, str], dict[str, Any]]] = {
    "gone": _acked,
    "not_ready": _leased,
    "generation": _leased_before,
    "policy_version": _declared_anew,
    "crossed": _crossed,
    "crossed because it was read": _read,
    "too_old": _old,
    "run_out": _run_out,
    "clock": lambda scene, one: scene.row(one, decided_at_ms=START_MS + 300_001),
    "unknown_tier": lambda scene, one: scene.row(one, to_tier="tape"),
    "out_of_bounds": lambda scene, one: scene.row(one, target=3),
    "gone because it is another queue's": lambda scene, one: scene.row(one, queue="p"),
    "invalid": lambda scene, one: scene.row(one, action="burn"),
    "invalid without copies": lambda scene, one: scene.row(one, target=0),
    "invalid id": lambda scene, one: scene.row("../" + one),
    "faded": _faded,
}


@pytest.mark.parametrize("case", OUTDATED)
def test_a_row_that_does_not_fit_is_refused_by_reason(scene: Scene, case: str) -> None:
    (one,) = scene.publish()
    told = scene.apply(OUTDATED[case](scene, one))
    assert (told.rows, told.applied, told.refused) == (1, 0, {case.partition(" ")[0]: 1})
    assert scene.pinned() == 0
    held = scene.holding(one)
    assert "cold" not in held.copies | held.pending


def test_a_message_that_faded_leaves_whatever_was_planned_for_it(scene: Scene) -> None:
    (one,) = scene.publish()
    assert scene.apply(_faded(scene, one)).refused == {"faded": 1}
    scene.clock.advance(1_000)
    assert (scene.broker.why(one)["state"], scene.broker.why(one)["reason"]) == ("removed", "faded")


def test_no_more_messages_than_can_be_are_held_to_plans(scene: Scene) -> None:
    first, second, third, _ = ids = scene.publish(4)
    assert scene.apply(scene.row(first), run="before").applied == 1
    scene.until_on(first, "cold")
    # Room for one more: the others are pins of a partition that nobody asks about.
    base, pins = name_of(99, 0), scene.broker.engine.pins
    others = range(base, base + limits.PINS_MAX - 2)
    parts = [others[at : at + 65_536] for at in range(0, len(others), 65_536)]
    advice = pins.of(name_of(*parse_id(first)))
    with scene.broker.engine.lock:
        for part in parts:
            pins.pin(part, advice)
    try:
        now_ms = START_MS + 10
        worth = dict(zip(ids, (1.0, 2.0, 4.0, 3.0), strict=True))
        told = scene.apply(
            *(scene.row(each, decided_at_ms=now_ms, value=worth[each]) for each in ids), run="r2"
        )
        # The first is where it should be already.
        assert (told.rows, told.applied, told.in_force) == (4, 1, 1)
        assert told.refused == {"too_many_pins": 2}
        assert scene.pinned() == limits.PINS_MAX
        assert [scene.broker.why(each).get("pinned", {}).get("run") for each in ids] == [
            "r2", None, "r2", None,
        ]  # fmt: skip
        scene.until_on(third, "cold")
        held = scene.holding(second)
        assert (held.copies, held.pending) == ({LOG}, frozenset())
    finally:
        with scene.broker.engine.lock:
            for part in parts:
                pins.forget(part)


def test_fewer_copies_than_the_publisher_asked_for_are_refused(scene: Scene) -> None:
    (one,) = scene.publish(replicas=2)
    told = scene.apply(scene.row(one, action="drop_copy", to_tier="fast", target=1))
    assert told.refused == {"out_of_bounds": 1}


def test_a_tier_whose_devices_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blocked").touch()
    place = str(tmp_path / "blocked" / "tape")
    gone = {"kind": "file", "directory": place, "tier": "tape", "capacity_bytes": ROOM}
    scene = Scene(tmp_path, tape=gone)
    try:
        scene.broker.declare(QueueSpec("q", tiers=("fast", "tape")), change=True)
        (one,) = scene.publish()
        told = scene.apply(scene.row(one, to_tier="tape", policy_version=2))
        assert told.refused == {"no_device": 1}
    finally:
        scene.broker.close()


ROWS = 3 * AT_ONCE
#: A device that gets full while rows are taken would refuse some of them for that.
SLOW = {"placement": {"move_bytes_per_s": 1 << 10}}
#: Rows of a plan about a message each: what the message at a place is worth.
WORTHS: dict[str, Callable[[int], float]] = {
    "the newest": float,
    "the oldest": lambda at: float(-at),
    "anywhere": lambda at: float(at * 7_919 % ROWS),
}


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("most", WORTHS)
def test_where_not_all_fit_the_most_valuable_do(tmp_path: Path, most: str, partitions: int) -> None:
    size, worth = 1 << 10, WORTHS[most]
    small = {"kind": "file", "capacity_bytes": size * ROWS // 2, "tier": "slow"}
    scene = Scene(tmp_path, settings=SLOW, hdd=small)
    try:
        scene.broker.declare(msgspec.structs.replace(SPEC, name="many", partitions=partitions))
        ids = [each.id for each in scene.broker.publish("many", [Message(bytes(size))] * ROWS)]
        values = {each: worth(at) for at, each in enumerate(ids)}
        fields = {"queue": "many", "action": "move", "to_tier": "slow"}
        told = scene.apply(*(scene.row(each, value=values[each], **fields) for each in ids))
        assert told.applied + told.refused["no_room"] == ROWS
        # Most of the room that half of them need is free, and all of it is used.
        assert ROWS * 0.4 < told.applied <= ROWS // 2
        by_value = sorted(ids, key=lambda each: -values[each])
        assert scene.held(ids) == set(by_value[: told.applied])
    finally:
        scene.broker.close()


def test_the_most_valuable_of_all_files_of_a_plan_come_first(tmp_path: Path) -> None:
    size = 1 << 10
    small = {"kind": "file", "capacity_bytes": size * ROWS // 2, "tier": "slow"}
    scene = Scene(tmp_path, settings=SLOW, hdd=small)
    try:
        ids = [each.id for each in scene.broker.publish("q", [Message(bytes(size))] * ROWS)]
        fields = {"action": "move", "to_tier": "slow", "bytes": size}
        rows = [scene.row(each, value=float(at), **fields) for at, each in enumerate(ids)]
        # Every tenth of those that would fit is refused for another reason.
        for row in rows[::-10]:
            row["generation"] = 1
        names = [layout.plan_file("r1", number) for number in range(4)]
        some = [rows[at : at + ROWS // 4] for at in range(0, ROWS, ROWS // 4)]
        files = [
            write(scene.lake, PLANS, name, each, None)
            for name, each in zip(names, some, strict=True)
        ]
        publish(scene.lake, PLANS, files, scene.broker.engine.clock.wall_ms(), rows=ROWS // 4)
        (told,) = scene.broker.apply_plans("r1")
        assert told.rows == ROWS
        assert told.refused["generation"] == -(-ROWS // 10)
        assert told.applied > ROWS * 0.4
        sound = [row["message_id"] for row in rows if not row["generation"]]
        assert scene.held(ids) == {*sound[-told.applied :]}
    finally:
        scene.broker.close()


def test_room_that_refused_rows_leave_is_for_the_most_valuable_of_the_others(
    tmp_path: Path,
) -> None:
    size = 1 << 10
    small = {"kind": "file", "capacity_bytes": size * ROWS // 2, "tier": "slow"}
    scene = Scene(tmp_path, settings=SLOW, hdd=small)
    try:
        ids = [each.id for each in scene.broker.publish("q", [Message(bytes(size))] * ROWS)]
        # Every second one was leased since, as far as its row knows.
        rows = [
            scene.row(each, action="move", to_tier="slow", value=float(at), generation=at % 2)
            for at, each in enumerate(ids)
        ]
        told = scene.apply(*rows)
        assert told.refused["generation"] == ROWS // 2
        assert told.applied > ROWS * 0.4
        assert scene.held(ids) == {*ids[::2][-told.applied :]}
    finally:
        scene.broker.close()


def test_rows_of_other_nodes_are_not_looked_at(scene: Scene) -> None:
    one, two = scene.publish(2)
    told = scene.apply(scene.row(one, node="n2"), scene.row(two), scene.row(one, node="n10"))
    assert (told.rows, told.applied) == (1, 1)
    assert scene.copies(one) == {LOG}


def test_of_two_plans_the_one_that_was_decided_later_wins(scene: Scene) -> None:
    (one,) = scene.publish()
    late, early = scene.row(one, to_tier="slow", action="move"), scene.row(one)
    early["decided_at_ms"] -= 1_000
    assert scene.apply(late, run="late").applied == 1
    assert scene.apply(early, run="early").refused == {"superseded": 1}
    newest = scene.row(one, decided_at_ms=START_MS + 10)
    assert scene.apply(newest, newest, run="newest").applied == 1
    scene.until_on(one, "cold")
    told = scene.broker.plans()
    assert [(each.run, each.pinned) for each in told.runs] == [
        ("late", 0), ("early", 0), ("newest", 1),
    ]  # fmt: skip


def test_a_node_whose_clock_is_minutes_off_takes_the_plan(scene: Scene) -> None:
    one, two = scene.publish(2)
    scene.clock.advance(300_000)
    now_ms = scene.broker.engine.now_ms()
    ahead = scene.row(one, decided_at_ms=now_ms + 240_000)
    behind = scene.row(two, decided_at_ms=now_ms - 240_000)
    assert scene.apply(ahead, behind).applied == 2
    assert scene.apply(ahead, behind).in_force == 2


def test_a_queue_that_nobody_scores_can_be_planned_for(scene: Scene) -> None:
    scene.broker.declare(QueueSpec("plain"))
    (receipt,) = scene.broker.publish("plain", [Message(b"1", ttl_ms=DAY_MS)])
    told = scene.apply(scene.row(receipt.id, queue="plain"))
    assert told.applied == 1
    scene.until_on(receipt.id, "cold")
    scene.clock.advance(HOUR_MS)
    assert scene.pinned() == 0


def test_rules_that_are_applied_anew_end_a_plan(scene: Scene) -> None:
    (one,) = scene.publish()
    scene.apply(scene.row(one))
    scene.until_on(one, "cold")
    scene.broker.put_rule(_rule("hdd"))
    assert scene.broker.apply_rules() == 1
    assert scene.pinned() == 0
    scene.until_on(one, "hdd")


def test_the_lake_is_looked_at_by_itself(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.config["feed"] = {"lake": str(scene.lake), "plans_every_ms": 1_000}
    scene.reopen()
    try:
        (one,) = scene.publish()
        write_plan(scene.lake, "r1", [scene.row(one)], START_MS)
        scene.clock.advance(1_000)
        scene.until_on(one, "cold")
        hidden = write(scene.lake, PLANS, "plans/run=r2/part-00000.parquet", [], None)
        scene.clock.advance(1_000)
        assert [each.run for each in scene.broker.plans().runs] == ["r1"]
        publish(scene.lake, PLANS, [hidden], START_MS, rows=0)
        scene.clock.advance(1_000)
        assert [each.run for each in scene.broker.plans().runs] == ["r1", "r2"]
    finally:
        scene.broker.close()


@pytest.mark.parametrize("ahead_ms", [-30 * DAY_MS, -2 * HOUR_MS, 2 * HOUR_MS, 30 * DAY_MS])
def test_a_plan_is_new_whatever_the_clock_of_who_wrote_it_says(
    tmp_path: Path, ahead_ms: int
) -> None:
    scene = Scene(tmp_path)
    scene.config["feed"] = {"lake": str(scene.lake), "plans_every_ms": 1_000}
    scene.reopen()
    try:
        first, second = scene.publish(2)
        write_plan(scene.lake, "r1", [scene.row(first)], START_MS)
        scene.clock.advance(1_000)
        # By its own clock the plan was made before the other one, or will be.
        write_plan(scene.lake, "r2", [scene.row(second)], START_MS + ahead_ms)
        scene.clock.advance(1_000)
        told = [(each.run, each.rows, each.applied) for each in scene.broker.plans().runs]
        assert told == [("r1", 1, 1), ("r2", 1, 1)]
        scene.reopen()
        assert scene.broker.apply_plans() == []
    finally:
        scene.broker.close()


def test_a_new_plan_that_is_older_than_an_hour_by_the_nodes_own_clock_is_refused_with_a_count(
    scene: Scene,
) -> None:
    ids = scene.publish(3)
    scene.clock.advance(2 * HOUR_MS)
    now_ms = scene.broker.engine.now_ms()
    times = {"decided_at_ms": now_ms - HOUR_MS - 1, "until_ms": now_ms + DAY_MS}
    others = [scene.row(ids[0], node="n2", decided_at_ms=now_ms)]
    rows = [scene.row(each, **times) for each in ids]
    write_plan(scene.lake, "r1", rows + others, now_ms)
    (told,) = scene.broker.apply_plans()
    assert (told.state, told.rows, told.refused) == ("applied", 3, {"too_old": 3})
    assert (scene.broker.apply_plans(), scene.pinned()) == ([], 0)
    # One row that is young enough, and all are looked at.
    write_plan(scene.lake, "r2", [*rows[1:], scene.row(ids[0])], now_ms)
    (told,) = scene.broker.apply_plans()
    assert (told.applied, told.refused) == (1, {"too_old": 2})


def test_of_a_lake_with_many_old_runs_only_what_was_not_seen_before_is_read(scene: Scene) -> None:
    (one,) = scene.publish()
    rows = [scene.row(one, decided_at_ms=START_MS - 2 * HOUR_MS)]
    for number in range(150):
        write_plan(scene.lake, f"r{number:03d}", rows, START_MS - 200 * HOUR_MS + number * HOUR_MS)
    told = scene.broker.apply_plans()
    # As many as can be remembered beside as many runs of rates.
    assert [each.run for each in told] == [f"r{number:03d}" for number in range(22, 150)]
    assert all(each.refused == {"too_old": 1} for each in told)
    for path in (scene.lake / "plans").rglob("r*/*.parquet"):
        path.unlink()
    for path in (scene.lake / "plans" / "_manifests").rglob("*.json"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert (scene.broker.apply_plans(), scene.broker.plans().problems) == ([], [])
    write_plan(scene.lake, "last", [scene.row(one)], START_MS)
    assert [(each.run, each.applied) for each in scene.broker.apply_plans()] == [("last", 1)]


def test_a_lake_that_cannot_be_read_is_told_of_and_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.config["feed"] = {"lake": str(scene.lake), "plans_every_ms": 1_000}
    scene.reopen()
    try:
        (one,) = scene.publish()
        write_plan(scene.lake, "r1", [scene.row(one)], START_MS)
        hidden = scene.lake.rename(tmp_path / "away")
        scene.lake.touch()
        scene.clock.advance(1_000)
        (problem,) = scene.broker.plans().problems
        assert "the lake cannot be read for advice" in problem
        assert problem in scene.broker.health()["feed"]
        assert scene.broker.health()["ready"]
        scene.lake.unlink()
        hidden.rename(scene.lake)
        scene.clock.advance(1_000)
        assert scene.broker.plans().problems == []
        scene.until_on(one, "cold")
    finally:
        scene.broker.close()


def test_what_is_no_plan_is_named_and_the_others_are_taken(scene: Scene) -> None:
    one, two = scene.publish(2)
    now_ms = scene.clock.wall_ms()
    write_plan(scene.lake, "future", [scene.row(one)], now_ms, version=9)
    torn = write_plan(scene.lake, "torn", [scene.row(one)], now_ms)
    torn.write_bytes(torn.read_bytes()[:-9] + b"PAR1")
    missing = write_plan(scene.lake, "missing", [scene.row(one)], now_ms)
    missing.unlink()
    outside = scene.lake / "plans" / "_manifests" / "date=2023-11-14" / "x.json"
    outside.write_text("{}")
    write_plan(scene.lake, "good", [scene.row(two)], now_ms)
    told = {each.run: each for each in scene.broker.apply_plans()}
    assert (told["good"].state, told["good"].applied) == ("applied", 1)
    assert told["torn"].state == told["missing"].state == "failed"
    assert "run=torn/part-00000.parquet" in told["torn"].detail
    problems = " ".join(scene.broker.plans().problems)
    assert "version 9 of plans" in problems
    assert "x.json is no manifest" in problems
    with pytest.raises(UnknownRun):
        scene.broker.apply_plans("future")
    assert scene.copies(one) == {LOG}


def test_a_run_that_cannot_be_read_is_named_once_and_newer_ones_are_taken(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.config["feed"] = {"lake": str(scene.lake), "plans_every_ms": 1_000}
    scene.reopen()
    try:
        ids = scene.publish(3)
        write_bad_plan(scene.lake, "r0", scene.row(ids[0]), START_MS)
        for number, one in enumerate(ids, 1):
            write_plan(scene.lake, f"r{number}", [scene.row(one)], START_MS + number)
        scene.clock.advance(1_000)
        bad, *good = scene.broker.plans().runs
        assert (bad.run, bad.state, bad.rows) == ("r0", "failed", 0)
        assert "plans/run=r0/part-00000.parquet cannot be read" in bad.detail
        assert [(each.run, each.applied) for each in good] == [("r1", 1), ("r2", 1), ("r3", 1)]
        assert scene.broker.plans().problems == []
        assert scene.broker.apply_plans() == []
    finally:
        scene.broker.close()


def test_a_plan_without_the_optional_columns_is_applied(scene: Scene) -> None:
    one, two = scene.publish(2)
    now_ms = scene.clock.wall_ms()
    optional = [column.name for column in PLANS.columns if not column.required]
    row = scene.row(one, action="drop_copy", to_tier=None)
    table = pa.Table.from_pylist([row], schema=schema_of(PLANS)).drop_columns(optional)
    path = scene.lake / layout.plan_file("r1", 0)
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    publish(scene.lake, PLANS, [path], now_ms, rows=1)
    write_plan(scene.lake, "r2", [scene.row(two)], now_ms + 1)
    told = [
        (each.run, each.state, each.in_force, each.applied) for each in scene.broker.apply_plans()
    ]
    assert told == [("r1", "applied", 1, 0), ("r2", "applied", 0, 1)]


def test_a_broker_with_nothing_but_its_log_refuses_to_move(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    config = {"node": "n1", "feed": {"lake": str(lake), "plans_every_ms": 0}}
    with Broker.open(tmp_path / "data", config, ManualClock(START_MS)) as broker:
        broker.declare(QueueSpec("q"))
        (receipt,) = broker.publish("q", [Message(b"1")])
        times = {"decided_at_ms": START_MS, "until_ms": START_MS + HOUR_MS}
        write_plan(lake, "r1", [plan_row(receipt.id, **times)], START_MS)
        (told,) = broker.apply_plans()
        assert told.refused == {"unknown_tier": 1}


def _rule(device: str) -> Any:
    from ebbmq.policy.rules.spec import RuleSpec  # noqa: PLC0415

    return RuleSpec("W-1", 90, device, "ALWAYS")


def test_pins_and_runs_outlive_the_segments_they_were_written_to(tmp_path: Path) -> None:
    scene = Scene(tmp_path, settings={"segment_bytes": 64 << 10})
    try:
        kept, unpinned = scene.publish(2)
        scene.apply(scene.row(kept), scene.row(unpinned, until_ms=START_MS + 1_000))
        for each in (kept, unpinned):
            scene.until_on(each, "cold")
        scene.clock.advance(1_000)
        assert scene.pinned() == 1
        first = {segment.number for segment in scene.broker.engine.journal.segments()}
        scene.broker.declare(QueueSpec("other"))

        def fill() -> bool:
            receipts = scene.broker.publish("other", [Message(bytes(4_000))] * 10)
            leases = scene.broker.lease("other", len(receipts))
            scene.broker.ack("other", [lease.token for lease in leases])
            scene.clock.advance(1)
            now = {segment.number for segment in scene.broker.engine.journal.segments()}
            return not first & now

        scene.until(fill)
        scene.broker.close()
        shutil.rmtree(tmp_path / "data" / "checkpoints")
        scene.broker = scene.open()
        assert scene.broker.why(kept)["pinned"]["run"] == "r1"
        assert "pinned" not in scene.broker.why(unpinned)
        assert [(each.run, each.applied) for each in scene.broker.plans().runs] == [("r1", 2)]
        assert scene.broker.apply_plans() == []
    finally:
        scene.broker.close()
