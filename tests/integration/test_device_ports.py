"""Devices behind their ports: each with its own thread, watched, and never in another's way."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading

import crc32c
import pytest

from ebbmq import Broker
from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, Key, Lack
from ebbmq.node import config
from ebbmq.node.clock import SystemClock
from ebbmq.node.devices.registry import Devices
from ebbmq.node.directory import Directory
from ebbmq.testing import ManualClock
from tests.crash.mounts import tmpfs
from tests.servers import Postgres, Valkey, free_port, wait_until

MIB = 1 << 20
STORE = b"s" * 16
SOON = {"every_ms": 20, "open_ms": 20, "open_ms_max": 100, "better_after_ms": 50}
TIMEOUT_S = 60
#: A noisy machine must not look like a device that stalls.
PATIENT = {"status": SOON, "stall_ms": TIMEOUT_S * 1_000}
RAM = {"kind": "memory", "capacity_bytes": MIB, **PATIENT}
FILE = {"kind": "file", "capacity_bytes": 64 * MIB, **PATIENT}


def key(seq):
    return Key(STORE, 1, seq)


def copy(seq, payload=b"body"):
    return Copy(key(seq), payload, crc32c.crc32c(payload))


@contextlib.contextmanager
def opened(tmp_path, clock=None, *, ready=True, **devices):
    directory = Directory(tmp_path / "data")
    try:
        opening = Devices.open(config.load({"devices": devices}), directory, clock or SystemClock())
        try:
            opening.watch(lambda work: work)
            if ready:
                wait_until(lambda: all(d.usable for d in opening.states.values()), "opening")
            yield opening
        finally:
            opening.close()
    finally:
        directory.close()


def put_surely(port, *copies):
    """Also where the machine is slower than the device may be."""

    def is_put():
        return port.put(copies).exception(TIMEOUT_S) is None

    wait_until(is_put, "putting")


def status_of(devices, name):
    return next(each for each in devices.describe() if each.name == name)


def failure_of(future):
    error = future.exception(TIMEOUT_S)
    assert error is not None
    return error


def threads():
    return {each.name for each in threading.enumerate() if each.name.startswith("ebbmq-device")}


@pytest.mark.parametrize("given", [RAM, FILE], ids=["memory", "file"])
def test_a_port_keeps_gives_lists_and_forgets_copies(tmp_path, given):
    with opened(tmp_path, d=given) as devices:
        port = devices.ports["d"]
        port.put([copy(1, b"one"), copy(2, b"two")]).result(TIMEOUT_S)
        assert port.get([key(2), key(3)]).result(TIMEOUT_S) == [b"two", Lack.MISSING]
        assert sorted(found.key.seq for found in port.scan(STORE).result(TIMEOUT_S)) == [1, 2]
        port.delete([key(1)]).result(TIMEOUT_S)
        assert port.get([key(1), key(2)]).result(TIMEOUT_S) == [Lack.MISSING, b"two"]
        assert port.pending_bytes == 0


def test_every_device_and_the_log_are_in_the_states_and_told_to_people(tmp_path):
    with opened(tmp_path, log={"tier": "fast"}, ram=RAM, hdd={**FILE, "tier": "slow"}) as devices:
        assert set(devices.ports) == {"ram", "hdd"}
        assert {name: state.tier for name, state in devices.states.items()} == {
            "log": "fast",
            "ram": "memory",
            "hdd": "slow",
        }
        told = devices.describe()
        assert [(each.name, each.kind, each.durable) for each in told] == [
            ("log", "log", True),
            ("ram", "memory", False),
            ("hdd", "file", True),
        ]
        log = told[0]
        assert log.capacity_bytes > log.used_bytes >= 0
        assert log.circuit == "closed"
        assert told[2].where == str((tmp_path / "data/devices/hdd").resolve())


def test_states_are_another_mapping_after_a_change_and_the_same_without(tmp_path):
    with opened(tmp_path, ram=RAM) as devices:
        before = devices.states
        devices.ports["ram"].put([copy(1, bytes(900_000))]).result(TIMEOUT_S)
        wait_until(lambda: devices.states["ram"].free_percent < 20, "measuring the space")
        assert devices.states is not before
        assert before["ram"].free_percent == 100.0
        assert devices.states["ram"].status < 0
        assert status_of(devices, "ram").parts["space"] < 0


def test_the_status_gets_better_again_when_there_is_space_again(tmp_path):
    with opened(tmp_path, ram=RAM) as devices:
        port = devices.ports["ram"]
        port.put([copy(1, bytes(1_040_000))]).result(TIMEOUT_S)
        wait_until(lambda: port.state.status == -100, "measuring the space")
        port.delete([key(1)]).result(TIMEOUT_S)
        wait_until(lambda: port.state.status == 0, "measuring the space again")


def test_a_full_device_refuses_what_does_not_fit_and_takes_what_does(tmp_path):
    with opened(tmp_path, ram=RAM) as devices:
        port = devices.ports["ram"]
        futures = [port.put([copy(seq, bytes(300_000))]) for seq in range(5)]
        answers = [future.exception(TIMEOUT_S) for future in futures]
        assert answers[:3] == [None] * 3
        assert all(isinstance(answer, DeviceFull) for answer in answers[3:])
        assert port.get([key(2)]).result(TIMEOUT_S) == [bytes(300_000)]
        assert port.state.usable


_PLAIN = """
import sys, threading
from ebbmq import Broker
with Broker.open(sys.argv[1]) as broker:
    assert broker.engine.devices is None
    broker.devices()
    print([each.name for each in threading.enumerate() if "device" in each.name])
