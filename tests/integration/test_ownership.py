"""One broker on one directory, whatever becomes of the files in it or of its name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.errors import DirectoryInUse, StorageFailed
from ebbmq.node.server.users import Users
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOST = "is not the directory any more"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    """A broker with one confirmed message; its directory may be lost when it is closed."""
    broker = Broker.open(data)
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"confirmed")], confirm="synced")
    yield broker
    if broker.engine.journal.failed is None or broker.engine.closed is not None:
        broker.close()
        return
    with pytest.raises(StorageFailed, match=LOST):
        broker.close()


def move(data: Path) -> None:
    data.rename(data.with_name("moved"))


def replace(data: Path) -> None:
    move(data)
    shutil.copytree(data.with_name("moved"), data)


def delete(data: Path) -> None:
    shutil.copytree(data, data.with_name("moved"))
    shutil.rmtree(data)


def test_deleting_the_lock_file_lets_nobody_in(broker: Broker, data: Path) -> None:
    (data / "lock").unlink()
    with pytest.raises(DirectoryInUse):
        Broker.open(data)
    shutil.copytree(data, data.with_name("copy"))
    Broker.open(data.with_name("copy")).close()
    broker.publish("q", [Message(b"still working")])


@pytest.mark.parametrize("lose", [move, replace, delete])
def test_a_broker_whose_directory_is_another_one_confirms_nothing_more(
    broker: Broker, data: Path, lose: Callable[[Path], None]
) -> None:
    lose(data)
    for _ in range(2):
        with pytest.raises(StorageFailed, match=LOST):
            broker.publish("q", [Message(b"refused")], confirm="synced")
    assert LOST in str(broker.health())
    with pytest.raises(StorageFailed):
        broker.close()
    with Broker.open(data.with_name("moved")) as again:
        assert b"confirmed" in [lease.body for lease in again.lease("q", 10)]


def test_a_second_broker_on_a_copy_in_its_place_loses_nothing(broker: Broker, data: Path) -> None:
    replace(data)
    with Broker.open(data) as second:
        receipts = second.publish("q", [Message(b"%d" % n) for n in range(100)])
        with pytest.raises(StorageFailed, match=LOST):
            broker.publish("q", [Message(b"refused")])
        before = sorted(path.name for path in data.rglob("*"))
        broker.engine.upkeep()
        with pytest.raises(StorageFailed, match=LOST):
            broker.close()
        assert sorted(path.name for path in data.rglob("*")) == before
    with Broker.open(data) as second:
        assert {receipt.id for receipt in receipts} <= {each.id for each in second.peek("q", 200)}


def test_what_is_confirmed_as_written_only_ends_with_the_next_commit(
    broker: Broker, data: Path
) -> None:
    move(data)

    def is_refused() -> bool:
        try:
            broker.publish("q", [Message(b"on its way")], confirm="written")
        except StorageFailed as error:
            return LOST in error.detail
        return False

    wait_until(is_refused, "a broker goes on without its directory")


def test_a_process_may_go_elsewhere_after_it_opened_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = Broker.open("data")
    monkeypatch.chdir(tmp_path / "elsewhere")
    broker.declare(QueueSpec("q"))
    broker.publish("q", [Message(b"x")], confirm="synced")
    monkeypatch.chdir(tmp_path)
    broker.close()


def test_users_are_added_while_a_broker_has_the_directory(broker: Broker, data: Path) -> None:
    users = Users(data)
    users.add("shop", {"publish": ("*",)})
    assert list(users.read()) == ["shop"]
    broker.publish("q", [Message(b"x")])


def test_a_directory_of_a_device_is_kept_without_its_lock_file(tmp_path: Path) -> None:
    hdd = {"kind": "file", "capacity_bytes": 1 << 24, "directory": str(tmp_path / "hdd")}
    with Broker.open(tmp_path / "one", {"devices": {"hdd": hdd}}):
        (tmp_path / "hdd" / "lock").unlink()
        with Broker.open(tmp_path / "two", {"devices": {"hdd": hdd}}) as second:
            (device,) = [each for each in second.devices() if each.name == "hdd"]
            assert not device.usable
            assert "another device or process" in device.last_error
