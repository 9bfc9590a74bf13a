"""The servers that the crash tests share, and how many cycles they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from ebbmq.holding import opening
from tests.crash.devices import Disks
from tests.crash.server import Server
from tests.servers import Postgres, Valkey, Weed

if TYPE_CHECKING:
    from collections.abc import Iterator

LIVES = 10

_S = TypeVar("_S", Postgres, Valkey, Weed)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    yield from _running(Postgres())


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    yield from _running(Valkey())


@pytest.fixture(scope="session")
def weed() -> Iterator[Weed]:
    yield from _running(Weed())


def _running(server: _S) -> Iterator[_S]:
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    disks = Disks()
    monkeypatch.setattr(opening, "FileDisk", disks)
    return disks


@pytest.fixture
def server_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--server-kills"))


@pytest.fixture
def device_faults(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--device-faults"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "story_number" in metafunc.fixturenames:
        cycles = metafunc.config.getoption("--crash-cycles")
        metafunc.parametrize("story_number", range(-(-cycles // LIVES)))
