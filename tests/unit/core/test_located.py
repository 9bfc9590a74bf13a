"""Numbers by location, far apart."""

from __future__ import annotations

from ebbmq.core.located import Located


def test_a_location_without_a_number_has_none():
    located = Located()
    located.set(5, 0)
    assert (located.get(5), len(located), list(located.items())) == (0, 0, [])


def test_numbers_come_back_in_order_of_location_whatever_the_order_they_came_in():
    located = Located()
    for location in (2 << 32 | 7, 1 << 32 | 9, 1 << 32 | 3, 0x8000_0001 << 32 | 1):
        located.set(location, location % 5 + 1)
    assert [location for location, _ in located.items()] == [
        1 << 32 | 3,
        1 << 32 | 9,
        2 << 32 | 7,
        0x8000_0001 << 32 | 1,
    ]


def test_removed_entries_give_their_space_back():
    located = Located()
    for offset in range(10_000):
        located.set(offset, 1)
    for offset in range(9_999):
        located.set(offset, 0)
    assert list(located.items()) == [(9_999, 1)]
    located.set(9_999, 0)
    assert len(located) == 0
