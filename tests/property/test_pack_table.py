"""A pack shows of every message what is true of it, however the messages were handed over."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.core import envelope
from ebbmq.holding import pack
from ebbmq.holding.columns import Batch, by_queue, columns_of
from ebbmq.holding.contract import Copy, Key, Properties
from ebbmq.holding.pack_table import table_of
from ebbmq.model import Message

STORE = b"s" * 16
SEQS = st.integers(0, (1 << 48) - 1) | st.integers(0, 300)
MESSAGES = st.builds(
    Message,
    st.binary(max_size=40),
    headers=st.none() | st.dictionaries(st.sampled_from("abc"), st.just("x"), min_size=1),
    key=st.none() | st.text("xyz", min_size=1, max_size=3),
    type=st.sampled_from(["BYTE", "TEXT"]),
)


@st.composite
def copies_of_a_queue(draw: st.DrawFn) -> list[Copy]:
    told = draw(st.booleans())
    out = []
    for pid, seq in draw(st.lists(st.tuples(st.integers(1, 20), SEQS), min_size=1, max_size=30)):
        message = draw(MESSAGES)
        block = b"" if not told or envelope.is_plain(message) else envelope.pack(message)
        payload = block + message.body
        importance, dead = draw(st.integers(1, 10)), draw(st.none() | st.integers(1, 1 << 47))
        properties = Properties("q", importance, draw(st.integers(0, 1 << 47)), dead, 0.25)
        out.append(
            Copy(
                Key(STORE, pid, seq),
                payload,
                crc32(payload),
                properties._replace(headers_bytes=len(block)) if told else None,
            )
        )
    return out


@settings(deadline=None)
@given(copies_of_a_queue())
def test_a_pack_says_what_is_true_of_each_message(copies: list[Copy]) -> None:
    table = pack.read_table(pack.write(table_of(columns_of(copies)))[0])
    latest = {copy.key: copy for copy in copies}
    for row, key in zip(table.to_pylist(), sorted(latest), strict=True):
        copy = latest[key]
        told = copy.properties
        read = envelope.EMPTY
        if told is not None and told.headers_bytes:
            read = envelope.unpack(copy.payload[: told.headers_bytes])
        assert row["id"] == f"{key.pid:x}-{key.seq:x}"
        assert (row["pid"], row["seq"], row["crc"]) == (key.pid, key.seq, copy.crc)
        assert row["envelope"] + row["body"] == copy.payload
        assert (row["type"], row["key"]) == (read.type, read.key)
        assert row["headers"] == (None if read.headers is None else list(read.headers.items()))
        if told is None:
            assert (row["importance"], row["dead_at"]) == (None, None)
        else:
            assert len(row["envelope"]) == told.headers_bytes
            assert (row["importance"], row["decay_rate"]) == (told.importance, told.decay_rate)
            assert (row["dead_at"] is None) == (told.dead_at_ms is None)


@settings(deadline=None)
@given(copies_of_a_queue(), st.integers(1, 60))
def test_a_batch_of_columns_is_the_copies_it_was_made_of(copies: list[Copy], size: int) -> None:
    batch = Batch(STORE, [columns_of(copies[at : at + size]) for at in range(0, len(copies), size)])
    assert list(batch) == copies
    assert batch.nbytes == sum(len(copy.payload) for copy in copies)
    (together,) = by_queue(batch)
    assert Batch(STORE, [together])[:] == copies
    cut = [each for part in together.cut(size) for each in Batch(STORE, [part])]
    assert cut == copies
    assert all(
        len(part.payloads) == 1 or sum(map(len, part.payloads)) <= size
        for part in together.cut(size)
    )
