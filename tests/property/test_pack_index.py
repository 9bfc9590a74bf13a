"""The index of packs against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbmq.holding import pack
from ebbmq.holding.contract import Key
from ebbmq.holding.pack_index import PackIndex

STORE = bytes(16)
KEYS = st.builds(Key, st.just(STORE), st.integers(0, 2), st.integers(0, 40))
STEPS = st.lists(st.tuples(st.booleans(), st.lists(KEYS, unique=True, max_size=20)), max_size=30)


def rows_of(keys, at):
    rows = np.zeros(len(keys), pack.ROW)
    rows["pid"] = [key.pid for key in keys]
    rows["seq"] = [key.seq for key in keys]
    rows["body_at"] = range(at, at + len(keys))
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
    asked = [Key(STORE, pid, seq) for pid in range(3) for seq in range(41)]
    found = index.find(asked)
    for key, entry in zip(asked, found, strict=True):
        assert (entry["pack"], entry["body_at"]) == model.get(key, (0, 0))
    live = [(pid, seq) for pid, seqs, _ in index.live() for seq in seqs.tolist()]
    assert sorted(live) == sorted((key.pid, key.seq) for key in model)
