"""When what others keep in a shared place is counted, and what a count is good for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ebbmq import limits
from ebbmq.errors import StorageFailed
from ebbmq.holding.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S = limits.SHARED_COUNTED_EVERY_MS / 1_000
AT_ONCE = limits.SHARED_PAGES_AT_ONCE


class Place:
    """A listing of what stores have, one on a page, on a clock that is moved by hand."""

    def __init__(self, **stores: int) -> None:
        self.stores = stores
        self.own: dict[str, int] = {}
        self.seconds = 1_000.0
        self.asked = 0
        self.fails = False

    def pages(self) -> Iterator[list[tuple[str, int]]]:
        for each in list(self.stores.items()):
            self.asked += 1
            if self.fails:
                raise StorageFailed("it is away", "wait")
            yield [each]

    def sharing(self, capacity_bytes: int = 1_600, page_every_ms: int = 10_000) -> Sharing:
        return Sharing(
            capacity_bytes,
            lambda: self.own,
            self.pages,
            lambda: self.seconds,
            page_every_ms=page_every_ms,
        )

    def asked_since(self) -> int:
        asked, self.asked = self.asked, 0
        return asked


def test_own_stores_are_as_they_say_and_others_as_counted_last() -> None:
    place = Place(mine=7, other=100, third=10)
    sharing = place.sharing()
    assert sharing.used_bytes == 117
    place.own["mine"] = 9
    place.stores["other"] = 200
    assert sharing.used_bytes == 119
    place.seconds += EVERY_S
    sharing.go_on()
    assert sharing.used_bytes == 219


def test_it_is_not_counted_again_before_the_interval_has_passed() -> None:
    place = Place(other=100)
    sharing = place.sharing()
    sharing.go_on()
    assert place.asked_since() == 1
    place.seconds += EVERY_S - 1
    sharing.go_on()
    assert place.asked_since() == 0
    place.seconds += 1
    sharing.go_on()
    sharing.go_on()
    assert place.asked_since() == 1


def test_a_long_listing_is_read_in_parts_and_counts_once_it_is_complete() -> None:
    pages = 2 * AT_ONCE + 4
    place = Place(**{f"store-{n}": 1 for n in range(pages)})
    sharing = place.sharing()
    assert sharing.used_bytes == place.asked_since() == pages
    place.stores = dict.fromkeys(place.stores, 2)
    place.seconds += pages * 10 - 1
    sharing.go_on()
    assert place.asked_since() == 0
    place.seconds += 1
    for asked, used in ((AT_ONCE, pages), (AT_ONCE, pages), (4, 2 * pages), (0, 2 * pages)):
        sharing.go_on()
        assert (place.asked_since(), sharing.used_bytes) == (asked, used)


def test_a_listing_as_long_as_what_is_read_at_once_ends_all_the_same() -> None:
    place = Place(**{f"store-{n}": 1 for n in range(AT_ONCE)})
    sharing = place.sharing()
    sharing.go_on()
    place.stores["store-0"] = 5
    place.seconds += 10 * AT_ONCE + EVERY_S
    sharing.go_on()
    sharing.go_on()
    assert sharing.used_bytes == AT_ONCE + 4


def test_a_count_is_good_for_a_part_of_the_room_that_it_found() -> None:
    place = Place(other=800)
    sharing = place.sharing()
    assert sharing.used_bytes == 800
    place.asked = 0
    place.own["mine"] = 0
    for _ in range(5):
        sharing.look_before(10)
        place.own["mine"] += 10
    assert place.asked_since() == 0
    place.stores["other"] = 1_540
    sharing.look_before(10)
    assert (place.asked_since(), sharing.used_bytes) == (1, 1_590)


def test_what_does_not_fit_by_a_count_that_is_not_old_is_not_counted_again() -> None:
    place = Place(other=1_600)
    sharing = place.sharing()
    sharing.go_on()
    place.asked = 0
    sharing.look_before(1)
    assert place.asked_since() == 0
    # Also of a device that nobody probes.
    place.seconds += 2 * EVERY_S
    sharing.look_before(1)
    assert place.asked_since() == 1


def test_near_the_bound_a_long_listing_rests_between_two_puts() -> None:
    pages = 2 * AT_ONCE
    place = Place(**{f"store-{n}": 1 for n in range(pages)})
    sharing = place.sharing(capacity_bytes=pages + 10)
    for after_s, asked in ((0, pages), (0, 0), (pages - 1, 0), (1, pages)):
        place.seconds += after_s
        sharing.look_before(5)
        assert place.asked_since() == asked


def test_a_listing_that_fails_leaves_what_was_counted_and_is_begun_anew() -> None:
    place = Place(other=100, third=1)
    sharing = place.sharing()
    sharing.go_on()
    place.seconds += EVERY_S
    place.stores["other"], place.fails = 200, True
    for _ in range(2):
        with pytest.raises(StorageFailed):
            sharing.go_on()
    assert sharing.used_bytes == 101
    place.fails = False
    sharing.go_on()
    assert sharing.used_bytes == 201


@pytest.mark.parametrize("seed", range(20))
def test_brokers_exceed_the_bound_by_no_more_than_parts_of_the_room_of_those_before(
    seed: int,
) -> None:
    chance, capacity = random.Random(seed), 100_000
    places = [Place() for _ in range(4)]
    stores = places[0].stores
    brokers = []
    for number, place in enumerate(places):
        place.stores = stores
        stores[str(number)] = place.own[str(number)] = 0
        brokers.append(place.sharing(capacity))
        brokers[-1].go_on()
    for _ in range(2_000):
        number = chance.choices(range(4), [8, 4, 2, 1])[0]
        nbytes = chance.randrange(1, 500)
        brokers[number].look_before(nbytes)
        if brokers[number].used_bytes + nbytes <= capacity:
            stores[str(number)] += nbytes
            places[number].own[str(number)] += nbytes
    assert capacity - 500 < sum(stores.values()) <= capacity * (1 + 3 / 16)


def test_puts_far_from_the_bound_wait_for_a_long_count_by_probes() -> None:
    place = Place(**{f"other{n}": 1 for n in range(100 * AT_ONCE)})
    sharing = place.sharing(capacity_bytes=10**9, page_every_ms=1)
    sharing.go_on()
    assert place.asked_since() == 100 * AT_ONCE
    place.seconds += EVERY_S
    for _ in range(100):
        sharing.go_on()
        assert place.asked_since() <= AT_ONCE
        place.seconds += EVERY_S
        sharing.look_before(1)
        assert place.asked_since() == 0
