"""Three real devices of a broker, and everything that may happen to one of them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import uuid
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import quote

import psycopg

from ebbmq.journal.disk import FileDisk
from tests.servers import Weed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ebbmq.journal.disk import File
    from tests.servers import Postgres, Server, Valkey

MIB = 1 << 20
#: Judged and tried again so soon that a test sees it; slow only after what no machine needs.
SOON = {"every_ms": 50, "open_ms": 50, "open_ms_max": 200, "better_after_ms": 100}
TIMEOUT_MS = 2_000
STALL_MS = 2_500
First = Literal["file", "object"] | Weed
Mood = Literal["well", "frozen", "failing", "unwritable", "wrong", "nothing"]


class Moods:
    """How a disk behaves just now; every file of it asks before each operation."""

    def __init__(self) -> None:
        self.mood: Mood = "well"
        self._thawed = threading.Event()
        self._thawed.set()

    @contextlib.contextmanager
    def being(self, mood: Mood) -> Iterator[None]:
        """Behave so for a while, then as before."""
        before, self.mood = self.mood, mood
        if mood == "frozen":
            self._thawed.clear()
        try:
            yield
        finally:
            self.mood = before
            self._thawed.set()

    def before(self, *, writing: bool) -> None:
        """Wait, or fail, as the mood has it."""
        self._thawed.wait()
        if self.mood == "failing" or (writing and self.mood == "unwritable"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def told(self, data: bytes) -> bytes:
        """What a read gives instead of these bytes."""
        if self.mood == "nothing":
            return b""
        if self.mood == "wrong" and data:
            return bytes([*data[:-1], data[-1] ^ 0x10])
        return data


class MoodyFile:
    """A file of a moody disk."""

    def __init__(self, file: File, moods: Moods) -> None:
        self._file = file
        self._moods = moods

    def write(self, offset: int, chunks: Sequence[bytes]) -> int:
        self._moods.before(writing=True)
        return self._file.write(offset, chunks)

    def put(self, data: bytes, offset: int, /) -> int:
        return self.write(offset, [data])

    def sync(self) -> None:
        self._moods.before(writing=True)
        self._file.sync()

    def allocate(self, nbytes: int) -> None:
        self._moods.before(writing=True)
        self._file.allocate(nbytes)

    def truncate(self, nbytes: int) -> None:
        self._moods.before(writing=True)
        self._file.truncate(nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        self._moods.before(writing=False)
        return self._moods.told(self._file.read(offset, nbytes))

    def data_from(self, offset: int) -> int:
        return self._file.data_from(offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class MoodyDisk:
    """A directory whose files behave as their moods have it."""

    def __init__(self, directory: Path, moods: Moods) -> None:
        self._disk = FileDisk(directory)
        self._moods = moods

    @property
    def where(self) -> str:
        return self._disk.where

    def names(self) -> list[str]:
        return self._disk.names()

    def create(self, name: str, nbytes: int) -> File:
        self._moods.before(writing=True)
        return cast("File", MoodyFile(self._disk.create(name, nbytes), self._moods))

    def open(self, name: str) -> File:
        return cast("File", MoodyFile(self._disk.open(name), self._moods))

    def delete(self, name: str) -> None:
        self._moods.before(writing=True)
        self._disk.delete(name)

    def rename(self, name: str, new_name: str) -> None:
        self._moods.before(writing=True)
        self._disk.rename(name, new_name)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()


class Disks:
    """The moods of every file device, by the name of its directory."""

    def __init__(self) -> None:
        self.moods: dict[str, Moods] = {}

    def __call__(self, directory: Path) -> MoodyDisk:
        return MoodyDisk(directory, self[directory.name])

    def __getitem__(self, name: str) -> Moods:
        return self.moods.setdefault(name, Moods())


#: Changes a bit of every copy in a grid, and nothing in between sees only some changed.
_CHANGE: Final = """
for _, key in ipairs(redis.call('KEYS', 'ebbmq:{*')) do
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local value = redis.call('HGET', key, field)
    if field ~= 'bytes' and #value > 4 then
      local last = string.char(bit.bxor(string.byte(value, -1), 16))
      redis.call('HSET', key, field, string.sub(value, 1, -2) .. last)
    end
  end
