"""Devices whose process, server or machine goes away: what was put durably is there afterwards."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time

import crc32c
import msgspec
import pytest

from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, Key, Lack
from ebbmq.holding.opening import Where, open_device
from tests.crash.mounts import PowerCut, tmpfs
from tests.integration.kinds import DEVICE, DURABLE, KINDS, MIB, SERVED, spec
from tests.servers import Valkey, ValkeyCluster, free_port, wait_until

STORE, OTHER_STORE = b"s" * 16, b"t" * 16


def key(seq, store=STORE):
    return Key(store, 1, seq)


def copy(seq, payload=None, store=STORE):
    payload = f"body {seq}".encode() if payload is None else payload
    return Copy(key(seq, store), payload, crc32c.crc32c(payload))


def seqs_in(device, store=STORE):
    return sorted(stored.key.seq for stored in device.scan(store))


def opened(where, *, durable=True, capacity_bytes=64 * MIB):
    return open_device(spec(durable, capacity_bytes), where, time.perf_counter, DEVICE)


def filled(device, batch, payload):
    """Put batches until one is refused; the numbers of those that were not."""
    for first in range(0, 100_000, batch):
        try:
            device.put_many([copy(seq, payload) for seq in range(first, first + batch)])
        except DeviceFull:
            return list(range(first))
    raise AssertionError("never full")


@pytest.fixture(params=DURABLE)
def durable(request, tmp_path):
    return KINDS[request.param](request, tmp_path)


@pytest.fixture(params=SERVED)
def served(request, tmp_path):
    kind = KINDS[request.param](request, tmp_path)
    yield kind
    if kind.server.process is None:
        kind.server.start()


def test_a_closed_device_opens_with_what_it_had(durable):
    device = durable.open()
    device.put_many([copy(seq) for seq in range(10)])
    device.put_many([copy(3, b"again")])
    device.delete_many([key(2), key(4)])
    used = device.probe().used_bytes
    device.close()
    again = durable.open()
    assert seqs_in(again) == [0, 1, 3, 5, 6, 7, 8, 9]
    assert again.get_many([key(2), key(3), key(9)]) == [Lack.MISSING, b"again", b"body 9"]
    assert again.probe().used_bytes == used
    again.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_device_agrees_with_a_dict_whatever_is_done_to_both(durable, seed):
    chance, expected = random.Random(seed), {}
    device = durable.open()
    for _ in range(60):
        seqs = chance.sample(range(60), chance.randrange(1, 20))
        action = chance.random()
        if action < 0.5:
            payload = chance.randbytes(chance.choice([0, 10, 2_000, 40_000]))
            device.put_many([copy(seq, payload) for seq in seqs])
            expected.update(dict.fromkeys(seqs, payload))
        elif action < 0.9:
            device.delete_many([key(seq) for seq in seqs])
            for seq in seqs:
                expected.pop(seq, None)
        else:
            device.close()
            device = durable.open()
        assert seqs_in(device) == sorted(expected)
    wanted = list(range(60))
    found = device.get_many([key(seq) for seq in wanted])
    assert found == [expected.get(seq, Lack.MISSING) for seq in wanted]
    device.close()


_CHILD = """
import itertools, json, sys, time
import crc32c, msgspec
from ebbmq.holding.contract import Copy, DeviceSpec, Key
from ebbmq.holding.opening import Where, open_device

spec = DeviceSpec(name="test", tier="fast", durable=True, failure_domain="here",
                  capacity_bytes=1 << 26)
where = msgspec.json.decode(sys.argv[1], type=Where)
device = open_device(spec, where, time.perf_counter, b"d" * 16)
for seq in itertools.count():
    payload = f"body {seq}".encode()
    device.put_many([Copy(Key(b"s" * 16, 1, seq), payload, crc32c.crc32c(payload))])
    if seq % 3 == 0:
        device.delete_many([Key(b"s" * 16, 1, seq)])
    print(seq, flush=True)
