"""How each kind of device is opened on the real thing, empty at the start of a test."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Device, DeviceSpec
from ebbmq.holding.file import FileDevice
from ebbmq.holding.grid import GridDevice
from ebbmq.holding.memory import MemoryDevice
from ebbmq.holding.objects import ObjectDevice
from ebbmq.holding.postgres import PostgresDatabase
from ebbmq.holding.sql import SqlDevice
from ebbmq.holding.sqlite import SqliteDatabase
from ebbmq.journal.disk import FileDisk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.servers import Postgres, Valkey, ValkeyCluster, Weed

MIB = 1 << 20
DEVICE = b"d" * 16
TIMEOUT_MS = 5_000


def spec(durable: bool, capacity_bytes: int = 64 * MIB) -> DeviceSpec:
    return DeviceSpec(
        name="test",
        tier="fast",
        durable=durable,
        failure_domain="here",
        capacity_bytes=capacity_bytes,
    )


class Kind:
    """Opens a device again and again on the same place."""

    durable = True
    server: Any = None

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def open(self, capacity_bytes: int = 64 * MIB) -> Device:
        return self.made(spec(self.durable, capacity_bytes))

    def made(self, spec: DeviceSpec) -> Device:
        raise NotImplementedError


class Memory(Kind):
    durable = False

    def made(self, spec: DeviceSpec) -> Device:
        return MemoryDevice(spec, time.perf_counter)


class File(Kind):
    def made(self, spec: DeviceSpec) -> Device:
        return FileDevice(spec, FileDisk(self.tmp_path), DEVICE, time.perf_counter)


class Sqlite(Kind):
    def made(self, spec: DeviceSpec) -> Device:
        database = SqliteDatabase(self.tmp_path / "device.db")
        return SqlDevice(spec, database, time.perf_counter)


class PostgresKind(Kind):
    """A schema of its own in the database."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__(request, tmp_path)
        self.server: Postgres = request.getfixturevalue("postgres")
        schema = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        self.url = f"{self.server.url}?options={quote(f'-csearch_path={schema}')}"

    def made(self, spec: DeviceSpec) -> Device:
        database = PostgresDatabase(self.url, time.perf_counter, timeout_ms=TIMEOUT_MS)
        return SqlDevice(spec, database, time.perf_counter)


class Grid(Kind):
    """One server, emptied."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__(request, tmp_path)
        self.server: Valkey = request.getfixturevalue("valkey_server")
        with self.server.client() as client:
            client.flushall()

    def made(self, spec: DeviceSpec) -> Device:
        return GridDevice(spec, self.server.url, time.perf_counter, timeout_ms=TIMEOUT_MS)


class VolatileGrid(Grid):
    durable = False


class GridCluster(Kind):
    """Three primaries with a replica each, emptied; a put waits for a replica too."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__(request, tmp_path)
        self.cluster: ValkeyCluster = request.getfixturevalue("valkey_cluster")
        self.cluster.empty()

    def made(self, spec: DeviceSpec) -> Device:
        return GridDevice(
            spec, self.cluster.url, time.perf_counter, replicas=1, timeout_ms=TIMEOUT_MS
        )


class ObjectsHere(Kind):
    """A local directory."""

    def made(self, spec: DeviceSpec) -> Device:
        return ObjectDevice(spec, Bucket(self.tmp_path.as_uri()), time.perf_counter)


class ObjectsInMemory(Kind):
    durable = False

    def made(self, spec: DeviceSpec) -> Device:
        return ObjectDevice(spec, Bucket("memory:///"), time.perf_counter)


class ObjectsOnS3(Kind):
    """A prefix of its own in the bucket."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__(request, tmp_path)
        self.server: Weed = request.getfixturevalue("weed")
        self.url = f"s3://{self.server.bucket}/{uuid.uuid4().hex}"
        self.options = {
            "endpoint": self.server.endpoint,
            "access_key_id": self.server.access_key,
            "secret_access_key": self.server.secret_key,
            "region": "us-east-1",
        }

    def made(self, spec: DeviceSpec) -> Device:
        bucket = Bucket(self.url, self.options, timeout_ms=TIMEOUT_MS)
        return ObjectDevice(spec, bucket, time.perf_counter)


KINDS: dict[str, type[Kind]] = {
    "memory": Memory,
    "file": File,
    "sql-sqlite": Sqlite,
    "sql-postgres": PostgresKind,
    "grid": Grid,
    "grid-volatile": VolatileGrid,
    "grid-cluster": GridCluster,
    "object-local": ObjectsHere,
    "object-memory": ObjectsInMemory,
    "object-s3": ObjectsOnS3,
}
DURABLE = {name: kind for name, kind in KINDS.items() if kind.durable}
