"""How often a call is tried: what may be repeated, after how long, and when to give up.

1. A request that cannot have been carried out (`NotSent`, or answered with `draining`) is repeated.
2. One that may have been (`NoAnswer`) is repeated only if the call says that this is safe.
3. A client that was never answered does not repeat: a wrong address shows at once.
4. All tries together take no longer than the call's time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.client.calls import Reply
from ebbmq.client.exchange import NoAnswer, NotSent
from ebbmq.errors import Draining, EbbError, Unreachable
from ebbmq.wire.http import faults

if TYPE_CHECKING:
    from ebbmq.client.address import Address
    from ebbmq.client.calls import Call
    from ebbmq.client.exchange import Answer

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_ERROR_STATUS: Final = 400
#: Until when a producer's id is surely remembered: repeating a publish later could store it twice.
_REPEAT_S_MAX: Final = limits.DEDUP_WINDOW_MS / 1_000 * 0.8


class Tries:
    """The tries of one call; the caller does the waiting and says what time it is."""

    def __init__(
        self,
        call: Call[object],
        address: Address,
        *,
        now_s: float,
        timeout_ms: int,
        was_answered: bool,
    ) -> None:
        self._call = call
        self._address = address
        self._pause_s = _PAUSE_S
        self._was_answered = was_answered
        self.until_s = now_s + (timeout_ms + call.wait_ms) / 1_000
        self._repeat_until_s = min(self.until_s, now_s + _REPEAT_S_MAX + call.wait_ms / 1_000)
        #: Whether a try may have been carried out without anybody having heard of it.
        self.in_doubt = False

    def after_failure(self, failure: NotSent | NoAnswer, now_s: float) -> float:
        """Seconds to wait before the next try.

        Raises:
            Unreachable: there is none.
        """
        if isinstance(failure, NoAnswer):
            self.in_doubt = True
        hopeless = isinstance(failure, NotSent) and failure.hopeless
        may_repeat = self._call.repeatable or not self.in_doubt
        if hopeless or not may_repeat or not self._was_answered:
            raise self._unreachable(failure) from failure
        return self._next(now_s, self._unreachable(failure))

    def after_answer(self, answer: Answer, now_s: float) -> float | None:
        """Seconds to wait before the next try of a call that was refused for the moment.

        None: the answer settles the call.

        Raises:
            EbbError: the answer is an error; it is the one the server meant.
        """
        if not self._is_error(answer):
            return None
        error = faults.error_of(answer.status, answer.body)
        if isinstance(error, Draining):
            return self._next(now_s, error, answer.retry_after_s or 0)
        if self.in_doubt and self._call.done_if and isinstance(error, self._call.done_if):
            return None
        if isinstance(error, Unreachable):
            # A proxy answered in place of the server: what became of the request is not known.
            self.in_doubt = True
            if self._call.repeatable:
                return self._next(now_s, error)
        raise error

    def _is_error(self, answer: Answer) -> bool:
        return answer.status >= _ERROR_STATUS and answer.status != self._call.accepts

    def reply(self, answer: Answer) -> Reply:
        """What the answer that settles the call says."""
        value = None if self._is_error(answer) else self._call.read(answer.body)
        return Reply(value, self.in_doubt)

    def _next(self, now_s: float, error: EbbError, least_s: float = 0) -> float:
        spread = random.uniform(0.5, 1.0)  # noqa: S311  # so that clients do not come back together
        pause_s = max(least_s, self._pause_s * spread)
        self._pause_s = min(_PAUSE_S_MAX, self._pause_s * 2)
        if now_s + pause_s >= self._repeat_until_s:
            raise error
        return pause_s

    def _unreachable(self, failure: NotSent | NoAnswer) -> Unreachable:
        action = "check the URL and that the server runs: ebbmq serve"
        if isinstance(failure, NotSent) and failure.hopeless and self._address.tls is not None:
            action = "give the certificate it was signed with (ca_file, --ca-file), or another URL"
        if self.in_doubt and self._call.doubt:
            action = self._call.doubt
        return Unreachable(f"no answer from {self._address.url}: {failure}", action)
