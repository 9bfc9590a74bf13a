"""What was heard, as stretches: the set of all numbers, in whichever parts they come."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ebbmq.feed import heard
from ebbmq.feed.heard import Stretch, Told, add
from ebbmq.feed.runs import Record, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.feed.heard import Added, Heard

PARTS = st.lists(st.lists(st.integers(1, 60), max_size=40), max_size=6)


def told(numbers: Sequence[int], node: str = "a", boot: int = 1) -> list[Told]:
    """A part as Spark tells of it."""
    out = []
    ordered = sorted(set(numbers))
    for _, run in groupby(enumerate(ordered), lambda each: each[1] - each[0]):
        these = [number for _, number in run]
        rows = sum(numbers.count(number) for number in these)
        out.append(Told(node, boot, Stretch(these[0], these[-1]), rows))
    return out


def missing(numbers: set[int]) -> set[int]:
    return set(range(min(numbers), max(numbers))) - numbers if numbers else set()


@given(PARTS)
def test_it_is_the_set_of_all_numbers(parts: list[list[int]]) -> None:
    known: Heard = {}
    model: set[int] = set()
    for part in parts:
        added = add(known, told(part))
        new, both = set(part), model | set(part)
        assert added.duplicates == len(part) - len(new - model)
        assert added.recovered == len(missing(model) & new)
        assert added.missing == len(missing(both) - missing(model))
        again = {n for place in added.again for n in range(place.first, place.last + 1)}
        assert again == model & new
        known, model = added.heard, both
        found = known.get("a", {}).get(1, ())
        assert {n for each in found for n in range(each.first, each.last + 1)} == model
        assert all(one.last + 1 < other.first for one, other in pairwise(found))


@given(PARTS)
def test_in_parts_it_is_what_it_is_at_once(parts: list[list[int]]) -> None:
    sums = [0, 0, 0]
    known: Heard = {}
    for part in parts:
        added = add(known, told(part))
        known = added.heard
        for at, value in enumerate((added.duplicates, added.missing, -added.recovered)):
            sums[at] += value
    whole = add({}, told([number for part in parts for number in part]))
    assert (sums[0], sums[1] + sums[2]) == (whole.duplicates, whole.missing)
    assert known == whole.heard


def test_of_many_gaps_the_oldest_are_counted_and_not_kept() -> None:
    odd = range(1, 8 * heard.STRETCHES_MAX, 2)
    sums: Added = add({}, told(list(odd)))
    found = sums.heard["a"][1]
    assert (len(found), sums.missing) == (heard.STRETCHES_MAX, len(odd) - 1)
    assert sum(each.count for each in found) == len(odd)
    # What is kept is a number for each place; what is not is in none.
    late = add(sums.heard, told([odd[-1] - 1]))
    assert (late.recovered, late.missing, late.duplicates) == (1, 0, 0)
    lost = add(sums.heard, told([2]))
    assert (lost.recovered, lost.missing, lost.duplicates) == (0, 0, 1)


def test_boots_and_nodes_have_numbers_of_their_own_and_the_last_boots_are_kept() -> None:
    boots = range(1, 3 * heard.BOOTS_MAX)
    added = add({}, [each for boot in boots for each in told([1, 2], "a", boot)] + told([7], "b"))
    assert (added.duplicates, added.missing) == (0, 0)
    assert list(added.heard["a"]) == list(boots)[-heard.BOOTS_MAX :]
    assert added.heard["b"] == {1: (Stretch(7, 7),)}


def test_it_is_kept_with_the_record_of_a_run() -> None:
    known = add({}, [*told([1, 2, 4]), *told([9], "b", 3)]).heard
    record = Record(run="r", kind="run", started_at_ms=1, ended_at_ms=2, heard=known)
    assert decode(encode(record), "r.json").heard == known
    before = msgspec.json.decode(encode(record))
    del before["heard"], before["recovered"]
    assert decode(msgspec.json.encode(before), "r.json").heard == {}
