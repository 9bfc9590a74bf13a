"""Brokers that keep copies in one place: each sees what the others have, none exceeds the bound."""

from __future__ import annotations

import random

import crc32c
import pytest

from ebbmq import limits
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Copy, DeviceFull, Key
from ebbmq.holding.objects import ObjectDevice
from tests.integration.kinds import KINDS, MIB, SHARED, spec

STORES = b"s" * 16, b"t" * 16, b"u" * 16
BODY_BYTES = 10_000


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def pass_an_interval(self):
        self.seconds += limits.SHARED_COUNTED_EVERY_MS / 1_000


def copies(store, *seqs, nbytes=BODY_BYTES):
    bodies = [random.Random(seq).randbytes(nbytes) for seq in seqs]
    return [
        Copy(Key(store, 1, seq), body, crc32c.crc32c(body))
        for seq, body in zip(seqs, bodies, strict=True)
    ]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=SHARED)
def opened(request, tmp_path, clock):
    kind, devices = KINDS[request.param](request, tmp_path), []

    def open_device(capacity_bytes=64 * MIB):
        devices.append(kind.open(capacity_bytes, clock))
        return devices[-1]

    yield open_device
    for device in devices:
        device.close()


def test_every_broker_sees_what_others_wrote_and_deleted_since_it_began(opened, clock):
    brokers = [opened(), opened()]
    before = [broker.probe().used_bytes for broker in brokers]
    for broker, store in zip(brokers, STORES, strict=False):
        broker.put_many(copies(store, 1, nbytes=MIB))
    clock.pass_an_interval()
    (seen,) = {broker.probe().used_bytes for broker in brokers}
    assert seen == opened().probe().used_bytes >= before[0] + 2 * MIB
    brokers[0].delete_many([Key(STORES[0], 1, 1)])
    clock.pass_an_interval()
    (seen,) = {broker.probe().used_bytes for broker in brokers}
    assert seen == opened().probe().used_bytes <= before[0] + MIB + BODY_BYTES


def fill(brokers, in_a_row):
    """Let each put some in its turn until none has room; what each has put."""
    put = [[] for _ in brokers]
    full = set()
    while len(full) < len(brokers):
        for number, broker in enumerate(brokers):
            for _ in range(in_a_row):
                seq = len(put[number])
                try:
                    broker.put_many(copies(STORES[number], seq))
                except DeviceFull:
                    full.add(number)
                    break
                put[number].append(seq)
    return put


@pytest.mark.parametrize("in_a_row", [1, 14])
def test_all_brokers_together_fill_the_capacity_and_do_not_exceed_it(opened, in_a_row):
    brokers = [opened(MIB), opened(MIB), opened(MIB)]
    for broker in brokers:
        assert broker.probe().ok
    # Meanwhile no time passes: nobody is told of the others by a probe.
    fill(brokers, in_a_row)
    used = opened(MIB).probe().used_bytes
    assert MIB - 4 * BODY_BYTES < used <= MIB
    for broker in brokers:
        with pytest.raises(DeviceFull):
            broker.put_many(copies(STORES[0], 10_000, nbytes=4 * BODY_BYTES))


def test_room_that_another_broker_gave_back_is_used(opened, clock):
    one, other = brokers = [opened(MIB), opened(MIB)]
    put, _ = fill(brokers, 8)
    one.delete_many([Key(STORES[0], 1, seq) for seq in put])
    clock.pass_an_interval()
    assert other.probe().used_bytes < MIB - len(put) * BODY_BYTES // 2
    other.put_many(copies(STORES[1], *range(10_000, 10_000 + len(put) // 2)))


class Counting(Bucket):
    """Counts the requests for listings."""

    listings = 0

    def pages(self, prefix):
        for page in super().pages(prefix):
            self.listings += 1
            yield page

    def level(self, prefix):
        self.listings += 1
        return super().level(prefix)


def test_counting_a_bucket_is_a_request_for_all_stores_and_one_for_each_other_store(
    tmp_path, clock
):
    def bucket():
        return Counting(tmp_path.as_uri())

    for store in STORES:
        device = ObjectDevice(spec(True), bucket(), clock)
        device.put_many(copies(store, 1))
        device.close()
    asked = bucket()
    device = ObjectDevice(spec(True), asked, clock)
    device.put_many(copies(STORES[0], 2))
    asked.listings = 0
    for _ in range(50):
        device.probe()
        clock.seconds += 1
        # Far from the bound that asks for nothing, either.
        device.put_many(copies(STORES[0], 3))
    assert asked.listings == 0
    clock.pass_an_interval()
    for _ in range(50):
        assert device.probe().ok
    assert asked.listings == 3
    device.close()
