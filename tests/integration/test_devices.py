"""One suite for every device: what is put comes back unchanged or is said to be gone."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import crc32c
import pytest

from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, Key, Lack
from ebbmq.holding.file import FileDevice
from ebbmq.journal.disk import FileDisk, MemoryDisk
from ebbmq.journal.segment import name_of
from tests.integration.kinds import DEVICE, KINDS, MIB, spec

STORE, OTHER_STORE = b"s" * 16, b"t" * 16


def key(seq, pid=1, store=STORE):
    return Key(store, pid, seq)


def copy(seq, payload=None, *, pid=1, store=STORE):
    payload = f"body {seq}".encode() if payload is None else payload
    return Copy(key(seq, pid, store), payload, crc32c.crc32c(payload))


def listed(device, store=STORE):
    return sorted(device.scan(store))


def fill(device, payload):
    for seq in range(10_000):
        try:
            device.put_many([copy(seq, payload)])
        except DeviceFull:
            return range(seq)
    raise AssertionError("never full")


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    kind, devices = KINDS[request.param](request, tmp_path), []

    def open_device(**options):
        devices.append(kind.open(**options))
        return devices[-1]

    yield open_device
    for device in devices:
        device.close()


@pytest.fixture
def device(opened):
    return opened()


def test_what_is_put_comes_back_in_the_order_asked(device):
    device.put_many([copy(1), copy(2, b""), copy(3, bytes(5 * MIB))])
    assert device.get_many([key(3), key(1), key(2)]) == [bytes(5 * MIB), b"body 1", b""]


def test_a_batch_of_any_size_comes_back(device):
    device.put_many([copy(seq) for seq in range(3_000)])
    assert device.get_many([key(2_999), key(0)]) == [b"body 2999", b"body 0"]
    assert len(listed(device)) == 3_000


def test_missing_keys_do_not_hide_the_others(device):
    device.put_many([copy(1)])
    assert device.get_many([key(7), key(1), key(1, pid=2)]) == [
        Lack.MISSING,
        b"body 1",
        Lack.MISSING,
    ]


def test_empty_calls_are_fine(device):
    device.put_many([])
    device.delete_many([])
    assert device.get_many([]) == listed(device) == []


def test_putting_twice_is_once(device):
    for _ in range(2):
        device.put_many([copy(1), copy(2), copy(1)])
    assert [stored.key.seq for stored in listed(device)] == [1, 2]


def test_putting_a_key_again_replaces_its_copy(device):
    device.put_many([copy(1, b"spoiled")])
    device.put_many([copy(1, b"repaired")])
    assert device.get_many([key(1)]) == [b"repaired"]


def test_deleting_twice_or_what_was_never_there_is_fine(device):
    device.put_many([copy(1), copy(2)])
    device.delete_many([key(1), key(9), key(1)])
    device.delete_many([key(1)])
    assert device.get_many([key(1), key(2)]) == [Lack.MISSING, b"body 2"]


def test_a_deleted_key_may_be_put_again(device):
    device.put_many([copy(1)])
    device.delete_many([key(1)])
    device.put_many([copy(1, b"again")])
    assert device.get_many([key(1)]) == [b"again"]


def test_bytes_that_do_not_match_the_checksum_of_intake_are_not_given(device):
    device.put_many([copy(1), copy(2)._replace(payload=b"other"), copy(3)])
    assert device.get_many([key(1), key(2), key(3)]) == [b"body 1", Lack.DAMAGED, b"body 3"]


def test_a_scan_lists_exactly_what_is_there(device):
    device.put_many([copy(1), copy(2), copy(3, b"xyz", pid=4)])
    device.delete_many([key(2)])
    assert listed(device) == [
        (key(1), 6, crc32c.crc32c(b"body 1")),
        (key(3, pid=4), 3, crc32c.crc32c(b"xyz")),
    ]


def test_a_scan_is_as_of_its_call(device):
    device.put_many([copy(1), copy(2)])
    lines = device.scan(STORE)
    device.delete_many([key(1), key(2)])
    assert len(list(lines)) == 2


def test_two_stores_in_one_device_never_see_each_others_keys(device):
    device.put_many([copy(1, b"mine"), copy(1, b"theirs", store=OTHER_STORE)])
    assert device.get_many([key(1), key(1, store=OTHER_STORE)]) == [b"mine", b"theirs"]
    device.delete_many([key(1)])
    assert listed(device) == []
    assert [stored.key.store for stored in listed(device, OTHER_STORE)] == [OTHER_STORE]
    assert device.get_many([key(1, store=OTHER_STORE)]) == [b"theirs"]


def test_full_is_refused_by_name_and_keeps_nothing_of_the_batch(opened):
    device = opened(capacity_bytes=MIB)
    device.put_many([copy(1)])
    with pytest.raises(DeviceFull) as refused:
        device.put_many([copy(2), copy(3, bytes(MIB))])
    assert refused.value.code == "device_full"
    assert refused.value.action
    assert device.get_many([key(1), key(2)]) == [b"body 1", Lack.MISSING]


def test_a_full_device_has_room_again_after_deletes(opened):
    device = opened(capacity_bytes=MIB)
    seqs = fill(device, bytes(4_096))
    assert len(seqs) > 100
    assert device.get_many([key(seq) for seq in seqs]) == [bytes(4_096)] * len(seqs)
    device.delete_many([key(seq) for seq in seqs])
    device.put_many([copy(seq, bytes(4_096)) for seq in range(100)])
    assert len(listed(device)) == 100


def test_a_probe_tells_space_and_latency(device):
    before = device.probe()
    device.put_many([copy(1, bytes(MIB))])
    after = device.probe()
    assert before.ok
    assert after.ok
    assert after.used_bytes - before.used_bytes >= MIB
    assert after.capacity_bytes <= 64 * MIB
    assert after.latency_ms >= 0


def test_a_closed_device_says_so(device):
    device.put_many([copy(1)])
    device.close()
    device.close()
    for call in (
        lambda: device.put_many([copy(2)]),
        lambda: device.get_many([key(1)]),
        lambda: device.delete_many([key(1)]),
        lambda: device.scan(STORE),
    ):
        with pytest.raises(StorageFailed, match="closed"):
            call()
    assert not device.probe().ok


# What only a durable device promises


def open_file(tmp_path, capacity_bytes=64 * MIB):
    return FileDevice(spec(True, capacity_bytes), FileDisk(tmp_path), DEVICE, time.perf_counter)


def on(disk, capacity_bytes=64 * MIB):
    return FileDevice(spec(True, capacity_bytes), disk, DEVICE, time.perf_counter)


def test_a_closed_file_device_opens_with_what_it_had(tmp_path):
    device = open_file(tmp_path)
    device.put_many([copy(1), copy(2), copy(3)])
    device.delete_many([key(2)])
    device.close()
    again = open_file(tmp_path)
    assert again.get_many([key(1), key(2), key(3)]) == [b"body 1", Lack.MISSING, b"body 3"]
    assert len(listed(again)) == 2
    again.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_was_confirmed_survives_a_power_cut(seed):
    disk, chance = MemoryDisk(), random.Random(seed)
    expected = {}
    for _ in range(4):
        device = on(disk)
        for _ in range(chance.randrange(1, 6)):
            seqs = chance.sample(range(50), 8)
            if chance.random() < 0.3:
                device.delete_many([key(seq) for seq in seqs])
                for seq in seqs:
                    expected.pop(seq, None)
            else:
                payload = chance.randbytes(chance.randrange(2_000))
                device.put_many([copy(seq, payload) for seq in seqs])
                expected.update(dict.fromkeys(seqs, payload))
        disk.crash(chance)
    device = on(disk)
    assert [stored.key.seq for stored in listed(device)] == sorted(expected)
    for seq, payload in expected.items():
        assert device.get_many([key(seq)]) == [payload]


_CHILD = """
import itertools, sys, time
import crc32c
from ebbmq.holding.contract import Copy, DeviceSpec, Key
from ebbmq.holding.file import FileDevice
from ebbmq.journal.disk import FileDisk

