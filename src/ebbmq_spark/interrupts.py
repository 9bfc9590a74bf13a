"""Ctrl-C while Spark is at work: a KeyboardInterrupt that is never lost.

What a handler raises is heard only where Python can pass it on. In a weakref callback (py4j has one
for each object of Java), in a finaliser or in a callback of the collector it is dropped, and what
was to be interrupted goes on. So

1. what was dropped there is told to `sys.unraisablehook`, and a thread has the interrupt come again
   until it is raised where it is heard;
2. each interrupt is counted, and who is about to make something visible looks whether there was one
   since it began: also one that was caught in between by somebody else.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

#: Has an interrupt come again. One that comes late is ignored, as nobody waits for it.
_AGAIN: Final = signal.SIGURG
_EVERY_S: Final = 0.01


class Interrupts:
    """Those of this process; all of it is done in the main thread, as Python handles signals there.

    `count` is of all that ever came, `_lost` is the number of one that was raised and not heard.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lost = 0
        self._losses = 0
        self._cut_off: Callable[[], None] = lambda: None
        self._hook_before: Callable[[Any], Any] = sys.unraisablehook

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Have each interrupt heard from now on, if nobody else handles them."""
        is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        cut_off = self._cut_off
        if not is_ours or threading.current_thread() is not threading.main_thread():
            try:
                yield
            finally:
                self._cut_off = cut_off
            return
        disabled = logging.root.manager.disable
        hook, set_before = self._dropped, sys.unraisablehook
        hook_before = self._hook_before
        if set_before != hook:
            self._hook_before = set_before
        again = signal.signal(_AGAIN, self._come_again)
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            lost, self._lost = self._lost, 0
            if sys.unraisablehook == hook:
                sys.unraisablehook = set_before
            # None stands for a handler that Python did not set, and cannot set again.
            signal.signal(_AGAIN, signal.SIG_DFL if again is None else again)
            self._hook_before, self._cut_off = hook_before, cut_off
            logging.disable(disabled)
            if lost:
                # Also in place of an error: a call that was cut off may have come to one.
                raise KeyboardInterrupt

    def cut_off_by(self, cut_off: Callable[[], None]) -> None:
        """Say what else is to be done before an interrupt is raised, until `heard` ends.

        Interrupts come to the main thread: those of sessions of other threads cut nothing off.
        """
        if threading.current_thread() is threading.main_thread():
            self._cut_off = cut_off

    def check(self, since: int) -> None:
        """Raise the interrupt that came since there were so many; in other threads do nothing.

        Raises:
            KeyboardInterrupt: one came.
        """
        if self.count != since and threading.current_thread() is threading.main_thread():
            self._lost = 0
            raise KeyboardInterrupt

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._raise(frame)

    def _come_again(self, _number: int, frame: FrameType | None) -> None:
        if self._lost:
            self._raise(frame)

    def _raise(self, frame: FrameType | None) -> None:
        # py4j logs a traceback of each call that is cut off, also of those in other threads.
        logging.disable()
        self._cut_off()
        while frame is not None:
            if frame.f_code is Interrupts._dropped.__code__:
                # There it would be dropped, and nobody told.
                self._lose()
                return
            frame = frame.f_back
        self._lost = 0
        raise KeyboardInterrupt

    def _dropped(self, told: Any) -> None:
        """What Python tells of whatever it dropped."""
        if threading.current_thread() is not threading.main_thread():
            self._hook_before(told)
        elif issubclass(told.exc_type, KeyboardInterrupt):
            self._lose()
        else:
            self._hook_before(told)

    def _lose(self) -> None:
        self._losses += 1
        self._lost = self._losses
        # Not by `threading`: where Python is it may hold one of its locks.
        _thread.start_new_thread(self._send, (self._lost,))

    def _send(self, number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while self._lost == number:
            # It ends a wait for Java, too.
            signal.pthread_kill(main, _AGAIN)
            time.sleep(_EVERY_S)


interrupts: Final = Interrupts()
