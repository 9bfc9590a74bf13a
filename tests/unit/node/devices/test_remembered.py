"""What the data directory remembers of devices, changed by several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ebbmq.node.devices.evictions import Eviction, Evictions
from ebbmq.node.devices.identities import Identities, known_devices

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = [f"d{number}" for number in range(32)]


def test_devices_that_are_opened_and_given_up_at_the_same_time_are_all_remembered(
    tmp_path: Path,
) -> None:
    with ThreadPoolExecutor(8) as threads:
        # Ports and operators have one of their own each.
        list(threads.map(lambda name: Identities(tmp_path).note(name, b"x"), _NAMES))
        assert known_devices(tmp_path) == sorted(_NAMES)
        list(threads.map(lambda name: Identities(tmp_path).forget(name), _NAMES[1:]))
    assert known_devices(tmp_path) == ["d0"]


def test_devices_that_are_evicted_and_admitted_at_the_same_time_are_all_on_record(
    tmp_path: Path,
) -> None:
    evictions, eviction = Evictions(tmp_path), Eviction(1, "admit")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: evictions.note(name, eviction), _NAMES))
        again = Evictions(tmp_path)
        assert [again.of(name) for name in _NAMES] == [eviction] * len(_NAMES)
        assert list(threads.map(evictions.forget, _NAMES[1:])) == [eviction] * 31
    left = Evictions(tmp_path)
    assert [name for name in _NAMES if left.of(name)] == ["d0"]
