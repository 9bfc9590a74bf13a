"""The real servers, each started once for all tests that ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.azurite import COMMAND, Azurite
from tests.servers import OpenWeed, Postgres, Valkey, ValkeyCluster, Weed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    server = Valkey()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyCluster]:
    servers = ValkeyCluster()
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    if not COMMAND.exists():
        pytest.skip("Azurite is not installed: `make test` does that where there is npm")
    server = Azurite()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def weed() -> Iterator[Weed]:
    server = Weed()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def open_weed() -> Iterator[OpenWeed]:
    server = OpenWeed()
    try:
        server.start()
        yield server
    finally:
        server.close()
