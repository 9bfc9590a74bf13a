"""The SQLite database of a SQL device: one file, WAL, synchronous=FULL.

synchronous=NORMAL would lose committed rows in a power cut. A database that failed is closed and
opened anew, and opening moves everything from the WAL into the database first: after a failed sync
the WAL may be readable and yet not be on the disk, and nothing may be appended behind that.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import StorageFailed
from ebbmq.holding.contract import Copy, DeviceFull, Key, Stored
from ebbmq.holding.reserve import Reserve
from ebbmq.holding.sql import COPY_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_EMPTY_WAL: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
_OPENING: Final = (
    "PRAGMA page_size = 16384",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA journal_size_limit = {64 * limits.MIB}",
    # Emptying it may need as much space in the database, which a reserve has to provide.
    "PRAGMA wal_autocheckpoint = 128",
    _EMPTY_WAL,
    # Keys are unique because a put deletes first; an index that has size and crc as well answers
    # a scan without touching a payload.
    """CREATE TABLE IF NOT EXISTS ebbmq_copies (
        store BLOB NOT NULL, pid INTEGER NOT NULL, seq INTEGER NOT NULL,
        size INTEGER NOT NULL, crc INTEGER NOT NULL, payload BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS ebbmq_keys ON ebbmq_copies (store, pid, seq, size, crc)",
    "CREATE TABLE IF NOT EXISTS ebbmq_usage (store BLOB PRIMARY KEY, bytes INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ebbmq_probe (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
)
_INSERT: Final = (
    "INSERT INTO ebbmq_copies (store, pid, seq, size, crc, payload) VALUES (?, ?, ?, ?, ?, ?)"
)
_USAGE: Final = (
    "INSERT INTO ebbmq_usage VALUES (?, ?) ON CONFLICT (store) DO UPDATE SET bytes = bytes + ?2"
)
_TOUCH: Final = "INSERT INTO ebbmq_probe VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1"
_KEYS_PER_STATEMENT: Final = 512
#: What a few deletes write to the WAL at worst, a page for each row and index entry.
_KEYS_WHEN_FULL: Final = 64
_RESERVE_BYTES: Final = 4 * limits.MIB


