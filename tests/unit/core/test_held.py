"""Facts about copies as journal records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import held
from ebbmq.core.copies import LOG, Gone, Held, Holding, name_of

devices = st.frozensets(st.sampled_from([LOG, "ssd", "hdd", "S3 \u00fc"]))
holdings = st.builds(
    Holding,
    devices,
    devices,
    devices,
    devices,
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.integers(1, 9),
)
names = st.builds(name_of, st.integers(0, 3), st.integers(0, 40))
told = st.one_of(st.builds(Held, names, holdings), st.builds(Gone, names, devices))


@given(st.lists(told, max_size=60, unique_by=lambda each: each.name))
def test_what_is_packed_comes_back(facts):
    packed = held.pack(facts)
    unpacked = [
        each
        for kind, pid, _, _, parts in packed
        for each in held.unpack(kind, pid, b"".join(parts))
    ]
    assert sorted(unpacked) == sorted(facts)
    assert sorted(seq for f in packed for seq in held.seqs_of(f.kind, b"".join(f.parts))) == sorted(
        each.name & 0xFFFF for each in facts
    )


def test_many_alike_are_one_small_record():
    facts = [Held(name_of(1, seq), Holding(target=2)) for seq in range(limits.RECORD_ROWS_MAX)]
    (record,) = held.pack(facts)
    assert (record.kind, record.pid, record.first) == (fact.HELD, 1, 0)
    assert record.size() < 40


def test_no_record_is_about_too_many():
    facts = [Gone(name_of(1, seq), frozenset({"ssd"})) for seq in range(limits.RECORD_ROWS_MAX + 1)]
    assert [record.first for record in held.pack(facts)] == [0, limits.RECORD_ROWS_MAX]
