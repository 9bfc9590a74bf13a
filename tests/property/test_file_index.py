"""The packed index of a file device against a dict, in runs as they come and one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.holding.contract import Key
from ebbmq.holding.file_format import Put
from ebbmq.holding.file_index import FileIndex, Place, places_of

OVERHEAD = 40
STORES = (b"a" * 16, b"b" * 16)
owners = st.tuples(st.sampled_from(STORES), st.integers(1, 2))
runs = st.tuples(st.integers(900, 2_100), st.integers(1, 300), st.integers(1, 3)).map(
    lambda run: list(range(run[0], run[0] + run[1] * run[2], run[2]))
)
segments = st.integers(0, 3)
changes = st.lists(st.tuples(owners, runs, segments), max_size=8)


@settings(deadline=None)
@given(changes)
def test_the_index_is_a_dict_that_counts(changes):
    index = FileIndex(OVERHEAD)
    expected: dict[Key, Place] = {}
    for (store, pid), seqs, segment in changes:
        numbers = np.array(seqs, dtype=np.int64)
        keys = [Key(store, pid, seq) for seq in seqs]
        if segment:
            index.add((store, pid), numbers, places_of(segment, numbers * 8, numbers, numbers + 7))
            expected |= {key: Place(segment, key.seq * 8, key.seq, key.seq + 7) for key in keys}
        else:
            index.remove([*keys, *keys[:3]])
            expected = {key: place for key, place in expected.items() if key not in set(keys)}
        found = index.find(keys).tolist()
        assert found == [list(expected.get(key, Place(0, 0, 0, 0))) for key in keys]
        assert index.present(keys) == [key for key in keys if key in expected]
    assert index.count == len(expected)
    assert index.live_bytes == sum(place.payload_bytes + OVERHEAD for place in expected.values())
    segments = [place.segment for place in expected.values()]
    assert index.live == {segment: segments.count(segment) for segment in set(segments)}
    for segment in (1, 2, 3):
        mine = {key: place for key, place in expected.items() if place.segment == segment}
        assert dict(index.in_segment(segment)) == mine
    for store in STORES:
        listed = {key: (nbytes, crc) for key, nbytes, crc in index.of_store(store)}
        assert listed == {
            key: (place.payload_bytes, place.crc)
            for key, place in expected.items()
            if key.store == store
        }


@settings(deadline=None)
@given(st.lists(st.tuples(owners, st.integers(900, 2_100), st.integers(1, 1_300), segments)))
def test_copies_put_as_a_run_are_where_they_would_be_one_by_one(changes):
    indexes = {is_run: FileIndex(OVERHEAD) for is_run in (True, False)}
    for (store, pid), first, count, segment in changes:
        seqs = np.arange(first, first + count)
        for is_run, index in indexes.items():
            put = Put(store, np.full(count, pid), seqs, seqs % 9, seqs + 7, [b""] * count, is_run)
            if segment:
                index.put(put, segment, 64)
            else:
                index.remove(put.names())
    run, other = indexes.values()
    assert (run.count, run.live, run.live_bytes) == (other.count, other.live, other.live_bytes)
    for segment in (1, 2, 3):
        assert dict(run.in_segment(segment)) == dict(other.in_segment(segment))


@settings(deadline=None)
@given(st.lists(st.tuples(owners, runs), max_size=4))
def test_keys_of_several_partitions_are_found_in_their_order(several):
    index, keys = FileIndex(OVERHEAD), []
    for number, ((store, pid), seqs) in enumerate(several, 1):
        numbers = np.array(seqs, dtype=np.int64)
        index.add((store, pid), numbers, places_of(number, numbers, numbers, numbers))
        keys += [Key(store, pid, seq) for seq in seqs]
    mixed = keys[::2] + keys[1::2]
    assert [index.find([key])[0].tolist() for key in mixed[:20]] == index.find(mixed)[:20].tolist()