"""


def test_what_was_confirmed_survives_kill_9_of_the_broker(durable):
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, msgspec.json.encode(durable.where).decode()],
        stdout=subprocess.PIPE,
        text=True,
    )
    confirmed = -1
    for line in child.stdout:
        confirmed = int(line)
        if confirmed == 20:
            child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert confirmed >= 20
    device = durable.open()
    found = set(seqs_in(device))
    assert {seq for seq in range(confirmed + 1) if seq % 3} == found - {confirmed + 1}
    bodies = device.get_many([key(seq) for seq in sorted(found)])
    assert bodies == [f"body {seq}".encode() for seq in sorted(found)]
    device.put_many([copy(10_000)])
    assert 10_000 in seqs_in(device)
    device.close()


def test_what_was_confirmed_survives_kill_9_of_the_server(served):
    device = served.open()
    device.put_many([copy(seq, bytes([seq]) * 3_000) for seq in range(50)])
    device.delete_many([key(seq) for seq in range(0, 50, 2)])
    served.server.kill()
    for call in (
        lambda: device.put_many([copy(99)]),
        lambda: device.get_many([key(1)]),
        lambda: device.delete_many([key(1)]),
    ):
        with pytest.raises(StorageFailed) as failed:
            call()
        assert failed.value.code == "device_unreachable"
        assert failed.value.action
    assert not device.probe().ok
    served.server.start()
    wait_until(lambda: device.probe().ok, "coming back")
    unknown = {1, 99}  # what a failed call has done is not known
    assert set(seqs_in(device)) - unknown == set(range(3, 50, 2))
    assert device.get_many([key(3), key(4)]) == [bytes([3]) * 3_000, Lack.MISSING]
    device.put_many([copy(100)])
    assert device.get_many([key(100)]) == [b"body 100"]
    device.close()


def test_a_frozen_server_is_an_error_in_time_and_goes_on_when_it_thaws(served):
    device = served.open()
    device.put_many([copy(1)])
    with served.server.frozen():
        with pytest.raises(StorageFailed):
            device.get_many([key(1)])
        assert not device.probe().ok
    wait_until(lambda: device.probe().ok, "thawing")
    assert device.get_many([key(1)]) == [b"body 1"]
    device.close()


def test_a_killed_primary_of_a_cluster_loses_nothing_that_was_confirmed():
    cluster = ValkeyCluster()
    try:
        cluster.start()
        device = opened(Where(kind="grid", url=cluster.url, replicas=1, timeout_ms=3_000))
        device.put_many([copy(seq) for seq in range(0, 25_600, 64)])
        device.delete_many([key(0)])
        cluster.nodes[0].kill()
        wait_until(lambda: device.probe().ok and len(seqs_in(device)) == 399, "failing over")
        expected = [f"body {seq}".encode() for seq in range(64, 25_600, 64)]
        assert device.get_many([key(seq) for seq in range(64, 25_600, 64)]) == expected
        device.close()
    finally:
        cluster.close()


@pytest.mark.parametrize(
    "where",
    [
        Where(kind="sql", url="postgresql://u:hush@127.0.0.1:{port}/db", timeout_ms=1_000),
        Where(kind="grid", url="valkey://:hush@127.0.0.1:{port}", timeout_ms=1_000),
        Where(
            kind="object",
            url="s3://bucket",
            options={
                "endpoint": "http://127.0.0.1:{port}",
                "access_key_id": "u",
                "secret_access_key": "hush",
                "region": "r",
            },
            timeout_ms=1_000,
        ),
    ],
    ids=["sql", "grid", "object"],
)
def test_an_absent_server_is_named_and_its_secrets_are_not(where):
    raw = msgspec.json.encode(where).decode().replace("{port}", str(free_port()))
    device = opened(msgspec.json.decode(raw, type=Where))
    with pytest.raises(StorageFailed) as failed:
        device.get_many([key(1)])
    assert failed.value.code == "device_unreachable"
    assert "127.0.0.1" in failed.value.detail
    assert failed.value.action
    probe = device.probe()
    assert not probe.ok
    for text in (str(failed.value), probe.detail):
        assert "hush" not in text
    device.close()


def test_wrong_credentials_and_a_missing_bucket_are_named(weed):
    good = {
        "endpoint": weed.endpoint,
        "access_key_id": weed.access_key,
        "secret_access_key": weed.secret_key,
        "region": "us-east-1",
    }
    for bucket, options, reason in (
        (weed.bucket, {**good, "secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ("nowhere", good, "NoSuchBucket"),
    ):
        device = opened(Where(kind="object", url=f"s3://{bucket}/x", options=options))
        with pytest.raises(StorageFailed, match=reason):
            device.put_many([copy(1)])


@pytest.mark.parametrize(
    ("option", "value"),
    [("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")],
)
def test_a_grid_that_could_lose_what_it_confirmed_is_not_a_durable_device(option, value):
    server = Valkey(f"--{option}", value)
    try:
        server.start()
        device = opened(Where(kind="grid", url=server.url))
        with pytest.raises(StorageFailed, match=option) as refused:
            device.put_many([copy(1)])
        assert "declare it not durable" in refused.value.action
        volatile = opened(Where(kind="grid", url=server.url), durable=False)
        volatile.put_many([copy(1)])
        assert volatile.get_many([key(1)]) == [b"body 1"]
        volatile.close()
    finally:
        server.close()


def test_a_grid_at_its_maxmemory_is_full_keeps_nothing_of_the_batch_and_deletes_go_on():
    server = Valkey("--maxmemory", "12mb")
    try:
        server.start()
        device = opened(Where(kind="grid", url=server.url))
        kept = filled(device, 600, bytes(1_000))
        assert kept
        assert seqs_in(device) == kept
        device.delete_many([key(seq) for seq in kept])
        assert seqs_in(device) == []
        device.put_many([copy(1)])
        device.close()
    finally:
        server.close()


@pytest.mark.parametrize("name", ["sql-postgres", "grid", "grid-cluster", "object-s3"])
def test_brokers_that_share_a_server_never_touch_each_others_data(request, tmp_path, name):
    kind = KINDS[name](request, tmp_path)
    mine, theirs = kind.open(), kind.open()
    for seq in range(5):
        mine.put_many([copy(seq, b"mine")])
        theirs.put_many([copy(seq, b"theirs", OTHER_STORE)])
    mine.delete_many([stored.key for stored in mine.scan(STORE)])
    assert seqs_in(mine) == []
    assert seqs_in(theirs, OTHER_STORE) == [0, 1, 2, 3, 4]
    assert theirs.get_many([key(2, OTHER_STORE)]) == [b"theirs"]
    mine.close()
    theirs.close()


def local(kind, directory):
    url = directory.as_uri() if kind == "object" else f"sqlite://{directory}/device.db"
    return Where(kind=kind, url=url)


@pytest.mark.parametrize("kind", ["sql", "object"])
def test_a_full_disk_is_a_full_device_and_deletes_go_on(tmp_path, kind):
    with tmpfs(tmp_path / "mnt", 16 * MIB) as directory:
        device = opened(local(kind, directory))
        kept = filled(device, 10, bytes(10_000))
        assert len(kept) > 100
        assert seqs_in(device) == kept
        with contextlib.suppress(OSError), (directory / "filler").open("wb", 0) as file:
            while file.write(bytes(4_096)):
                pass
        assert shutil.disk_usage(directory).free == 0
        device.delete_many([key(seq) for seq in kept[:50]])
        device.delete_many([key(seq) for seq in kept[50:]])
        assert seqs_in(device) == []
        device.close()
        assert seqs_in(opened(local(kind, directory))) == []


@pytest.mark.parametrize("kind", ["sql", "object"])
def test_what_was_confirmed_survives_a_power_cut(tmp_path, kind):
    disk = PowerCut(tmp_path)
    try:
        for first in (0, 100):
            device = opened(local(kind, disk.mountpoint))
            for seq in range(first, first + 20):
                device.put_many([copy(seq, bytes(5_000))])
            device.delete_many([key(first)])
            disk.cut()
            device.close()
            disk.power_on()
            device = opened(local(kind, disk.mountpoint))
            assert seqs_in(device)[-19:] == list(range(first + 1, first + 20))
            found = device.get_many([key(seq) for seq in range(first, first + 20)])
            assert found == [Lack.MISSING] + [bytes(5_000)] * 19
            device.close()
    finally:
        disk.close()


_WITHOUT = """
import json, sys, time
for name in json.loads(sys.argv[2]):
    sys.modules[name] = None
import msgspec
from ebbmq.holding.contract import DeviceSpec, MissingPackage
from ebbmq.holding.opening import Where, open_device
spec = DeviceSpec(name="t", tier="t", durable=True, failure_domain="f", capacity_bytes=1)
try:
    open_device(spec, msgspec.json.decode(sys.argv[1], type=Where), time.perf_counter)
except MissingPackage as error:
    print(error.code, error.action)
"""


@pytest.mark.parametrize(
    ("where", "packages"),
    [
        (Where(kind="sql", url="postgresql://localhost/x"), ["psycopg"]),
        (Where(kind="grid", url="valkey://localhost"), ["valkey"]),
        (Where(kind="object", url="s3://x"), ["obstore"]),
        (Where(kind="object", url="s3://x"), ["pyarrow"]),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(where, packages):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, msgspec.json.encode(where).decode(), json.dumps(packages)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"missing_package pip install 'ebbmq[{where.kind}]'"


def test_other_devices_need_none_of_the_packages():
    code = (
        "import sys; from ebbmq.holding import opening; "
        "print([m for m in ('psycopg', 'valkey', 'obstore', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