spec = DeviceSpec(name="test", tier="fast", durable=True, failure_domain="here",
                  capacity_bytes=1 << 26)
device = FileDevice(spec, FileDisk(sys.argv[1]), b"d" * 16, time.perf_counter)
for seq in itertools.count():
    payload = f"body {seq}".encode()
    device.put_many([Copy(Key(b"s" * 16, 1, seq), payload, crc32c.crc32c(payload))])
    if seq % 3 == 0:
        device.delete_many([Key(b"s" * 16, 1, seq)])
    print(seq, flush=True)
"""


def test_what_was_confirmed_survives_kill_9(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    confirmed = -1
    for line in child.stdout:
        confirmed = int(line)
        if confirmed == 200:
            child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    device = open_file(tmp_path)
    found = {stored.key.seq for stored in listed(device)}
    assert {seq for seq in range(confirmed + 1) if seq % 3} == found - {confirmed + 1}
    for seq in found:
        assert device.get_many([key(seq)]) == [f"body {seq}".encode()]
    device.close()


@pytest.mark.parametrize("reopened", [False, True])
def test_a_flipped_bit_costs_one_body_and_not_its_neighbours(reopened):
    disk = MemoryDisk()
    device = on(disk)
    device.put_many([copy(seq, bytes([seq]) * 1_000) for seq in range(1, 11)])
    segment = disk.open(name_of(1))
    offset = segment.read(0, segment.size()).index(bytes([5]) * 1_000)
    disk.flip(name_of(1), offset + 500, 3)
    if reopened:
        disk.kill()
        device = on(disk)
        assert "damaged" in device.probe().detail
    found = device.get_many([key(seq) for seq in range(1, 11)])
    assert found[4] is Lack.DAMAGED
    assert [body[0] for body in found if body is not Lack.DAMAGED] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    device.put_many([copy(5, b"repaired")])
    assert device.get_many([key(5)]) == [b"repaired"]


def test_a_directory_of_another_device_is_refused_and_left_alone():
    disk = MemoryDisk()
    on(disk).put_many([copy(1)])
    disk.kill()
    with pytest.raises(StorageFailed, match="not that of device"):
        FileDevice(spec(True), disk, b"e" * 16, time.perf_counter)
    assert on(disk).get_many([key(1)]) == [b"body 1"]


def test_a_failed_sync_stops_the_device_and_what_was_confirmed_is_there_after_reopening():
    disk = MemoryDisk()
    device = on(disk)
    device.put_many([copy(1)])
    disk.fail_sync_after(0)
    with pytest.raises(StorageFailed):
        device.put_many([copy(2)])
    with pytest.raises(StorageFailed):
        device.put_many([copy(3)])
    assert not device.probe().ok
    disk.crash(random.Random(1))
    device = on(disk)
    assert device.get_many([key(1), key(3)]) == [b"body 1", Lack.MISSING]


def test_a_full_disk_is_a_full_device_and_deletes_go_on():
    disk = MemoryDisk(capacity=2 * MIB)
    device = on(disk, capacity_bytes=4 * MIB)
    kept = fill(device, bytes(3_000))
    assert len(kept) > 50
    for seq in kept:
        device.delete_many([key(seq)])
    assert listed(device) == []
    disk.kill()
    assert listed(on(disk, capacity_bytes=4 * MIB)) == []


def test_without_space_for_a_first_segment_the_device_is_full():
    with pytest.raises(DeviceFull):
        on(MemoryDisk(capacity=1_000))


def test_one_straggler_a_segment_does_not_keep_the_space():
    disk = MemoryDisk()
    device = on(disk, capacity_bytes=16 * MIB)
    stragglers = []
    for first in range(0, 6_000, 100):
        device.put_many([copy(seq, bytes(1_000)) for seq in range(first, first + 100)])
        device.delete_many([key(seq) for seq in range(first + 1, first + 100)])
        stragglers.append(first)
    live = len(stragglers) * 1_100
    assert device.probe().used_bytes <= 2 * live + 3 * MIB
    disk.kill()
    device = on(disk, capacity_bytes=16 * MIB)
    assert [stored.key.seq for stored in listed(device)] == stragglers
    assert device.get_many([key(seq) for seq in stragglers]) == [bytes(1_000)] * len(stragglers)


def test_damage_is_still_damage_after_its_segment_was_compacted():
    disk = MemoryDisk()
    device = on(disk, capacity_bytes=MIB)
    device.put_many([copy(1)._replace(payload=b"spoiled"), copy(2)])
    for seq in range(3, 3_000):
        device.put_many([copy(seq, bytes(1_000))])
        device.delete_many([key(seq)])
    assert name_of(1) not in disk.names()
    assert device.get_many([key(1), key(2)]) == [Lack.DAMAGED, b"body 2"]


def test_a_body_larger_than_a_segment_has_room_or_is_refused():
    disk = MemoryDisk(capacity=8 * MIB)
    device = on(disk, capacity_bytes=6 * MIB)
    body = bytes(3 * MIB)
    device.put_many([copy(1, body)])
    with pytest.raises(DeviceFull):
        device.put_many([copy(2), copy(3, body)])
    assert device.get_many([key(1), key(2), key(3)]) == [body, Lack.MISSING, Lack.MISSING]
    disk.kill()
    assert [stored.key.seq for stored in listed(on(disk, capacity_bytes=6 * MIB))] == [1]
