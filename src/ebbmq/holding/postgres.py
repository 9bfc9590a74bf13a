"""The PostgreSQL database of a SQL device, through psycopg 3: one statement a call, one round trip.

A server that stopped answering must not hold the caller for ever, so every wait has a deadline;
a connection that met one, or any other failure, is closed and the next call makes a new one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as refusals
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typing_extensions import override

from ebbmq.errors import InvalidSpec, StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, Key, Stored
from ebbmq.holding.sql import COPY_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg.abc import PQGen

_OPENING: Final = """
    SELECT pg_advisory_xact_lock(1161967185);
    CREATE TABLE IF NOT EXISTS ebbmq_copies (
        store bytea NOT NULL, pid bigint NOT NULL, seq bigint NOT NULL,
        size integer NOT NULL, crc bigint NOT NULL, payload bytea NOT NULL,
        PRIMARY KEY (store, pid, seq) INCLUDE (size, crc));
    ALTER TABLE ebbmq_copies ALTER payload SET STORAGE EXTERNAL;
    CREATE TABLE IF NOT EXISTS ebbmq_usage (store bytea PRIMARY KEY, bytes bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS ebbmq_probe (id integer PRIMARY KEY, n bigint NOT NULL)
"""
_EXISTS: Final = """
    SELECT count(*) FROM unnest(ARRAY['ebbmq_copies', 'ebbmq_usage', 'ebbmq_probe']) AS name
    WHERE to_regclass(name) IS NOT NULL
"""
_TABLES: Final = 3
_GIVEN: Final = "unnest(%b::bytea[], %b::bigint[], %b::bigint[]) AS given (store, pid, seq)"
# All parts of a statement see the rows as they were before it, so `before` is what is replaced.
_PUT: Final = f"""
    WITH given AS (
        SELECT * FROM unnest(%b::bytea[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[])
            AS given (store, pid, seq, crc, payload)),
    before AS (
        SELECT store, -sum(size + {COPY_OVERHEAD_BYTES}) AS bytes
        FROM ebbmq_copies JOIN given USING (store, pid, seq) GROUP BY store),
    kept AS (
        INSERT INTO ebbmq_copies (store, pid, seq, size, crc, payload)
        SELECT store, pid, seq, length(payload), crc, payload FROM given
        ON CONFLICT (store, pid, seq) DO UPDATE
        SET size = excluded.size, crc = excluded.crc, payload = excluded.payload),
    changes AS (
        SELECT store, sum(bytes)::bigint AS bytes FROM (
            SELECT store, length(payload) + {COPY_OVERHEAD_BYTES} AS bytes FROM given
            UNION ALL SELECT store, bytes FROM before) AS change
        GROUP BY store),
    usage AS (
        INSERT INTO ebbmq_usage AS known SELECT store, bytes FROM changes
        ON CONFLICT (store) DO UPDATE SET bytes = known.bytes + excluded.bytes)
    SELECT coalesce(sum(bytes), 0)::bigint FROM changes
"""  # noqa: S608  # the only value is our own constant
_DELETE: Final = f"""
    WITH gone AS (
        DELETE FROM ebbmq_copies USING {_GIVEN}
        WHERE ebbmq_copies.store = given.store AND ebbmq_copies.pid = given.pid
            AND ebbmq_copies.seq = given.seq
        RETURNING ebbmq_copies.store, ebbmq_copies.size),
    changes AS (
        SELECT store, -sum(size + {COPY_OVERHEAD_BYTES})::bigint AS bytes FROM gone GROUP BY store),
    usage AS (
        INSERT INTO ebbmq_usage AS known SELECT store, bytes FROM changes
        ON CONFLICT (store) DO UPDATE SET bytes = known.bytes + excluded.bytes)
    SELECT coalesce(sum(bytes), 0)::bigint FROM changes
"""  # noqa: S608  # the only values are our own constants
_GET: Final = (
    f"SELECT store, pid, seq, crc, payload FROM ebbmq_copies JOIN {_GIVEN} USING (store, pid, seq)"  # noqa: S608
)
_SIZES: Final = (
    f"SELECT coalesce(sum(size + {COPY_OVERHEAD_BYTES}), 0)::bigint "  # noqa: S608
    f"FROM ebbmq_copies JOIN {_GIVEN} USING (store, pid, seq)"
)
_SCAN: Final = "SELECT pid, seq, size, crc FROM ebbmq_copies WHERE store = %b"
_USED: Final = "SELECT coalesce(sum(bytes), 0)::bigint FROM ebbmq_usage"
_TOUCH: Final = (
    "INSERT INTO ebbmq_probe AS known VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = known.n + 1"
)


class PostgresDatabase:
    """Tables of one PostgreSQL database; brokers share them, each with the uuid of its store."""

    def __init__(
        self, conninfo: str, clock: Callable[[], float], *, timeout_ms: int = 10_000
    ) -> None:
        """Name the database; nothing is connected yet.

        Args:
            conninfo: a `postgresql://` address or `host=.. dbname=..`, as libpq takes it.
            clock: seconds that never go back, for the timeout.
            timeout_ms: how long to wait for the server in one call.

        Raises:
            InvalidSpec: the address cannot be read.
        """
        try:
            parts = conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            raise InvalidSpec(
                "the address of a PostgreSQL database cannot be read",
                "use postgresql://user@host:port/database",
            ) from error
        parts.setdefault("connect_timeout", max(2, timeout_ms // 1_000))
        parts.setdefault("application_name", "ebbmq")
        self._conninfo = make_conninfo("", **parts)
        self._where = (
            f"PostgreSQL {parts.get('dbname', '')!r} at "
            f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
        )
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._connection: _Connection | None = None

    @property
    def where(self) -> str:
        """Database, host and port; never the password."""
        return self._where

    def put(self, copies: Sequence[Copy]) -> int:
        """Insert or replace in one statement; by how many bytes the use changed."""
        stores, pids, seqs = _columns([copy.key for copy in copies])
        crcs = [copy.crc for copy in copies]
        payloads = [copy.payload for copy in copies]
        return self._number("putting copies", _PUT, (stores, pids, seqs, crcs, payloads))

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[int, bytes]]:
        """Checksum and payload of each key that is there."""
        rows = self._rows("reading copies", _GET, _columns(keys))
        return {Key(store, pid, seq): (crc, payload) for store, pid, seq, crc, payload in rows}

    def sizes(self, keys: Sequence[Key]) -> int:
        """What the copies of these keys take, overhead included."""
        return self._number("reading sizes", _SIZES, _columns(keys))

    def delete(self, keys: Sequence[Key]) -> int:
        """Delete in one statement; by how many bytes the use changed."""
        return self._number("deleting copies", _DELETE, _columns(keys))

    def scan(self, store: bytes) -> list[Stored]:
        """Every copy of a store, from the index where the server's visibility map allows it."""
        rows = self._rows("listing copies", _SCAN, (store,))
        return [Stored(Key(store, pid, seq), size, crc) for pid, seq, size, crc in rows]

    def used_bytes(self) -> int:
        """What all copies take, of whatever store."""
        return self._number("reading the use", _USED, ())

    def touch(self) -> None:
        """Commit one small row."""
        with self._connected("writing") as connection:
            connection.execute(_TOUCH)

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Finishing the socket asks the server nothing, so a frozen one cannot hold us.
            connection.pgconn.finish()

    def _number(self, doing: str, statement: str, values: Sequence[object]) -> int:
        return int(self._rows(doing, statement, values)[0][0])

    def _rows(self, doing: str, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._connected(doing) as connection:
            return connection.execute(statement, values, binary=True).fetchall()

    @contextlib.contextmanager
    def _connected(self, doing: str) -> Iterator[_Connection]:
        try:
            connection = self._opened()
            connection.deadline = self._clock() + self._timeout_ms / 1_000
            yield connection
        except refusals.DiskFull as error:
            raise DeviceFull(
                f"{doing} in {self._where} failed: the disk of the server is full",
                "choose another device, or free space on the server",
            ) from error
        except (psycopg.Error, TimeoutError) as error:
            self.close()
            raise StorageFailed(
                f"{doing} in {self._where} failed: {_first_line(error)}",
                "see that the server runs, can be reached and lets this user create tables",
                code="device_unreachable" if _is_unreachable(error) else None,
            ) from error

    def _opened(self) -> _Connection:
        if self._connection is None:
            connection = _Connection.connect(self._conninfo, autocommit=True)
            connection.clock = self._clock
            connection.deadline = self._clock() + self._timeout_ms / 1_000
            self._connection = connection
            # A server set to reply before its disk has the commit would break what a put promises.
            # What nobody waits for any more must not be carried out later, after what came next.
            connection.execute(
                f"SET synchronous_commit = on; SET statement_timeout = {self._timeout_ms:d}"
            )
            row = connection.execute(_EXISTS).fetchone()
            if row is None or row[0] < _TABLES:
                connection.execute(_OPENING)
        return self._connection


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits end at a deadline."""

    clock: Callable[[], float]
    deadline: float | None = None

    @override
    def wait(self, gen: PQGen[Any], *options: Any, **more: Any) -> Any:
        return super().wait(self._bounded(gen), *options, **more)

    def _bounded(self, gen: PQGen[Any]) -> PQGen[Any]:
        """Pass on what the generator waits for; psycopg looks in on it several times a second."""
        try:
            wanted = next(gen)
            while True:
                if self.deadline is not None and self.clock() > self.deadline:
                    raise TimeoutError("the server does not answer")
                wanted = gen.send((yield wanted))
        except StopIteration as done:
            return done.value


def _columns(keys: Sequence[Key]) -> tuple[list[bytes], list[int], list[int]]:
    return [key.store for key in keys], [key.pid for key in keys], [key.seq for key in keys]


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, TimeoutError | psycopg.OperationalError)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
