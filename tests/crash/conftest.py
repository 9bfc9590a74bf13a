"""The fork server that the crash tests share, and how many cycles they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

LIVES = 10


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


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
