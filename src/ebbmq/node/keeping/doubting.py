"""Only copies that were read wrong: whether they are given up is not said at the first look.

A disk, a wire or a server may be wrong for a while and right later, but a copy that was deleted is
gone. So the only copy of a message is given up once it has been wrong for `DOUBT_MS`, whenever it
was read; until then the message rests, and is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.core.copies import Name

#: Longer than a restart of a server, or a failover, takes.
DOUBT_MS: Final = 10_000
#: As many are remembered; what was seen before them is doubted anew.
COUNT_MAX: Final = 10_000


class Doubts:
    """Since when only copies have been wrong."""

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[Name, int] = {}

    def __bool__(self) -> bool:
        return bool(self._since_ms)

    def are_over(self, name: Name, now_ms: int) -> bool:
        """An only copy was read wrong: whether it has been so for too long."""
        since_ms = self._since_ms.setdefault(name, now_ms)
        if now_ms - since_ms >= DOUBT_MS:
            del self._since_ms[name]
            return True
        if len(self._since_ms) > COUNT_MAX:
            del self._since_ms[next(iter(self._since_ms))]
        return False

    def end(self, names: Iterable[Name]) -> None:
        """Copies were read as they should be."""
        for name in names:
            self._since_ms.pop(name, None)