needed = ["ebbmq.holding.opening", "ebbmq.node.devices.registry", "sqlite3"]
needed += ["psycopg", "valkey", "obstore", "pyarrow"]
print([name for name in needed if name in sys.modules])
"""


def test_without_devices_there_is_no_thread_and_nothing_is_loaded(tmp_path):
    command = [sys.executable, "-c", _PLAIN, str(tmp_path / "data")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["[]", "[]", ""]


def test_a_broker_opens_its_devices_and_closes_them(tmp_path):
    settings = {"devices": {"ram": RAM, "hdd": FILE}}
    with Broker.open(tmp_path / "data", config=settings) as broker:
        port = broker.engine.devices.ports["hdd"]
        assert port.tried.wait(TIMEOUT_S)
        port.put([copy(1)]).result(TIMEOUT_S)
        assert threads() == {
            "ebbmq-devices",
            "ebbmq-device-log",
            "ebbmq-device-ram",
            "ebbmq-device-hdd",
        }
    assert threads() == set()
    assert isinstance(failure_of(port.put([copy(2)])), StorageFailed)
    with Broker.open(tmp_path / "data", config=settings) as broker:
        port = broker.engine.devices.ports["hdd"]
        assert port.tried.wait(TIMEOUT_S)
        assert port.get([key(1)]).result(TIMEOUT_S) == [b"body"]


def test_a_device_keeps_its_directory_and_identity_for_ever(tmp_path):
    with opened(tmp_path, hdd={**FILE, "directory": str(tmp_path / "disk")}) as devices:
        devices.ports["hdd"].put([copy(1)]).result(TIMEOUT_S)
    moved = tmp_path / "elsewhere"
    (tmp_path / "disk").rename(moved)
    with opened(tmp_path, hdd={**FILE, "directory": str(moved)}) as devices:
        assert devices.ports["hdd"].get([key(1)]).result(TIMEOUT_S) == [b"body"]


@pytest.mark.parametrize("kind", ["file", "sql", "object"])
def test_a_disk_that_is_not_mounted_is_a_device_that_fails_until_it_is(tmp_path, kind):
    disk, given = tmp_path / "disk", {**FILE, "kind": kind, "directory": str(tmp_path / "disk")}
    with opened(tmp_path, hdd=given) as devices:
        devices.ports["hdd"].put([copy(1)]).result(TIMEOUT_S)
    disk.rename(tmp_path / "unplugged")
    disk.mkdir()
    with opened(tmp_path, hdd=given, ready=False) as devices:
        wait_until(lambda: status_of(devices, "hdd").last_error, "opening")
        returned = threading.Event()
        devices.on_return = lambda name: returned.set()
        told = status_of(devices, "hdd")
        assert not told.usable
        assert "no device.json" in told.last_error
        assert failure_of(devices.ports["hdd"].get([key(1)])).code == "device_unreachable"
        assert list(disk.iterdir()) == []
        disk.rmdir()
        (tmp_path / "unplugged").rename(disk)
        assert returned.wait(TIMEOUT_S)
        assert devices.ports["hdd"].get([key(1)]).result(TIMEOUT_S) == [b"body"]


def test_the_disk_of_another_device_is_refused_until_the_old_one_is_given_up(tmp_path):
    disk, given = tmp_path / "disk", {**FILE, "directory": str(tmp_path / "disk")}
    with opened(tmp_path, hdd=given) as devices:
        devices.ports["hdd"].put([copy(1)]).result(TIMEOUT_S)
    shutil.rmtree(disk)
    with opened(tmp_path, other={**given}):
        pass
    with opened(tmp_path, hdd=given, ready=False) as devices:
        wait_until(lambda: status_of(devices, "hdd").last_error, "opening")
        assert "another device" in status_of(devices, "hdd").last_error
        devices.forget("hdd")
        wait_until(lambda: devices.states["hdd"].usable, "taking the new disk")
        assert devices.ports["hdd"].get([key(1)]).result(TIMEOUT_S) == [Lack.MISSING]


def test_a_directory_that_another_broker_has_open_is_a_device_that_fails_until_it_lets_go(tmp_path):
    given = {**FILE, "directory": str(tmp_path / "disk")}
    with contextlib.ExitStack() as first:
        first.enter_context(opened(tmp_path / "a", hdd=given))
        with opened(tmp_path / "b", hdd=given, ready=False) as devices:
            wait_until(lambda: status_of(devices, "hdd").last_error, "opening")
            assert "another device or process has" in status_of(devices, "hdd").last_error
            assert not devices.states["hdd"].usable
            first.close()
            wait_until(lambda: devices.states["hdd"].usable, "getting the directory")


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ({"a": {**FILE, "directory": "x"}, "b": {**FILE, "directory": "y/../x"}}, "'a' and 'b'"),
        ({"a": {**FILE, "directory": "."}}, "the store's own"),
        ({"a": {**FILE, "directory": "journal/x"}}, "the store's own"),
        ({"a": {**FILE, "durable": False}}, "durable is False"),
        ({"a": {**RAM, "durable": True}}, "durable is True"),
        ({"a": {**RAM, "kind": "sql", "url": "mysql://h/d"}}, "address of a sql device"),
        (
            {"a": {**RAM, "kind": "sql", "url": "nowhere"}},
            "'a': a device of kind sql has no address",
        ),
        ({"a": {**RAM, "kind": "grid", "url": "http://h"}}, "'a'"),
        (
            {
                "a": {**RAM, "kind": "sql", "url": "postgresql://me@h/d"},
                "b": {**RAM, "kind": "sql", "url": "postgresql://you@h/d"},
            },
            "'a' and 'b'",
        ),
    ],
)
def test_devices_that_can_never_be_as_declared_keep_the_broker_from_starting(
    tmp_path, devices, named
):
    with pytest.raises(InvalidSpec) as refused:
        Broker.open(tmp_path / "data", config={"devices": devices})
    assert named in refused.value.detail
    assert refused.value.action
    assert threads() == set()
    Broker.open(tmp_path / "data").close()


def test_a_server_that_is_away_does_not_keep_the_broker_from_starting(tmp_path):
    given = {"kind": "grid", "capacity_bytes": MIB, "status": SOON, "timeout_ms": 500}
    given["url"] = f"valkey://:hush@127.0.0.1:{free_port()}"
    with Broker.open(tmp_path / "data", config={"devices": {"grid": given}}) as broker:
        wait_until(lambda: status_of(broker.engine.devices, "grid").last_error, "opening")
        told = status_of(broker.engine.devices, "grid")
        assert (told.circuit != "closed", told.usable, told.status) == (True, False, -100)
        assert told.last_error
        assert "hush" not in str(told)


@pytest.fixture(params=[Valkey, Postgres], ids=["valkey", "postgres"])
def server(request):
    made = request.param()
    try:
        made.start()
        yield made
    finally:
        made.close()


def of(server, **more):
    kind = "sql" if isinstance(server, Postgres) else "grid"
    return {
        "kind": kind,
        "url": server.url,
        "durable": True,
        "capacity_bytes": MIB,
        "timeout_ms": TIMEOUT_S * 1_000,
        **PATIENT,
        **more,
    }


def test_a_killed_server_opens_its_circuit_and_is_found_again(tmp_path, server):
    with opened(tmp_path, db=of(server), ram=RAM) as devices:
        port, returned = devices.ports["db"], threading.Event()
        devices.on_return = lambda name: returned.set()
        port.put([copy(1)]).result(TIMEOUT_S)
        server.kill()
        wait_until(lambda: not devices.states["db"].usable, "noticing")
        assert failure_of(port.get([key(1)])).code == "device_unreachable"
        assert status_of(devices, "db").last_error
        devices.ports["ram"].put([copy(1)]).result(TIMEOUT_S)
        server.start()
        assert returned.wait(TIMEOUT_S)
        assert devices.states["db"].usable
        assert port.get([key(1)]).result(TIMEOUT_S) == [b"body"]
        wait_until(lambda: devices.states["db"].status > -100, "trusting it again")


def test_a_frozen_server_freezes_neither_callers_nor_other_devices(tmp_path, server):
    given = of(server, stall_ms=300)
    with opened(tmp_path, db=given, ram=RAM) as devices:
        port, returned = devices.ports["db"], threading.Event()
        devices.on_return = lambda name: returned.set()
        put_surely(port, copy(1))
        returned.clear()
        with server.frozen():
            waiting = [port.put([copy(2)]), port.get([key(1)]), port.delete([key(1)])]
            for future in waiting:
                assert failure_of(future).code == "device_unreachable"
            assert not devices.states["db"].usable
            assert not returned.is_set()
            assert "did not come back" in status_of(devices, "db").last_error
            devices.ports["ram"].put([copy(1)]).result(TIMEOUT_S)
            assert devices.states["ram"].usable
        assert returned.wait(TIMEOUT_S)
        put_surely(port, copy(3))


def test_a_broker_opens_while_a_device_is_frozen(tmp_path):
    server = Valkey()
    try:
        server.start()
        with server.frozen():
            stack = contextlib.ExitStack()
            given = {"db": of(server, stall_ms=200), "ram": RAM}
            devices = stack.enter_context(opened(tmp_path, ready=False, **given))
            assert not devices.states["db"].usable
            wait_until(lambda: devices.states["ram"].usable, "opening the other one")
        with stack:
            wait_until(lambda: devices.states["db"].usable, "thawing")
            put_surely(devices.ports["db"], copy(1))
    finally:
        server.close()


def test_a_broker_closes_while_a_device_is_frozen(tmp_path):
    server = Valkey()
    try:
        server.start()
        with contextlib.ExitStack() as stack:
            devices = stack.enter_context(opened(tmp_path, db=of(server, stall_ms=200)))
            with server.frozen():
                wait_until(lambda: not devices.states["db"].usable, "noticing")
                stack.close()
        wait_until(lambda: threads() == set(), "letting go")
    finally:
        server.close()


def test_a_disk_that_fails_is_opened_again_when_it_works(tmp_path):
    with tmpfs(tmp_path / "mnt", 32 * MIB) as mount:
        given = {**FILE, "capacity_bytes": 16 * MIB, "directory": str(mount / "disk")}
        with opened(tmp_path, hdd=given) as devices:
            port = devices.ports["hdd"]
            port.put([copy(1)]).result(TIMEOUT_S)
            moved = mount / "moved"
            (mount / "disk").rename(moved)
            wait_until(lambda: not port.state.usable, "noticing")
            moved.rename(mount / "disk")
            wait_until(lambda: port.state.usable, "opening it again")
            assert port.get([key(1)]).result(TIMEOUT_S) == [b"body"]


def test_an_operator_can_have_a_device_probed_at_once(tmp_path):
    slow = {**RAM, "status": {"every_ms": 600_000}}
    with opened(tmp_path, ram=slow) as devices:
        port = devices.ports["ram"]
        port.put([copy(1, bytes(900_000))]).result(TIMEOUT_S)
        assert port.probe().result(TIMEOUT_S).used_bytes > 900_000
        assert port.state.free_percent < 20


def test_a_manual_clock_moves_the_monitor_too(tmp_path):
    clock = ManualClock()
    with opened(tmp_path, clock, ram={**RAM, "status": {"every_ms": 1_000}}) as devices:
        assert "ebbmq-devices" not in threads()
        port = devices.ports["ram"]
        port.put([copy(1, bytes(900_000))]).result(TIMEOUT_S)
        clock.advance(999)
        assert port.state.free_percent == 100
        clock.advance(1)
        assert port.state.free_percent < 20


_WITHOUT = """
import sys
sys.modules["valkey"] = None
from ebbmq import Broker
from ebbmq.errors import EbbError
grid = {"kind": "grid", "url": "valkey://127.0.0.1:1", "capacity_bytes": 1}
try:
    Broker.open(sys.argv[1], config={"devices": {"grid": grid}})
except EbbError as error:
    print(error.code, error.action)
"""


def test_a_missing_package_is_named_and_keeps_the_broker_from_starting(tmp_path):
    command = [sys.executable, "-c", _WITHOUT, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "missing_package pip install 'ebbmq[grid]'"
