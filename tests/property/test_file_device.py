"""The file device against a dict, through kills, power cuts, failing syncs and compaction."""

from __future__ import annotations

import random

import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, DeviceSpec, Key, Lack
from ebbmq.holding.file import FileDevice
from ebbmq.journal.disk import MemoryDisk

SPEC = DeviceSpec(
    name="disk", tier="fast", durable=True, failure_domain="here", capacity_bytes=1 << 20
)
STORES = (b"a" * 16, b"b" * 16)

keys = st.lists(
    st.builds(Key, st.sampled_from(STORES), st.integers(1, 2), st.integers(1, 9)), max_size=6
)
sizes = st.sampled_from([0, 10, 1_000, 30_000, 100_000])


class AgainstDict(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.disk = MemoryDisk(capacity=2 << 20)
        #: Every value a key may have: one, unless a call failed half way.
        self.allowed = {}
        self.version = 0
        self.open()

    def open(self):
        try:
            self.device = FileDevice(SPEC, self.disk, b"d" * 16, lambda: 0.0)
        except StorageFailed:
            self.disk.crash(random.Random(self.version))
            self.device = FileDevice(SPEC, self.disk, b"d" * 16, lambda: 0.0)
        for key in list(self.allowed):
            [found] = self.device.get_many([key])
            assert found in self.allowed[key]
            self.allowed[key] = [found]

    def attempt(self, call, after):
        try:
            call()
        except DeviceFull:
            return
        except StorageFailed:
            for key, value in after.items():
                self.allowed[key] = [*self.allowed.get(key, [Lack.MISSING]), value]
            self.crash(self.version)
            return
        self.allowed.update((key, [value]) for key, value in after.items())

    @rule(keys=keys, size=sizes)
    def put(self, keys, size):
        self.version += 1
        payload = str(self.version).encode() + bytes(size)
        copies = [Copy(key, payload, crc32c.crc32c(payload)) for key in keys]
        self.attempt(lambda: self.device.put_many(copies), dict.fromkeys(keys, payload))

    @rule(keys=keys)
    def delete(self, keys):
        self.attempt(lambda: self.device.delete_many(keys), dict.fromkeys(keys, Lack.MISSING))

    @rule(after=st.integers(0, 3), writing=st.booleans())
    def fail_soon(self, after, writing):
        (self.disk.fail_write_after if writing else self.disk.fail_sync_after)(after)

    @rule(seed=st.integers(0, 999))
    def crash(self, seed):
        self.disk.crash(random.Random(seed))
        self.open()

    @rule()
    def kill(self):
        self.disk.kill()
        self.open()

    @rule()
    def close(self):
        try:
            self.device.close()
        except StorageFailed:
            self.disk.crash(random.Random(0))
        self.open()

    @invariant()
    def agrees(self):
        present = {
            key: values[0] for key, values in self.allowed.items() if values[0] != Lack.MISSING
        }
        assert self.device.get_many(list(present)) == list(present.values())
        listed = [line for store in STORES for line in self.device.scan(store)]
        assert {(line.key, line.payload_bytes) for line in listed} == {
            (key, len(payload)) for key, payload in present.items()
        }
        live = sum(len(payload) + 200 for payload in present.values())
        assert self.device.probe().used_bytes <= 2 * live + 4 * (1 << 20) // 16 + 200_000


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
