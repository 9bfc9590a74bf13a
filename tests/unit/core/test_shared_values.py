"""Values by location, equal ones kept once."""

from __future__ import annotations

import tracemalloc

from ebbmq.core.shared_values import SharedValues


def _grown(values, locations, value_of):
    tracemalloc.start()
    for location in locations:
        values.set(location, value_of(location))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown / len(locations)


def test_what_neighbours_have_in_common_takes_less_than_a_byte_each():
    values = SharedValues("one copy")
    assert _grown(values, range(100_000), lambda _: "two copies") <= 1
    assert len(values) == 100_000


def test_an_entry_between_others_that_are_unlike_takes_at_most_fourteen_bytes():
    unlike, apart = SharedValues(0), SharedValues(0)
    assert _grown(unlike, range(50_000), lambda location: location % 3 + 1) <= 14
    assert _grown(apart, range(0, 100_000, 2), lambda _: 1) <= 14


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


def test_a_location_that_comes_twice_is_counted_once():
    values = SharedValues("one copy")
    values.set_many([3, 9, 3], "two copies")
    assert values.counts() == [("two copies", 2)]
    many = [location * 3 for location in range(40)]
    values.set_many([*many, *many], "two copies")
    values.set_many(many, "one copy")
    assert (len(values), values.counts()) == (0, [])
