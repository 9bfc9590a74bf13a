"""The archive in an object store: any Parquet reader reads it, failing requests cost nothing."""

from __future__ import annotations

import random
import time

import crc32c
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from ebbmq.core import envelope
from ebbmq.errors import StorageFailed
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Copy, Key, Lack, Properties
from ebbmq.holding.objects import ObjectDevice
from ebbmq.model import Message
from tests.integration.kinds import MIB, spec

STORE = b"s" * 16


def key(seq):
    return Key(STORE, 1, seq)


def copy(seq, body=None, *, queue="orders", **properties):
    body = f"body {seq}".encode() if body is None else body
    block = envelope.pack(Message(body, **properties)) if properties else b""
    known = Properties(queue, 7, 1_700_000_000_000 + seq, None, 0.25, len(block))
    return Copy(key(seq), block + body, crc32c.crc32c(block + body), known)


def opened(directory, bucket=Bucket):
    return ObjectDevice(spec(True), bucket(directory.as_uri()), time.perf_counter)


def seqs_in(device):
    return sorted(stored.key.seq for stored in device.scan(STORE))


def packs(directory):
    return sorted(directory.rglob("pack-*.parquet"))


def test_the_archive_is_a_table_with_the_properties_as_columns(tmp_path):
    device = opened(tmp_path)
    device.put_many(
        [
            copy(1, b"first", headers={"region": "eu"}, type="TEXT", id="p-1", key="k"),
            copy(2, b"second"),
            copy(3, b"third", queue="payments"),
        ]
    )
    table = pyarrow.dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda row: row["seq"])
    assert [row["body"] for row in rows] == [b"first", b"second", b"third"]
    assert [row["queue"] for row in rows] == ["orders", "orders", "payments"]
    assert rows[0]["store"] == STORE.hex()
    assert dict(rows[0]["headers"]) == {"region": "eu"}
    assert [rows[0][name] for name in ("id", "type", "key", "producer_id")] == [
        "1-1",
        "TEXT",
        "k",
        "p-1",
    ]
    assert (rows[1]["importance"], rows[1]["decay_rate"], rows[1]["headers"]) == (7, 0.25, None)
    assert rows[1]["enqueued_at"].timestamp() * 1_000 == 1_700_000_000_002
    assert device.get_many([key(1), key(2)]) == [copy(1, b"first", headers={"region": "eu"},
                                                      type="TEXT", id="p-1", key="k").payload,
                                                 b"second"]  # fmt: skip


def test_row_groups_are_small_and_bodies_plain_and_uncompressed(tmp_path):
    chance = random.Random(1)
    device = opened(tmp_path)
    bodies = [chance.randbytes(chance.choice([10, 1_000, 30_000])) for _ in range(500)]
    bodies.append(bytes(3 * MIB))
    device.put_many([copy(seq, body) for seq, body in enumerate(bodies)])
    (path,) = packs(tmp_path)
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups > 3
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        assert group.total_byte_size <= 1.1 * MIB or group.num_rows == 1
        body = group.column(metadata.num_columns - 1)
        assert (body.path_in_schema, body.compression) == ("body", "UNCOMPRESSED")
        assert "PLAIN" in body.encodings
        assert not body.has_dictionary_page
    assert pq.read_table(path)["body"].to_pylist() == bodies
    assert device.get_many([key(seq) for seq in range(501)]) == bodies


@pytest.mark.parametrize("queue", ["../../etc", "a/b c%41", "grün", "a=b", "."])
def test_any_queue_name_is_one_directory_and_comes_back(tmp_path, queue):
    device = opened(tmp_path / "inside")
    device.put_many([copy(1, queue=queue)])
    assert opened(tmp_path / "inside").get_many([key(1)]) == [b"body 1"]
    assert {path.name for path in tmp_path.iterdir()} == {"inside"}
    table = pyarrow.dataset.dataset(tmp_path / "inside/archive", partitioning="hive").to_table()
    assert table["queue"].to_pylist() == [queue]


def test_long_queue_names_have_directories_of_their_own(tmp_path):
    names = ["ü" * 255, "ü" * 254 + "a", "x" * 255, "x" * 254 + "y"]
    device = opened(tmp_path)
    device.put_many([copy(seq, queue=name) for seq, name in enumerate(names)])
    assert len({path.parent for path in packs(tmp_path)}) == 4
    assert seqs_in(opened(tmp_path)) == [0, 1, 2, 3]


def test_a_flipped_bit_costs_one_body_and_not_its_neighbours(tmp_path):
    device = opened(tmp_path)
    device.put_many([copy(seq, bytes([seq]) * 500) for seq in range(10)])
    (path,) = packs(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(bytes([5]) * 500) + 100] ^= 4
    path.write_bytes(data)
    for again in (device, opened(tmp_path)):
        found = again.get_many([key(seq) for seq in range(10)])
        assert found[5] is Lack.DAMAGED
        assert found[:5] + found[6:] == [bytes([seq]) * 500 for seq in range(10) if seq != 5]
    device.put_many([copy(5, b"repaired")])
    assert opened(tmp_path).get_many([key(5)]) == [b"repaired"]


