"""Scratch directories: gone in the end, and after kill -9 when the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from ebbmq_spark.scratch import KEPT_MAX, keep, scratch_directory

if TYPE_CHECKING:
    from pathlib import Path

    Holder = subprocess.Popen[str]

#: Holds one, says where it is, and waits for whoever ends it.
HOLD = """
import sys
from ebbmq_spark.scratch import scratch_directory
with scratch_directory("one-") as place:
    (place / "shuffled").write_bytes(b"x" * 1000)
    print(place.name, flush=True)
    sys.stdin.read()
"""


class Watch:
    """Presses Ctrl-C when a directory is removed, once: nobody can take it away again."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._is_done = False

    def __call__(self, event: str, told: tuple[object, ...]) -> None:
        """Hear of what Python does."""
        if event == "shutil.rmtree" and str(told[0]) == self._place and not self._is_done:
            self._is_done = True
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def holding() -> Holder:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def place_of(child: Holder) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def names(directory: Path) -> set[str]:
    return {place.name for place in directory.iterdir()}


@pytest.mark.crash
def test_what_a_killed_process_left_goes_with_the_next_and_what_is_held_or_kept_stays(
    tmp_path: Path,
) -> None:
    with holding() as killed, holding() as held:
        left, there = place_of(killed), place_of(held)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        (tmp_path / "one-of-another").mkdir()
        assert names(tmp_path) == {left, there, "one-of-another"}
        with scratch_directory("one-") as place:
            assert names(tmp_path) == {there, "one-of-another", place.name}
            assert names(tmp_path / there) == {"held", "shuffled"}
        held.communicate()
    assert names(tmp_path) == {"one-of-another"}


def test_one_that_is_empty_for_a_while_is_nobodys_and_one_that_was_just_made_stays(
    tmp_path: Path,
) -> None:
    for name in ("one-old", "one-new", "one-used"):
        (tmp_path / name).mkdir()
    (tmp_path / "one-used" / "file").touch()
    for name in ("one-old", "one-used"):
        os.utime(tmp_path / name, (0, 0))
    with scratch_directory("one-"):
        pass
    assert names(tmp_path) == {"one-new", "one-used"}


def test_a_removal_that_is_cut_off_is_gone_on_with_by_the_next(tmp_path: Path) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, cut_off)
    try:
        with pytest.raises(KeyboardInterrupt), scratch_directory("one-") as place:  # noqa: PT012  # it is raised at the end
            (place / "a").mkdir()
            (place / "a" / "file").touch()
            sys.addaudithook(Watch(place / "a"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert names(place) == {"a", "held"}
    with scratch_directory("one-"):
        pass
    assert not names(tmp_path)


def test_what_somebody_is_to_look_into_stays(tmp_path: Path) -> None:
    with scratch_directory("one-") as place:
        (place / "log").write_text("why")
        keep(place, "one-")
    with scratch_directory("one-"):
        assert (place / "log").read_text() == "why"
    assert names(tmp_path) == {place.name}


def test_of_what_is_kept_the_last_few_stay(tmp_path: Path) -> None:
    kept = []
    for _ in range(KEPT_MAX + 2):
        with scratch_directory("one-") as place:
            keep(place, "one-")
        kept.append(place.name)
    with scratch_directory("another-") as place:
        keep(place, "another-")
    assert names(tmp_path) == {*kept[-KEPT_MAX:], place.name}
