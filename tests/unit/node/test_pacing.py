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


class Engine:
    """What turns ask of an engine: somebody is served as long as the journal grows."""

    def __init__(self, served: int = 0) -> None:
        self.lock = threading.Lock()
        self.journal = SimpleNamespace(position=0)
        self.pauses: list[float] = []
        self._served = served

    def pause(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        if self._served:
            self._served -= 1
            self.journal.position += 1


def test_who_has_computed_for_a_while_rests_as_long() -> None:
    engine = Engine()
    turns = Turns(engine)  # type: ignore[arg-type]  # it is asked for little

    def work() -> None:
        turns.rest()
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        engine.pauses.clear()
        turns.rest()
        turns.rest()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 0.003 <= engine.pauses[0] <= 0.01


def test_who_computes_in_the_background_waits_while_somebody_is_served() -> None:
    engine = Engine(served=3)
    Turns(engine).give_way()  # type: ignore[arg-type]  # see above
    assert len(engine.pauses) == 4
    Turns(engine).give_way()  # type: ignore[arg-type]  # see above
    assert len(engine.pauses) == 5


def test_where_somebody_is_always_served_work_in_the_background_goes_on() -> None:
    engine = Engine(served=1 << 40)
    Turns(engine).give_way()  # type: ignore[arg-type]  # see above
    assert engine.pauses


def test_in_the_background_one_computes_at_a_time_and_the_others_in_the_order_they_came() -> None:
    turns = Turns(Engine())  # type: ignore[arg-type]  # see above
    assert turns.begin_alone()
    assert not turns.begin_alone()
    seen: list[str] = []
    is_in_line = threading.Event()

    def work() -> None:
        is_in_line.set()
        with turns.alone():
            seen.append("other")

    thread = threading.Thread(target=work)
    thread.start()
    is_in_line.wait()
    turns.end_alone()
    thread.join()
    assert seen == ["other"]
    assert turns.begin_alone()


def test_who_does_not_get_to_be_alone_goes_on_all_the_same() -> None:
    turns = Turns(Engine())  # type: ignore[arg-type]  # see above
    assert turns.begin_alone()
    with turns.alone():
        pass
    assert not turns.begin_alone()
    turns.end_alone()
    assert turns.begin_alone()
