"""The real servers, each started once for all tests that ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from ebbmq.node import opening
from tests.azurite import COMMAND, Azurite
from tests.guarded import GuardedEngine
from tests.servers import OpenWeed, Postgres, Valkey, ValkeyCluster, Weed

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Suites that between them call every verb in every way; looking at each look-up takes its time.
GUARDED: Final = {
    "archive", "backup_of_devices", "decay_of_copies", "device_ports", "devices_seen",
    "faulty_partition", "feed", "fetching", "further_copies", "gathering", "guarded", "holding",
    "http_messages", "lease_durations", "long_polls", "moves_seen", "plans", "prefetching",
    "privileged", "rates", "reopening", "retention", "rules", "seed_001", "seed_003", "seed_004",
    "snapshots", "topics", "verbs", "why",
}  # fmt: skip


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


@pytest.fixture(scope="module", autouse=True)
def guarded(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Engines of some suites refuse to show what their lock guards to who does not hold it."""
    is_guarded = request.path.stem.removeprefix("test_") in GUARDED
    with pytest.MonkeyPatch.context() as patch:
        if is_guarded:
            patch.setattr(opening, "Engine", GuardedEngine)
        yield is_guarded


@pytest.fixture(autouse=True)
def _no_trespass(guarded: bool) -> Iterator[None]:
    GuardedEngine.trespasses.clear()
    yield
    assert not GuardedEngine.trespasses, GuardedEngine.trespasses[0]
