"""Numbers and values by location."""

from __future__ import annotations

import tracemalloc

from ebbmq.core.located import Located, SharedValues


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


def test_an_entry_takes_at_most_ten_bytes():
    values = SharedValues("one copy")
    values.set(0, "two copies")
    tracemalloc.start()
    for offset in range(1, 100_000):
        values.set(offset, "two copies")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(values) == 100_000
    assert grown / 100_000 <= 10


def test_a_value_nobody_has_any_more_is_forgotten():
    values = SharedValues(0)
    for value in range(1, 1_000):
        values.set(7, value)
        assert values.get(7) == value
    values.set(7, 0)
    assert (len(values), list(values.items())) == (0, [])
    values.set(8, 5)
    values.set(9, 6)
    assert list(values.items()) == [(8, 5), (9, 6)]


def test_consecutive_locations_are_the_same_as_a_range_and_one_by_one():
    several = [range(10, 60), range(30, 90), range((1 << 16) - 20, (1 << 16) + 20)]
    as_ranges, one_by_one = SharedValues("one copy"), SharedValues("one copy")
    for number, locations in enumerate(several):
        as_ranges.set_many(locations, f"{number} more")
        for location in locations:
            one_by_one.set(location, f"{number} more")
    changed = as_ranges.change(range(20, 80), lambda value: value + "!")
    assert sorted((before, after, list(where)) for before, after, where in changed) == [
        ("0 more", "0 more!", list(range(20, 30))),
        ("1 more", "1 more!", list(range(30, 80))),
    ]
    one_by_one.change(list(range(20, 80)), lambda value: value + "!")
    assert list(as_ranges.items()) == list(one_by_one.items())
    assert sorted(as_ranges.counts()) == sorted(one_by_one.counts())