@pytest.mark.parametrize("damage", ["cut", "footer", "gone"])
def test_a_pack_that_cannot_be_read_costs_its_own_messages_only(tmp_path, damage):
    device = opened(tmp_path)
    device.put_many([copy(1, bytes(2_000))])
    device.put_many([copy(2, bytes(2_000))])
    first, _ = packs(tmp_path)
    data = first.read_bytes()
    if damage == "gone":
        first.unlink()
    else:
        first.write_bytes(data[:500] if damage == "cut" else data[:-300] + bytes(300))
    if damage != "footer":
        assert device.get_many([key(1), key(2)]) == [Lack.DAMAGED, bytes(2_000)]
    again = opened(tmp_path)
    assert again.get_many([key(1), key(2)]) == [Lack.MISSING, bytes(2_000)]
    if damage != "gone":
        assert "1 packs cannot be read" in again.probe().detail
        again.delete_many([key(2)])
        assert first.exists()


def rest(device):
    """Let so many calls pass that what is not consumed any more is known to rest."""
    for _ in range(20):
        device.delete_many([key(999_999)])


def test_packs_that_nobody_wants_go_and_thin_ones_are_rewritten(tmp_path):
    device = opened(tmp_path)
    device.put_many([copy(seq, bytes(1_000)) for seq in range(1_000)])
    device.put_many([copy(seq, bytes(1_000)) for seq in range(1_000, 2_000)])
    before = device.probe().used_bytes
    device.delete_many([key(seq) for seq in range(600)])
    rest(device)
    assert device.probe().used_bytes < before - 500_000
    device.delete_many([key(seq) for seq in range(1_000, 2_000)])
    assert len(packs(tmp_path)) == 1
    assert seqs_in(opened(tmp_path)) == list(range(600, 1_000))
    device.delete_many([key(seq) for seq in range(600, 1_000)])
    assert packs(tmp_path) == []
    device.put_many([copy(600)])
    assert seqs_in(opened(tmp_path)) == [600]


def test_a_pack_that_is_being_consumed_is_not_rewritten_unless_its_space_is_needed(tmp_path):
    device = opened(tmp_path)
    device.put_many([copy(seq, bytes(1_000)) for seq in range(1_000)])
    (first,) = packs(tmp_path)
    for seq in range(0, 900, 30):
        device.delete_many([key(each) for each in range(seq, seq + 30)])
        assert packs(tmp_path) == [first]
    device.put_many([copy(seq, bytes(66_000)) for seq in range(2_000, 3_010)])
    assert first not in packs(tmp_path)
    assert seqs_in(device) == [*range(900, 1_000), *range(2_000, 3_010)]


def test_many_small_puts_and_deletes_leave_few_objects(tmp_path):
    device = opened(tmp_path)
    for seq in range(300):
        device.put_many([copy(seq, bytes(100))])
        if seq % 2:
            device.delete_many([key(seq)])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) < 80
    assert seqs_in(opened(tmp_path)) == list(range(0, 300, 2))


class Spoiling(Bucket):
    """A bucket that stores something else than it was given."""

    spoil = staticmethod(bytes)

    def create(self, path, data):
        super().create(path, self.spoil(data))


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"Q" + data[1:]],
    ids=["shorter", "longer", "other"],
)
def test_a_pack_that_was_not_stored_as_given_does_not_count_and_does_not_stay(tmp_path, spoil):
    device = opened(tmp_path, Spoiling)
    device.put_many([copy(1)])
    Spoiling.spoil = staticmethod(spoil)
    try:
        with pytest.raises(StorageFailed, match="is not what was put there"):
            device.put_many([copy(1, b"other"), copy(2)])
    finally:
        Spoiling.spoil = staticmethod(bytes)
    for again in (device, opened(tmp_path)):
        assert again.get_many([key(1), key(2)]) == [b"body 1", Lack.MISSING]
    assert len(packs(tmp_path)) == 1
    device.put_many([copy(2)])
    assert seqs_in(opened(tmp_path)) == [1, 2]


class Unreliable(Bucket):
    """A bucket whose requests fail by chance, some of them after they were carried out."""

    chance = random.Random(0)
    rate = 0.0

    def _maybe_fail(self):
        if self.chance.random() < self.rate:
            raise StorageFailed("the request failed")

    def put(self, path, data):
        self._maybe_fail()
        super().put(path, data)
        self._maybe_fail()

    def get_ranges(self, path, starts, ends):
        self._maybe_fail()
        return super().get_ranges(path, starts, ends)

    def delete(self, paths):
        for path in paths:
            self._maybe_fail()
            super().delete([path])
            self._maybe_fail()


@pytest.mark.parametrize("seed", range(10))
def test_requests_that_fail_lose_nothing_and_bring_nothing_back(tmp_path, seed):
    chance = random.Random(seed)
    Unreliable.chance, Unreliable.rate = chance, 0.12
    device = opened(tmp_path, Unreliable)
    possible: dict[int, set[bytes | Lack]] = {seq: {Lack.MISSING} for seq in range(30)}
    for step in range(60):
        seqs = chance.sample(range(30), chance.randrange(1, 8))
        body = b"" if chance.random() < 0.5 else f"{step} ".encode() * chance.randrange(1, 900)
        try:
            if body:
                device.put_many([copy(seq, body) for seq in seqs])
            else:
                device.delete_many([key(seq) for seq in seqs])
        except StorageFailed:
            for seq in seqs:
                possible[seq].add(body or Lack.MISSING)
        else:
            possible.update((seq, {body or Lack.MISSING}) for seq in seqs)
        if chance.random() < 0.15:
            device = opened(tmp_path, Unreliable)
    Unreliable.rate = 0.0
    for again in (device, opened(tmp_path)):
        for seq, found in enumerate(again.get_many([key(seq) for seq in range(30)])):
            assert found in possible[seq], seq
