"""The index of packs against a dict."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbmq.holding import pack
from ebbmq.holding.contract import Key
from ebbmq.holding.pack_index import PackIndex

STORE = bytes(16)
#: Some on either side of where the high half of a number changes.
SEQS = [*range(30), *((1 << 32) + seq for seq in range(-6, 5))]
KEYS = st.builds(Key, st.just(STORE), st.integers(0, 2), st.sampled_from(SEQS))
STEPS = st.lists(st.tuples(st.booleans(), st.lists(KEYS, unique=True, max_size=20)), max_size=30)


def rows_of(keys, at):
    rows = np.zeros(len(keys), pack.ROW)
    rows["pid"] = [key.pid for key in keys]
    rows["seq"] = [key.seq for key in keys]
    rows["body_at"] = range(at, at + len(keys))
    rows["envelope_bytes"] = [key.seq % 3 for key in keys]
    rows["envelope_at"] = rows["body_at"] * 2
    return rows


@given(STEPS)
def test_the_index_of_packs_agrees_with_a_dict(steps):
    index, model = PackIndex(), {}
    for number, (adding, keys) in enumerate(steps, start=1):
        gone = sorted(model.pop(key) for key in keys if key in model)
        if adding:
            changed = index.add(number, rows_of(keys, 100 * number))
            model.update((key, (number, 100 * number + at)) for at, key in enumerate(keys))
        else:
            changed = index.remove(keys)
        assert sorted(zip(changed["pack"], changed["body_at"], strict=True)) == gone
    asked = [Key(STORE, pid, seq) for pid in range(3) for seq in SEQS]
    found = index.find(asked)
    for key, entry in zip(asked, found, strict=True):
        number, at = model.get(key, (0, 0))
        assert (entry["pack"], entry["body_at"]) == (number, at)
        size = key.seq % 3 if number else 0
        assert (entry["envelope_bytes"], entry["envelope_at"]) == (size, at * 2 if size else 0)
    assert (index.find_rows(rows_of(asked, 0)) == found).all()
    live = [(pid, seq) for pid, seqs, _ in index.live() for seq in seqs.tolist()]
    assert sorted(live) == sorted((key.pid, key.seq) for key in model)


def test_a_message_without_headers_takes_twelve_bytes_where_all_are_consecutive_and_of_one_length():
    index, each = PackIndex(), 18_000
    tracemalloc.start()
    for number in range(1, 17):
        rows = np.zeros(each, pack.ROW)
        rows["seq"] = np.arange(number * each, (number + 1) * each)
        rows["body_at"] = np.arange(each) * 12
        rows["envelope_at"] = 1 << 20
        rows["body_bytes"] = 8
        rows["crc"] = np.arange(each)
        index.add(number, rows)
    del rows
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown / (16 * each) < 13
