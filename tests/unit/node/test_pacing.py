"""How fast copies are moved that nobody waits for."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from ebbmq.node.keeping.pacing import HandOver, Pace
from ebbmq.node.turns import Turns


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_moved_is_waited_for_at_the_rate_allowed() -> None:
    clock = Clock()
    pace = Pace(1_000, clock)
    assert pace.wait_s() == 0
    pace.took(520)
    assert pace.wait_s() == pytest.approx(0.5)
    clock.now_s += 0.25
    assert pace.wait_s() == pytest.approx(0.25)
    clock.now_s += 0.26
    assert pace.wait_s() == 0


def test_a_long_rest_allows_no_long_burst() -> None:
    clock = Clock()
    pace = Pace(1_000, clock)
    clock.now_s += 3_600
    assert pace.wait_s() == 0
    pace.took(100)
    assert pace.wait_s() == pytest.approx(0.08)


def test_threads_hand_over_quickly_as_long_as_anybody_asks_for_it() -> None:
    usual = sys.getswitchinterval()
    first, second = HandOver(), HandOver()
    first.be_quick(is_quick=True)
    second.be_quick(is_quick=True)
    assert sys.getswitchinterval() < usual
    first.be_quick(is_quick=False)
    first.be_quick(is_quick=False)
    assert sys.getswitchinterval() < usual
    second.be_quick(is_quick=False)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_of_those_in_the_background_only_one_stands_in_line_for_the_lock() -> None:
    engine = SimpleNamespace(lock=threading.Lock())
    turns = Turns(engine)  # type: ignore[arg-type]  # of the engine only the lock is asked for
    seen: list[bool] = []

    def work() -> None:
        for _ in range(50):
            with turns:
                seen.append(engine.lock.locked())

    threads = [threading.Thread(target=work) for _ in range(4)]
    with turns:
        for thread in threads:
            thread.start()
        # They wait for their turn, not for the lock: who serves a client gets it next.
        engine.lock.release()
        assert engine.lock.acquire(timeout=60)
        assert seen == []
    for thread in threads:
        thread.join()
    assert seen == [True] * 200
    assert not engine.lock.locked()


def test_who_has_computed_for_a_while_rests_as_long() -> None:
    rests: list[float] = []
    engine = SimpleNamespace(lock=threading.Lock(), pause=rests.append)
    turns = Turns(engine)  # type: ignore[arg-type]  # it is asked only for the lock and to pause

    def work() -> None:
        turns.rest()
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        turns.rest()
        turns.rest()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 0.003 <= rests[-1] <= 0.01
