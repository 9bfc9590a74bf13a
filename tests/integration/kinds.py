"""How each kind of device is opened on the real thing, empty at the start of a test."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

from ebbmq.holding.contract import Device, DeviceSpec
from ebbmq.holding.opening import Where, open_device
from tests import azurite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.azurite import Azurite
    from tests.servers import OpenWeed, Weed

MIB = 1 << 20
DEVICE = b"d" * 16
TIMEOUT_MS = 2_000


def spec(durable: bool, capacity_bytes: int = 64 * MIB) -> DeviceSpec:
    return DeviceSpec(
        name="test",
        tier="fast",
        durable=durable,
        failure_domain="here",
        capacity_bytes=capacity_bytes,
    )


class Kind:
    """A place of its own for one test, on which devices are opened again and again."""

    durable = True
    outlasts_servers = True
    server: Any = None
    where: Where

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        raise NotImplementedError

    def open(
        self, capacity_bytes: int = 64 * MIB, clock: Callable[[], float] = time.perf_counter
    ) -> Device:
        return open_device(spec(self.durable, capacity_bytes), self.where, clock, DEVICE)


class Memory(Kind):
    durable = False

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.where = Where(kind="memory")


class File(Kind):
    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.where = Where(kind="file", url=tmp_path.as_uri())


class Sqlite(Kind):
    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.where = Where(kind="sql", url=f"sqlite://{tmp_path}/device.db")


class Postgres(Kind):
    """A schema of its own in the database."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.server = request.getfixturevalue("postgres")
        schema = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        url = f"{self.server.url}?options={quote(f'-csearch_path={schema}')}"
        self.where = Where(kind="sql", url=url, timeout_ms=TIMEOUT_MS)


class Grid(Kind):
    """One server, emptied."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.server = request.getfixturevalue("valkey_server")
        with self.server.client() as client:
            client.flushall()
        self.where = Where(kind="grid", url=self.server.url, timeout_ms=TIMEOUT_MS)


class VolatileGrid(Grid):
    durable = False


class GridCluster(Kind):
    """Three primaries with a replica each, emptied; a put waits for a replica too."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        cluster = request.getfixturevalue("valkey_cluster")
        cluster.empty()
        self.where = Where(kind="grid", url=cluster.url, replicas=1, timeout_ms=5_000)


class ObjectsHere(Kind):
    """A local directory."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.where = Where(kind="object", url=tmp_path.as_uri())


class ObjectsInMemory(Kind):
    durable = False

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.where = Where(kind="object", url="memory:///")


class ObjectsOnS3(Kind):
    """A prefix of its own in the bucket."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        server: Weed = request.getfixturevalue("weed")
        self.server = server
        self.where = Where(
            kind="object",
            url=f"s3://{server.bucket}/{uuid.uuid4().hex}",
            options={
                "endpoint": server.endpoint,
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "region": "us-east-1",
            },
            timeout_ms=TIMEOUT_MS,
        )


class ObjectsOnGcs(Kind):
    """A prefix of its own in the bucket, by the client of GCS; the server speaks its dialect."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        server: OpenWeed = request.getfixturevalue("open_weed")
        self.server = server
        self.where = Where(
            kind="object",
            url=f"gs://{server.bucket}/{uuid.uuid4().hex}",
            options=server.options,
            timeout_ms=TIMEOUT_MS,
        )


class ObjectsOnAzure(Kind):
    """A prefix of its own in the container; the emulator keeps it in memory."""

    outlasts_servers = False

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        server: Azurite = request.getfixturevalue("azurite")
        self.server = server
        self.where = Where(
            kind="object",
            url=f"az://{server.container}/{uuid.uuid4().hex}",
            options={
                "endpoint": server.endpoint,
                "account_name": azurite.ACCOUNT,
                "account_key": azurite.KEY,
            },
            timeout_ms=5_000,
        )


KINDS: dict[str, type[Kind]] = {
    "memory": Memory,
    "file": File,
    "sql-sqlite": Sqlite,
    "sql-postgres": Postgres,
    "grid": Grid,
    "grid-volatile": VolatileGrid,
    "grid-cluster": GridCluster,
    "object-local": ObjectsHere,
    "object-memory": ObjectsInMemory,
    "object-s3": ObjectsOnS3,
    "object-gcs": ObjectsOnGcs,
    "object-azure": ObjectsOnAzure,
}
DURABLE = [name for name, kind in KINDS.items() if kind.durable and kind.outlasts_servers]
#: Of these brokers share one place; the others are of one process, or locked by it.
SHARED = [name for name in KINDS if name.partition("-")[0] in ("sql", "grid")]
SHARED += [name for name in KINDS if name.startswith("object-") and name != "object-memory"]
SERVED = ["sql-postgres", "grid", "object-s3"]
