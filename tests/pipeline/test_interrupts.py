"""Ctrl-C wherever Python is: it is raised where it is heard, or before something is published."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq.feed.plans import PLANS
from ebbmq.feed.runs import Record
from ebbmq_spark.directory_lake import DirectoryLake
from ebbmq_spark.interrupts import Interrupts, interrupts
from ebbmq_spark.jobs.writing import Output
from tests.pipeline.killing import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def as_without_a_session() -> Iterator[None]:
    """That which tests share has its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Let:
    """What is let go of while a signal comes."""


class Final:
    """The same, with a finaliser of its own."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def in_a_weakref_callback() -> None:
    let = Let()
    held = weakref.ref(let, lambda _: signal.raise_signal(signal.SIGINT))
    del let
    assert held() is None


def in_a_finaliser() -> None:
    Final()


def twice() -> None:
    in_a_finaliser()
    in_a_weakref_callback()


@pytest.mark.parametrize("drop", [in_a_weakref_callback, in_a_finaliser, twice])
def test_an_interrupt_that_python_drops_comes_again(drop: Callable[[], None]) -> None:
    waited, again = threading.Event(), signal.getsignal(signal.SIGURG)
    with pytest.raises(KeyboardInterrupt), Interrupts().heard():  # noqa: PT012  # where it comes is open
        drop()
        # As a call to Java, which nothing else ends.
        waited.wait(DEADLINE_S)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGURG) == again


def test_an_interrupt_that_comes_while_python_tells_of_another_error_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []

    def before(each: Any) -> None:
        told.append(each.exc_type)
        signal.raise_signal(signal.SIGINT)

    class Wrong:
        def __del__(self) -> None:
            raise ValueError

    monkeypatch.setattr(sys, "unraisablehook", before)
    with pytest.raises(KeyboardInterrupt), Interrupts().heard():  # noqa: PT012  # as above
        Wrong()
        threading.Event().wait(DEADLINE_S)
    assert (told, sys.unraisablehook) == ([ValueError], before)


def test_what_is_cut_off_is_cut_off_before_each_and_not_after_the_end() -> None:
    cut: list[int] = []
    heard = Interrupts()
    with pytest.raises(KeyboardInterrupt), heard.heard():  # noqa: PT012  # as above
        heard.cut_off_by(lambda: cut.append(1))
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), heard.heard():
        signal.raise_signal(signal.SIGINT)
    assert (cut, heard.count) == ([1], 2)


def test_a_handler_of_somebody_else_stays() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with Interrupts().heard():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_what_was_begun_before_an_interrupt_is_not_published_whoever_caught_it(
    tmp_path: Path,
) -> None:
    lake = DirectoryLake(tmp_path)
    begun = Output(lake, "run", 1)
    record = Record(run="run", kind="plan", started_at_ms=1, ended_at_ms=1)
    with interrupts.heard():
        # Not what the session that tests share has to say to Java.
        interrupts.cut_off_by(lambda: None)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            begun.publish(PLANS, ())
        with pytest.raises(KeyboardInterrupt):
            begun.end(record)
        assert not list(tmp_path.iterdir())
        # As a stream does, which says what it read until then.
        Output(lake, "run", 1).end(record)
    assert lake.list("runs") == ["runs/run.json"]


def test_what_a_session_without_a_handler_of_ours_would_cut_off_is_forgotten_with_it() -> None:
    cut: list[str] = []
    heard = Interrupts()
    with heard.heard():
        heard.cut_off_by(lambda: cut.append("outer"))
        with heard.heard():  # it leaves handling to the one around it
            heard.cut_off_by(lambda: cut.append("inner"))
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert cut == ["outer"]
