"""How long a snapshot rests between its steps, so that who publishes hardly sees it."""

from __future__ import annotations

from typing import Final

#: A snapshot rests so many times as long as what it does takes, waits included: each time it waits
#: for the interpreter, somebody waits for it to be done with that.
_REST: Final = 99


class Pace:
    """Rests that are about as long after each step, though only some of them fill a file.

    To write a row takes longer than to read it, and comes for many at once. Who rested for the
    steps alone would hurry through them and then rest for seconds: so each step rests ahead for
    what writing its rows will take, by what that took the last time.
    """

    def __init__(self) -> None:
        #: What writing a row took the last time.
        self._row_s = 0.0
        #: Writing that was rested for and is not done yet.
        self._ahead_s = 0.0

    def begin(self) -> None:
        """Another snapshot: nothing of it is rested for."""
        self._ahead_s = 0.0

    def rest_s(self, step_s: float, rows: int, written_s: float, written_rows: int) -> float:
        """How long to rest after a step; with it rows may be written, its own and earlier ones."""
        expected_s = rows * self._row_s
        self._ahead_s += expected_s - written_s
        lacking_s = max(0.0, -self._ahead_s)
        self._ahead_s = max(0.0, self._ahead_s)
        if written_rows:
            self._row_s = written_s / written_rows
        return (step_s + expected_s + lacking_s) * _REST