end
"""


class Trio:
    """A file device, a database and a grid; any one of them may fail, and the others go on."""

    def __init__(
        self, directory: Path, space: Path, postgres: Postgres, valkey: Valkey, first: First
    ) -> None:
        """Make room on the servers.

        Args:
            directory: a small file system, for the file device, or an archive in its place.
            space: a small file system, for the tables of the database.
            postgres: the server of the database.
            valkey: the grid.
            first: what the first device is: a file device, or an archive, there or on a server.
        """
        self.first = first
        self.directory, self.space = directory, space
        self.postgres, self.valkey = postgres, valkey
        self.moods = Moods()
        self._schema = f"test_{uuid.uuid4().hex}"
        if postgres.user is not None:
            shutil.chown(space, postgres.user)
        with self._connect() as connection:
            connection.execute(f"CREATE SCHEMA {self._schema}")
            connection.execute(f"CREATE TABLESPACE {self._schema} LOCATION '{space}'")
        with valkey.client() as client:
            client.flushall()

    def close(self) -> None:
        """Let go of what can be unmounted."""
        with self._connect() as connection:
            connection.execute(f"DROP SCHEMA {self._schema} CASCADE")
            connection.execute(f"DROP TABLESPACE {self._schema}")

    def disk(self, directory: Path) -> MoodyDisk:
        """What a file device gets for its directory."""
        return MoodyDisk(directory, self.moods)

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """`[devices]` of a broker."""
        schema = quote(f"-csearch_path={self._schema} -cdefault_tablespace={self._schema}")
        own: dict[str, dict[str, Any]] = {
            self.name: self._first(),
            "sql": {"kind": "sql", "url": f"{self.postgres.url}?options={schema}"},
            "grid": {"kind": "grid", "url": self.valkey.url, "durable": True},
        }
        shared = {
            "capacity_bytes": 32 * MIB,
            "timeout_ms": TIMEOUT_MS,
            "stall_ms": STALL_MS,
            "status": SOON,
        }
        return {name: {**given, **shared} for name, given in own.items()}

    @property
    def name(self) -> str:
        """What the first device is called."""
        return "file" if self.first == "file" else "object"

    def _first(self) -> dict[str, Any]:
        if isinstance(self.first, str):
            return {"kind": self.name, "directory": str(self.directory / "device")}
        weed = self.first
        options = {
            "endpoint": weed.endpoint,
            "access_key_id": weed.access_key,
            "secret_access_key": weed.secret_key,
            "region": "us-east-1",
        }
        url = f"s3://{weed.bucket}/{self._schema}"
        return {"kind": "object", "url": url, "options": options}

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres.url, autocommit=True)

    @contextlib.contextmanager
    def suffering(self, fault: str) -> Iterator[None]:
        """Let one device suffer; it is well again afterwards, though not what it has lost."""
        device, _, what = fault.partition(" ")
        with getattr(self, f"_{device}")(what):
            yield

    @contextlib.contextmanager
    def _file(self, what: str) -> Iterator[None]:
        if what != "full":
            with self.moods.being(cast("Mood", what)):
                yield
            return
        with filled(self.directory):
            yield

    @contextlib.contextmanager
    def _object(self, what: str) -> Iterator[None]:
        if what in ("killed", "frozen"):
            assert isinstance(self.first, Weed)
            with self.first.frozen() if what == "frozen" else _killed(self.first):
                yield
        elif what == "full":
            with filled(self.directory):
                yield
        else:
            for pack in (self.directory / "device").rglob("pack-*.parquet"):
                if what == "emptied":
                    pack.unlink()
                    continue
                data = bytearray(pack.read_bytes())
                data[len(data) // 4] ^= 0x10
                pack.write_bytes(data)
            yield

    @contextlib.contextmanager
    def _sql(self, what: str) -> Iterator[None]:
        if what == "frozen":
            with self.postgres.frozen():
                yield
        elif what == "killed":
            with _killed(self.postgres):
                yield
        elif what == "full":
            with filled(self.space):
                yield
        elif what == "unwritable":
            with self._unwritable():
                yield
        else:
            table = f"{self._schema}.ebbmq_copies"
            with self._connect() as connection:
                if what == "emptied":
                    connection.execute(f"DELETE FROM {table}")
                else:
                    changed = "set_byte(payload, 0, get_byte(payload, 0) # 16)"
                    connection.execute(f"UPDATE {table} SET payload = {changed} WHERE size > 0")
            yield

    @contextlib.contextmanager
    def _unwritable(self) -> Iterator[None]:
        """Have the server answer every write as it does when its disk returns EIO."""
        table, fail = f"{self._schema}.ebbmq_copies", f"{self._schema}.fail"
        with self._connect() as connection:
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {fail}() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE io_error; END $$"
            )
            connection.execute(
                f"CREATE TRIGGER failing BEFORE INSERT OR UPDATE OR DELETE ON {table} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {fail}()"
            )
            try:
                yield
            finally:
                connection.execute(f"DROP TRIGGER failing ON {table}")

    @contextlib.contextmanager
    def _grid(self, what: str) -> Iterator[None]:
        if what == "frozen":
            with self.valkey.frozen():
                yield
        elif what == "killed":
            with _killed(self.valkey):
                yield
        else:
            with self.valkey.client() as client:
                if what == "emptied":
                    client.flushall()
                    yield
                    return
                if what == "changed":
                    client.eval(_CHANGE, 0)
                    yield
                    return
                # Replicas that are not there: the server refuses every write.
                setting = "maxmemory" if what == "full" else "min-replicas-to-write"
                client.config_set(setting, 1)
                try:
                    yield
                finally:
                    client.config_set(setting, 0)


@contextlib.contextmanager
def _killed(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Leave no space on a file system for a while."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", 0) as file:
        while file.write(bytes(4_096)):
            pass
    try:
        yield
    finally:
        ballast.unlink()