class SqliteDatabase:
    """One SQLite file; brokers of several processes may share it."""

    def __init__(self, path: Path, *, timeout_ms: int = 10_000) -> None:
        """Name a file in an existing directory; `timeout_ms` bounds the wait for other brokers."""
        self._path = path
        self._timeout_ms = timeout_ms
        self._connection: sqlite3.Connection | None = None
        self._reserve = Reserve(path.with_name(path.name + ".reserve"), _RESERVE_BYTES)

    @property
    def where(self) -> str:
        """The file."""
        return f"SQLite in {self._path}"

    def put(self, copies: Sequence[Copy]) -> int:
        """Replace the rows; by how many bytes the use changed."""
        changes: dict[bytes, int] = {}
        with self._transaction("putting copies") as connection:
            for key, size in _deleted(connection, [copy.key for copy in copies]):
                changes[key.store] = changes.get(key.store, 0) - size - COPY_OVERHEAD_BYTES
            connection.executemany(
                _INSERT, ((*key, len(payload), crc, payload) for key, payload, crc, _ in copies)
            )
            for key, payload, _, _ in copies:
                changes[key.store] = changes.get(key.store, 0) + len(payload) + COPY_OVERHEAD_BYTES
            connection.executemany(_USAGE, changes.items())
        return sum(changes.values())

    def get(self, keys: Sequence[Key]) -> dict[Key, tuple[int, bytes]]:
        """Checksum and payload of each key that is there."""
        with self._transaction("reading copies", begin="BEGIN") as connection:
            return {
                Key(store, pid, seq): (crc, payload)
                for store, pid, where, seqs in _statements(keys)
                for seq, crc, payload in connection.execute(
                    f"SELECT seq, crc, payload FROM ebbmq_copies WHERE {where}",  # noqa: S608  # question marks
                    (store, pid, *seqs),
                )
            }

    def sizes(self, keys: Sequence[Key]) -> int:
        """What the copies of these keys take, overhead included."""
        with self._transaction("reading sizes", begin="BEGIN") as connection:
            return sum(
                size + COPY_OVERHEAD_BYTES
                for store, pid, where, seqs in _statements(keys)
                for (size,) in connection.execute(
                    f"SELECT size FROM ebbmq_copies WHERE {where}",  # noqa: S608  # question marks
                    (store, pid, *seqs),
                )
            )

    def delete(self, keys: Sequence[Key]) -> int:
        """Delete the rows, on a full disk in the space reserved for that; the change of the use."""
        try:
            return self._delete(keys)
        except DeviceFull:
            self._reserve.release()
        change = 0
        for start in range(0, len(keys), _KEYS_WHEN_FULL):
            change += self._delete(keys[start : start + _KEYS_WHEN_FULL])
            # Which gives the space to the next few.
            self._opened().execute(_EMPTY_WAL).fetchall()
        self._reserve.hold()
        return change

    def _delete(self, keys: Sequence[Key]) -> int:
        changes: dict[bytes, int] = {}
        with self._transaction("deleting copies") as connection:
            for key, size in _deleted(connection, keys):
                changes[key.store] = changes.get(key.store, 0) - size - COPY_OVERHEAD_BYTES
            connection.executemany(_USAGE, changes.items())
        return sum(changes.values())

    def scan(self, store: bytes) -> list[Stored]:
        """Every copy of a store, from the index alone."""
        with self._transaction("listing copies", begin="BEGIN") as connection:
            return [
                Stored(Key(store, pid, seq), size, crc)
                for pid, seq, size, crc in connection.execute(
                    "SELECT pid, seq, size, crc FROM ebbmq_copies WHERE store = ?", (store,)
                )
            ]

    def used_bytes(self) -> int:
        """What all copies take, of whatever store."""
        with self._transaction("reading the use", begin="BEGIN") as connection:
            row = connection.execute("SELECT total(bytes) FROM ebbmq_usage").fetchone()
        return int(row[0])

    def touch(self) -> None:
        """Commit one small row."""
        with self._transaction("writing") as connection:
            connection.execute(_TOUCH)

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _transaction(
        self, doing: str, *, begin: str = "BEGIN IMMEDIATE"
    ) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._opened()
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            if _is_full(error):
                self._roll_back()
                raise DeviceFull(
                    f"{doing} in {self.where} failed: its disk is full",
                    "choose another device, or free space on that disk",
                ) from error
            self.close()
            raise StorageFailed(
                f"{doing} in {self.where} failed: {error}",
                "see that the directory exists, can be written and has a healthy disk",
            ) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path,
                timeout=self._timeout_ms / 1_000,
                isolation_level=None,
                # One thread at a time, which the contract promises, need not be the same thread.
                check_same_thread=False,
            )
            try:
                self._prepare(connection)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for statement in _OPENING:
            try:
                connection.execute(statement).fetchall()
            except sqlite3.Error as error:
                if not _is_full(error):
                    raise
                self._reserve.release()
                connection.execute(statement).fetchall()
        self._reserve.hold()

    def _roll_back(self) -> None:
        """A full disk is no reason to lose the connection: reads need no space, opening does."""
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def _is_full(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _deleted(connection: sqlite3.Connection, keys: Sequence[Key]) -> Iterator[tuple[Key, int]]:
    """Delete rows and give the size of each that was there."""
    for store, pid, where, seqs in _statements(keys):
        rows = connection.execute(
            f"DELETE FROM ebbmq_copies WHERE {where} RETURNING seq, size",  # noqa: S608  # question marks
            (store, pid, *seqs),
        )
        for seq, size in rows.fetchall():
            yield Key(store, pid, seq), size


def _statements(keys: Sequence[Key]) -> Iterator[tuple[bytes, int, str, list[int]]]:
    """Cut keys into what one statement may ask for: store, pid, condition, seqs."""
    seqs_of: dict[tuple[bytes, int], list[int]] = {}
    for store, pid, seq in keys:
        seqs_of.setdefault((store, pid), []).append(seq)
    for (store, pid), seqs in seqs_of.items():
        for start in range(0, len(seqs), _KEYS_PER_STATEMENT):
            chunk = seqs[start : start + _KEYS_PER_STATEMENT]
            marks = ", ".join("?" * len(chunk))
            yield store, pid, f"store = ? AND pid = ? AND seq IN ({marks})", chunk
