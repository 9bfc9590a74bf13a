"""Calls to a device: reads first, changes in their order, neighbours together, all bounded."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ebbmq.node.devices.calls import PENDING_BYTES_MAX, Call, Verb, Waiting


def call(verb: Verb, *given: object, nbytes: int = 0) -> Call:
    return Call(verb, given, nbytes, Future())


def all_of(waiting: Waiting) -> list[tuple[str, list[Any]]]:
    taken = []
    while calls := waiting.take():
        taken.append((calls[0].verb, [each for call in calls for each in call.given]))
    return taken


def waiting_for(*calls: Call) -> Waiting:
    waiting = Waiting()
    for each in calls:
        waiting.add(each)
    return waiting


def test_reads_come_before_probes_and_those_before_changes() -> None:
    waiting = waiting_for(call("put", 1), call("probe"), call("get", 2))
    assert all_of(waiting) == [("get", [2]), ("probe", []), ("put", [1])]


def test_changes_keep_their_order_and_neighbours_of_a_kind_are_made_together() -> None:
    waiting = waiting_for(
        call("put", 1), call("put", 2, 3), call("delete", 1), call("scan", b"s"), call("scan", b"t")
    )
    assert all_of(waiting) == [
        ("put", [1, 2, 3]),
        ("delete", [1]),
        ("scan", [b"s"]),
        ("scan", [b"t"]),
    ]


def test_a_stream_of_reads_does_not_keep_changes_waiting_for_ever() -> None:
    waiting = waiting_for(call("put", 1))
    order = []
    for _ in range(40):
        waiting.add(call("get", 0))
        order.append(waiting.take()[0].verb)
    assert order.count("put") == 1


def test_large_puts_are_not_made_together() -> None:
    mib = 1 << 20
    waiting = waiting_for(*(call("put", i, nbytes=3 * mib) for i in range(3)))
    assert waiting.pending_bytes == 9 * mib
    assert all_of(waiting) == [("put", [0]), ("put", [1]), ("put", [2])]
    assert waiting.pending_bytes == 0


def test_there_is_room_for_one_call_of_any_size_and_for_no_more_than_the_bound() -> None:
    waiting = Waiting()
    assert waiting.has_room(PENDING_BYTES_MAX + 1)
    waiting.add(call("put", 1, nbytes=PENDING_BYTES_MAX))
    assert not waiting.has_room(1)
    assert waiting.has_room(0)


def test_a_call_that_was_cancelled_is_not_made() -> None:
    given_up = call("put", 1)
    waiting = waiting_for(given_up, call("put", 2))
    given_up.future.cancel()
    assert all_of(waiting) == [("put", [2])]


def test_taking_all_leaves_probes_unless_they_are_asked_for() -> None:
    waiting = waiting_for(call("put", 1, nbytes=5), call("probe"), call("get", 2))
    assert [each.verb for each in waiting.take_all()] == ["get", "put"]
    assert waiting.pending_bytes == 0
    assert [each.verb for each in waiting.take_all(probes=True)] == ["probe"]
    assert not waiting
