"""Bad input: each case gets a named error that says what to do, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import AsyncBroker, Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import (
    ClosedBroker,
    DirectoryInUse,
    EbbError,
    InvalidMessage,
    InvalidSpec,
    LeaseLost,
    QueueFull,
    StorageFailed,
    UnknownQueue,
)
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker.open(tmp_path / "data", clock=clock) as broker:
        broker.declare(QueueSpec("q", lease_timeout_ms=1_000))
        broker.publish("q", [Message(b"kept")])
        yield broker
        # Whatever a test did wrong, the message published before it is still there.
        clock.advance(600_000)
        clock.advance(600_000)
        assert b"kept" in [lease.body for lease in broker.lease("q", count=100)]


def check_error(error: EbbError, *words: str) -> None:
    """A named error: a code for programs, a detail with the culprit, an action for people."""
    assert error.code
    assert len(error.action) > 10
    for word in words:
        assert word in f"{error.detail} {error.action}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"importance": 0}, ("importance", "1", "10")),
        ({"importance": 11}, ("importance", "11", "10")),
        ({"importance": -1}, ("importance",)),
        ({"importance": 5.5}, ("importance",)),
        ({"importance": True}, ("importance",)),
        ({"importance": float("nan")}, ("importance",)),
        ({"ttl_ms": -1}, ("ttl_ms", "-1")),
        ({"ttl_ms": 0}, ("ttl_ms",)),
        ({"ttl_ms": float("nan")}, ("ttl_ms",)),
        ({"ttl_ms": 1.5}, ("ttl_ms",)),
        ({"ttl_ms": 10**18}, ("ttl_ms",)),
        ({"decay_rate": 2}, ("decay_rate", "2")),
        ({"decay_rate": -0.1}, ("decay_rate",)),
        ({"decay_rate": float("nan")}, ("decay_rate", "nan")),
        ({"decay_rate": float("inf")}, ("decay_rate",)),
        ({"decay_rate": "fast"}, ("decay_rate",)),
        ({"delay_ms": -5}, ("delay_ms",)),
        ({"delay_ms": float("nan")}, ("delay_ms",)),
        ({"headers": {"a": 1}}, ("header", "'a'")),
        ({"headers": {1: "a"}}, ("header",)),
        ({"headers": {"a": b"bytes"}}, ("header",)),
        ({"headers": ["a", "b"]}, ("headers",)),
        ({"id": ""}, ("id",)),
        ({"id": "x" * 256}, ("id", "255")),
        ({"key": 7}, ("key",)),
        ({"type": ""}, ("type",)),
        ({"replicas": 0}, ("replicas",)),
        ({"durable": "yes"}, ("durable",)),
    ],
)
def test_a_field_outside_its_limits_is_refused_by_name(
    fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Message(b"m", **fields)
    check_error(caught.value, *words)


@pytest.mark.parametrize("body", ["text", None, 7, bytearray(b"x"), memoryview(b"x"), ["a"]])
def test_a_body_that_is_not_bytes_is_refused(body: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Message(body)
    check_error(caught.value, "body", "bytes")


def test_a_body_of_one_gigabyte_is_refused(broker: Broker) -> None:
    body = bytes(1 << 30)
    with pytest.raises(InvalidMessage) as caught:
        broker.publish("q", [Message(body)])
    check_error(caught.value, str(1 << 30))


def test_headers_beyond_their_bound_are_refused(broker: Broker) -> None:
    with pytest.raises(InvalidMessage) as caught:
        broker.publish("q", [Message(b"m", headers={"h": "x" * 100_000})])
    check_error(caught.value, "header")
    assert broker.stats("q")["depth"]["ready"] == 1


@pytest.mark.parametrize("batch", [b"bytes", "text", 7, [b"bytes"], [None], [Message(b"a"), "b"]])
def test_a_batch_of_something_else_is_refused_whole(broker: Broker, batch: Any) -> None:
    with pytest.raises(InvalidMessage) as caught:
        broker.publish("q", batch)
    check_error(caught.value)
    assert broker.stats("q")["depth"]["ready"] == 1


@pytest.mark.parametrize(
    "body", [b"", b"body", bytearray(b"body"), memoryview(b"body"), "", "text"]
)
def test_a_body_in_place_of_a_message_is_refused_by_its_type(broker: Broker, body: Any) -> None:
    for publish in (broker.publish, broker.publish_topic):
        broker.declare_topic(TopicSpec("q"))
        with pytest.raises(InvalidMessage) as caught:
            publish("q", body)
        check_error(caught.value, f"not {type(body).__name__}", "Message(b'..')")


def test_an_unknown_confirm_level_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidMessage) as caught:
        broker.publish("q", [Message(b"m")], confirm="fsynced")  # type: ignore[arg-type]  # the point
    check_error(caught.value, "fsynced", "synced")
    assert broker.stats("q")["depth"]["ready"] == 1


CALLS_ON_A_QUEUE: list[Callable[[Broker], object]] = [
    lambda broker: broker.publish("ordres", [Message(b"m")]),
    lambda broker: broker.lease("ordres"),
    lambda broker: broker.ack("ordres", ["0" * 48]),
    lambda broker: broker.retry("ordres", ["0" * 48]),
    lambda broker: broker.release("ordres", ["0" * 48]),
    lambda broker: broker.extend("ordres", ["0" * 48], 1_000),
    lambda broker: broker.peek("ordres", 1),
    lambda broker: broker.stats("ordres"),
    lambda broker: broker.removals("ordres"),
    lambda broker: broker.purge("ordres"),
    lambda broker: broker.delete("ordres"),
    lambda broker: broker.pause("ordres"),
    lambda broker: broker.resume("ordres"),
    lambda broker: broker.redrive("ordres"),
    lambda broker: broker.subscribe("topic", "ordres"),
]


@pytest.mark.parametrize("number", range(len(CALLS_ON_A_QUEUE)))
def test_an_unknown_queue_is_named_and_the_nearest_one_suggested(
    broker: Broker, number: int
) -> None:
    broker.declare(QueueSpec("orders"))
    broker.declare_topic(TopicSpec("topic"))
    with pytest.raises(UnknownQueue) as caught:
        CALLS_ON_A_QUEUE[number](broker)
    check_error(caught.value, "ordres", "orders")


def test_an_unknown_topic_is_named(broker: Broker) -> None:
    with pytest.raises(UnknownQueue) as caught:
        broker.publish_topic("nowhere", [Message(b"m")])
    check_error(caught.value, "nowhere")


@pytest.mark.parametrize(
    "fields",
    [
        {"partitions": 0},
        {"partitions": 257},
        {"default_importance": 11},
        {"decay_rate": 2},
        {"decay_rate": float("nan")},
        {"decay_unit_ms": 0},
        {"band_width": -1},
        {"band_width": float("nan")},
        {"lease_timeout_ms": 0},
        {"max_attempts": -1},
        {"retry_delay_ms": -1},
        {"requeue": "head"},
        {"overflow": "explode"},
        {"on_stale": "keep"},
        {"max_messages": 0},
        {"retention_ms": -1},
        {"dead_queue": "spec"},
        {"default_device": "../../etc"},
        {"default_device": 7},
        {"dead_queue": ""},
    ],
)
def test_a_spec_outside_its_limits_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        QueueSpec("spec", **fields)
    check_error(caught.value, *([] if fields == {"dead_queue": ""} else fields))


@pytest.mark.parametrize("name", ["", " padded ", "new\nline", "x" * 256, 7, None])
def test_a_queue_name_that_cannot_be_used_is_refused(name: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        QueueSpec(name)
    check_error(caught.value, "name")


def test_a_token_given_twice_settles_once_and_is_not_an_ack_of_something_else(
    broker: Broker,
) -> None:
    broker.publish("q", [Message(b"other")])
    kept, other = broker.lease("q", count=2)
    with pytest.raises(LeaseLost) as caught:
        broker.ack("q", [other.token, other.token])
    check_error(caught.value)
    assert caught.value.tokens == [other.token]
    assert broker.stats("q")["depth"]["leased"] == 1
    broker.release("q", [kept.token])


def test_valid_tokens_apply_when_others_of_the_call_are_refused(broker: Broker) -> None:
    broker.publish("q", [Message(b"a"), Message(b"b")])
    kept, a, b = broker.lease("q", count=3)
    with pytest.raises(LeaseLost) as caught:
        broker.ack("q", [a.token, "0" * 48, b.token])
    assert caught.value.tokens == ["0" * 48]
    assert broker.stats("q")["depth"]["leased"] == 1
    broker.release("q", [kept.token])


def _forge(token: str) -> Iterator[str]:
    yield "0" * len(token)
    yield "f" * len(token)
    yield ""
    yield token[:-1]
    yield token + "0"
    yield "not hexadecimal"
    yield "é" * len(token)
    for at in range(0, len(token), 4):
        digit = "0" if token[at] != "0" else "1"
        yield token[:at] + digit + token[at + 1 :]


def test_a_forged_token_is_refused_whatever_digit_was_changed(broker: Broker) -> None:
    (kept,) = broker.lease("q")
    for verb in (broker.ack, broker.retry, broker.release):
        for forged in _forge(kept.token):
            with pytest.raises(LeaseLost) as caught:
                verb("q", [forged])
            check_error(caught.value)
    for forged in _forge(kept.token):
        with pytest.raises(LeaseLost):
            broker.extend("q", [forged], 1_000)
    assert broker.stats("q")["depth"]["leased"] == 1


def test_a_token_of_another_queue_is_refused(broker: Broker) -> None:
    broker.declare(QueueSpec("other"))
    (kept,) = broker.lease("q")
    with pytest.raises(LeaseLost):
        broker.ack("other", [kept.token])
    assert broker.stats("q")["depth"]["leased"] == 1


@pytest.mark.parametrize("token", [None, 7, b"0" * 48, ["nested"]])
def test_a_token_that_is_no_string_is_refused(broker: Broker, token: Any) -> None:
    with pytest.raises((LeaseLost, InvalidMessage)) as caught:
        broker.ack("q", [token])
    check_error(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 0},
        {"count": -1},
        {"count": 1_000_000_000},
        {"count": "many"},
        {"wait_ms": -1},
        {"lease_timeout_ms": 0},
        {"lease_timeout_ms": -5},
        {"lease_timeout_ms": float("nan")},
    ],
)
def test_a_lease_call_outside_its_limits_is_refused(
    broker: Broker, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        broker.lease("q", **arguments)
    check_error(caught.value, *arguments)


def test_a_full_queue_refuses_the_whole_batch_by_name(broker: Broker) -> None:
    broker.declare(QueueSpec("small", max_messages=3))
    broker.publish("small", [Message(b"1"), Message(b"2")])
    with pytest.raises(QueueFull) as caught:
        broker.publish("small", [Message(b"3"), Message(b"4")])
    check_error(caught.value, "small", "3")
    broker.publish("small", [Message(b"3")])
    assert [lease.body for lease in broker.lease("small", count=9)] == [b"1", b"2", b"3"]


def test_a_second_process_gets_directory_in_use_and_nothing_is_corrupted(
    broker: Broker, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from ebbmq import Broker\n"
        "from ebbmq.errors import DirectoryInUse\n"
        "try:\n"
        "    Broker.open(sys.argv[1])\n"
        "except DirectoryInUse as error:\n"
        "    assert error.action\n"
        "    sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=False)
    assert done.returncode == 42
    broker.publish("q", [Message(b"still working")])


def test_the_same_process_cannot_open_a_directory_twice(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(DirectoryInUse) as caught:
        Broker.open(tmp_path / "data")
    check_error(caught.value, str(tmp_path))
    assert broker.stats("q")["depth"]["ready"] == 1


def test_a_forked_child_gets_a_named_error_and_the_parent_goes_on(broker: Broker) -> None:
    child = os.fork()
    if child == 0:
        try:
            broker.publish("q", [Message(b"from the child")])
        except ClosedBroker as error:
            os._exit(42 if "after forking" in error.action else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    broker.publish("q", [Message(b"from the parent")])
    assert broker.stats("q")["depth"]["ready"] == 2


def test_a_closed_broker_says_so(tmp_path: Path) -> None:
    broker = Broker.open(tmp_path)
    broker.declare(QueueSpec("q"))
    broker.close()
    broker.close()
    with pytest.raises(ClosedBroker) as caught:
        broker.publish("q", [Message(b"m")])
    check_error(caught.value)


def test_a_read_only_directory_is_refused_by_name(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write to a read-only directory; see the crash tests for a mount")
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed) as caught:
        Broker.open(tmp_path / "data")
    check_error(caught.value, str(tmp_path))


def test_a_path_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageFailed) as caught:
        Broker.open(tmp_path / "data")
    check_error(caught.value, str(tmp_path))


@pytest.mark.parametrize("name", ["store.json", "removals/removals.log", "journal", "checkpoints"])
def test_a_part_of_a_directory_that_cannot_be_read_is_refused_by_name_each_time(
    tmp_path: Path, name: str
) -> None:
    Broker.open(tmp_path).close()
    part, aside = tmp_path / name, tmp_path / "aside"
    part.rename(aside)
    if aside.is_dir():
        part.write_text("a file")
    else:
        part.mkdir()
    for _ in range(2):
        with pytest.raises(StorageFailed) as caught:
            Broker.open(tmp_path)
        check_error(caught.value, str(tmp_path))
    if part.is_dir():
        part.rmdir()
    else:
        part.unlink()
    aside.rename(part)
    Broker.open(tmp_path).close()


def test_an_unknown_configuration_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Broker.open(tmp_path, config={"segment_byte": 1})
    check_error(caught.value, "segment_byte", "segment_bytes")


def _filled(directory: Path, clock: ManualClock) -> None:
    with Broker.open(directory, clock=clock) as broker:
        broker.declare(QueueSpec("q", decay_rate=1.0, lease_timeout_ms=1_000))
        broker.publish("q", [Message(b"decays"), Message(b"expires", ttl_ms=60_000)])
        clock.advance(10)


@pytest.mark.parametrize(
    "jump_ms", [-DAY_MS, -YEAR_MS, 8 * DAY_MS, YEAR_MS], ids=["-day", "-year", "8 days", "year"]
)
def test_after_a_jump_of_the_clock_across_a_restart_nothing_is_removed_by_age(
    tmp_path: Path, jump_ms: int
) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() + jump_ms)
    with Broker.open(tmp_path, clock=after) as broker:
        after.advance(10 * DAY_MS)
        assert broker.removals("q") == []
        leases = broker.lease("q", count=10)
        assert sorted(lease.body for lease in leases) == [b"decays", b"expires"]
        assert all(lease.current_importance >= 0 for lease in leases)
        broker.ack("q", [lease.token for lease in leases])


@pytest.mark.parametrize("jump_ms", [-YEAR_MS, YEAR_MS], ids=["-year", "year"])
def test_a_jump_of_the_clock_is_remembered_until_it_is_accepted(
    tmp_path: Path, jump_ms: int
) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() + jump_ms)
    for _ in range(3):
        with Broker.open(tmp_path, clock=after) as broker:
            assert not broker.health()["ready"]
            assert "clock" in broker.health()["problems"][0]
            after.advance(DAY_MS)
            broker.engine.checkpoint()
            assert broker.removals("q") == []
    with Broker.open(tmp_path, clock=after, accept_clock=True) as broker:
        assert broker.health()["ready"]
        assert sorted(each.reason for each in broker.removals("q")) == ["expired", "stale"]
        broker.publish("q", [Message(b"fresh")])
        assert [seen.enqueued_at_ms for seen in broker.peek("q")] >= [after.wall_ms()]
    with Broker.open(tmp_path, clock=after) as broker:
        assert broker.health()["ready"]


def test_a_jump_of_the_clock_can_be_accepted_by_an_async_broker(tmp_path: Path) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() + YEAR_MS)

    async def reopened(*, accept_clock: bool) -> bool:
        async with await AsyncBroker.open(
            tmp_path, clock=after, accept_clock=accept_clock
        ) as broker:
            return bool((await broker.health())["ready"])

    assert not asyncio.run(reopened(accept_clock=False))
    assert asyncio.run(reopened(accept_clock=True))


@pytest.mark.parametrize("jump_ms", [-YEAR_MS, YEAR_MS], ids=["-year", "year"])
def test_a_clock_that_was_corrected_is_believed_again(tmp_path: Path, jump_ms: int) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    with Broker.open(tmp_path, clock=ManualClock(before.wall_ms() + jump_ms)) as broker:
        assert not broker.health()["ready"]
    right = ManualClock(before.wall_ms() + 1_000)
    with Broker.open(tmp_path, clock=right) as broker:
        assert broker.health()["ready"]
        ages = [right.wall_ms() - seen.enqueued_at_ms for seen in broker.peek("q")]
        assert ages == [1_010, 1_010]


@pytest.mark.parametrize("behind_ms", [1, 60_000])
def test_a_clock_put_back_by_a_minute_or_less_did_not_jump(tmp_path: Path, behind_ms: int) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    for _ in range(3):
        after = ManualClock(before.wall_ms() - behind_ms)
        with Broker.open(tmp_path, clock=after) as broker:
            assert broker.health()["ready"]
            assert broker.engine.now_ms() >= before.wall_ms()
    with Broker.open(tmp_path, clock=after) as broker:
        after.advance(10 * DAY_MS)
        assert sorted(each.reason for each in broker.removals("q")) == ["expired", "stale"]


def test_a_clock_put_back_by_more_than_a_minute_jumped(tmp_path: Path) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    with Broker.open(tmp_path, clock=ManualClock(before.wall_ms() - 60_001)) as broker:
        assert not broker.health()["ready"]


def test_leases_still_expire_after_a_jump_of_the_clock(tmp_path: Path) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() - YEAR_MS)
    with Broker.open(tmp_path, clock=after) as broker:
        first = broker.lease("q", count=10)
        after.advance(1_000)
        after.advance(1_000)
        second = broker.lease("q", count=10)
        assert {lease.id for lease in first} == {lease.id for lease in second}
        assert {lease.failures for lease in second} == {1}


def test_queue_time_does_not_run_backwards_when_the_clock_does(tmp_path: Path) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() - YEAR_MS)
    with Broker.open(tmp_path, clock=after) as broker:
        broker.publish("q", [Message(b"later")])
        (later,) = [p for p in broker.peek("q", 10) if p.body == b"later"]
        assert later.enqueued_at_ms >= before.wall_ms()


def test_a_restart_within_seven_days_removes_by_age_as_ever(tmp_path: Path) -> None:
    before = ManualClock()
    _filled(tmp_path, before)
    after = ManualClock(before.wall_ms() + 6 * DAY_MS)
    with Broker.open(tmp_path, clock=after) as broker:
        assert sorted(r.reason for r in broker.removals("q")) == ["expired", "stale"]


def test_a_batch_that_does_not_fit_in_one_of_several_partitions_is_refused_whole(
    broker: Broker,
) -> None:
    broker.declare(QueueSpec("split", partitions=4, max_messages=40))
    keyed = [Message(b"%d" % number, key=str(number % 7)) for number in range(200)]
    with pytest.raises(QueueFull) as caught:
        broker.publish("split", keyed)
    check_error(caught.value, "split")
    assert sum(broker.stats("split")["depth"].values()) == 0


def test_a_producer_id_of_a_refused_publish_can_be_used_again(broker: Broker) -> None:
    broker.declare(QueueSpec("small", max_messages=2))
    batch = [Message(b"%d" % number, id=f"p{number}") for number in range(3)]
    with pytest.raises(QueueFull):
        broker.publish("small", batch)
    receipts = broker.publish("small", batch[:2])
    assert [receipt.duplicate for receipt in receipts] == [False, False]
    assert [lease.body for lease in broker.lease("small", count=5)] == [b"0", b"1"]
