"""How much is kept in a place that several brokers share, and when to count it anew.

Theory of operation. What stores of ours have there is known as it changes, for nobody else changes
it. What others have can only be counted, a page of a listing at a time. So a device counts it anew
at intervals, a few pages with each probe, and less often where that takes many pages. Between two
counts others go on writing, so a count is good for a part of the room that it found: who would put
more than that counts first. Far from the bound that is rare; near it every put counts.

So of n brokers each but the last to count may put that part of what room it found without seeing
the others: together they exceed the bound by n - 1 such parts at most, of room that there was about
a minute ago, and by what they put at the same instant.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    #: What some stores have of what is on one page.
    Page = Iterable[tuple[str, int]]

#: Where a count takes more pages than may be read at once, one before a put rests for this part
#: of the time that one with a probe does.
_REST_PART: Final = 10


class Sharing:
    """What is used of a place: by our own stores as they know it, by others as counted last."""

    def __init__(
        self,
        capacity_bytes: int,
        own: Callable[[], Mapping[str, int]],
        pages: Callable[[], Iterator[Page]],
        clock: Callable[[], float],
        *,
        page_every_ms: int,
    ) -> None:
        """Count nothing yet; `used_bytes` is the first that does.

        Args:
            capacity_bytes: what all stores together may have.
            own: what each store has that we keep account of.
            pages: every store with what it has, a page with each request; own ones may be left out.
            clock: seconds that never go back.
            page_every_ms: no more pages than that, on the long run.
        """
        self._capacity_bytes = capacity_bytes
        self._own = own
        self._pages = pages
        self._clock = clock
        self._page_every_ms = page_every_ms
        self._counted: dict[str, int] | None = None
        self._under_way: Iterator[None] | None = None
        self._pages_read = 0
        self._counted_at_ms = 0.0
        #: Up to here puts go by the last count.
        self._good_for_bytes = 0

    @property
    def used_bytes(self) -> int:
        """What all stores have; counted if it never was."""
        if self._counted is None:
            self.count()
        assert self._counted is not None
        own = self._own()
        others = sum([nbytes for store, nbytes in self._counted.items() if store not in own])
        return sum(own.values()) + others

    @property
    def is_counted(self) -> bool:
        """Whether it was counted since it was forgotten."""
        return self._counted is not None

    def counted(self, store: str) -> int:
        """What a store had when it was counted."""
        return (self._counted or {}).get(store, 0)

    def forget(self) -> None:
        """Have everything counted anew, own stores too."""
        self._counted = self._under_way = None

    def count(self) -> None:
        """Count all of it at once."""
        self._under_way = None
        for _ in self._counting():
            pass

    def go_on(self) -> None:
        """Count a bit of it if that is due; all of it if it never was counted."""
        if self._counted is None:
            self.count()
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            if self._age_ms() < self._every_ms():
                return
            under_way = self._counting()
        some = islice(under_way, limits.SHARED_PAGES_AT_ONCE)
        if sum(1 for _ in some) == limits.SHARED_PAGES_AT_ONCE:
            self._under_way = under_way

    def look_before(self, nbytes: int) -> None:
        """Count anew if so much is to be put and the last count may be wrong about its room.

        What does not fit by a count that is not old is not counted again: others that gave room
        back are found with a probe.
        """
        is_old = self._age_ms() >= 2 * self._every_ms() and self._under_way is None
        if self._counted is None or is_old:
            self.count()
            return
        is_near = self._good_for_bytes < self.used_bytes + nbytes <= self._capacity_bytes
        if is_near and self._age_ms() >= self._rest_ms():
            self.count()

    def _counting(self) -> Iterator[None]:
        begun_ms, found, pages_read = self._now_ms(), dict[str, int](), 0
        for page in self._pages():
            for store, nbytes in page:
                found[store] = found.get(store, 0) + nbytes
            pages_read += 1
            yield
        self._counted, self._counted_at_ms, self._pages_read = found, begun_ms, pages_read
        used = self.used_bytes
        self._good_for_bytes = (
            used + max(0, self._capacity_bytes - used) // limits.SHARED_ROOM_PARTS
        )

    def _every_ms(self) -> int:
        return max(limits.SHARED_COUNTED_EVERY_MS, self._pages_read * self._page_every_ms)

    def _rest_ms(self) -> float:
        if self._pages_read <= limits.SHARED_PAGES_AT_ONCE:
            return 0.0
        return self._pages_read * self._page_every_ms / _REST_PART

    def _age_ms(self) -> float:
        return self._now_ms() - self._counted_at_ms

    def _now_ms(self) -> float:
        return self._clock() * 1_000
