"""The packs of one store in a bucket: what is in them, what of it is dead, and making thin ones go.

    archive/store=HEX/queue=NAME/pack-NNNNNNNNNN.parquet   messages (pack.py), never changed
    archive/store=HEX/_dead/dead-NNNNNNNNNN                rows of packs that are no longer wanted

Packs and dead marks are numbered in one sequence. Among the rows of a key that are not marked as
dead, the one in the highest pack is its copy.

Invariants:
1. A number is used once: a dead mark with a higher number stays behind when packs go.
2. A row that a higher pack replaced is marked dead before any pack is deleted, else it could come
   back when the higher one goes.
3. A pack is deleted only after what was live in it is stored, and verified, in another.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import crc32c
import numpy as np

from ebbmq import limits
from ebbmq.core.values import distinct_values
from ebbmq.errors import DamagedRecord, StorageFailed
from ebbmq.holding import dead_marks, pack
from ebbmq.holding.columns import by_queue
from ebbmq.holding.contract import Copy, Key, Lack
from ebbmq.holding.listing import Listed, Listing
from ebbmq.holding.pack_index import Entries, PackIndex, entries_of
from ebbmq.holding.pack_table import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.holding.bucket import Bucket
    from ebbmq.holding.columns import Columns

ROOT: Final = "archive"
PACK_BYTES: Final = 64 * limits.MIB
#: As many packs of one queue and of similar size become one.
_SIMILAR_MAX: Final = 8
#: A thin pack that lost nothing for so many calls is rewritten; one that is being consumed is soon
#: empty, and goes without.
_REST_CALLS: Final = 16
_DEAD_OBJECTS_MAX: Final = 32
_TAIL_GUESS_BYTES: Final = 256 * limits.KIB
_SEGMENT_CHARS_MAX: Final = 200
#: The directory Hive and Spark take for "no value".
_NO_QUEUE: Final = "__HIVE_DEFAULT_PARTITION__"


class _Pack:
    """One object and what of it is no longer wanted."""

    __slots__ = ("dead_bytes", "dead_rows", "path", "readable", "rows", "size", "touched_at")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.rows = 0
        self.dead_rows = 0
        self.dead_bytes = 0
        self.readable = True
        #: The call by which it last lost something.
        self.touched_at = 0

    @property
    def is_empty(self) -> bool:
        return self.readable and self.dead_rows == self.rows

    @property
    def is_thin(self) -> bool:
        return 2 * self.dead_rows > self.rows or 2 * self.dead_bytes > self.size


class Archive:
    """One store's packs; it has one writer, the broker of that store."""

    def __init__(self, bucket: Bucket, store: bytes) -> None:
        """Read the footers of all packs.

        Raises:
            StorageFailed: the bucket cannot be read.
        """
        self._bucket = bucket
        self._store = store
        self._root = f"{ROOT}/store={store.hex()}"
        self._packs: dict[int, _Pack] = {}
        self._index = PackIndex()
        self._dead_objects: dict[int, int] = {}
        self._unsaved: list[Entries] = []
        self._doubtful: list[str] = []
        self._number = 0
        self._calls = 0
        self._load()

    @property
    def used_bytes(self) -> int:
        """The size of all objects."""
        return sum(p.size for p in self._packs.values()) + sum(self._dead_objects.values())

    @property
    def damage(self) -> str:
        """What cannot be read, in words."""
        count = sum(not p.readable for p in self._packs.values())
        return f"{count} packs cannot be read" if count else ""

    def encoded(self, copies: Sequence[Copy]) -> list[tuple[str, bytes, pack.Rows]]:
        """The packs that these copies make: directory, bytes and rows."""
        made = []
        for directory, part in _parts(copies):
            data, rows = pack.write(table_of(part))
            made.append((directory, data, rows))
        return made

    def put(self, made: Sequence[tuple[str, bytes, pack.Rows]]) -> None:
        """Store packs; each counts once it was read back."""
        self._clear_doubts()
        self._calls += 1
        for directory, data, rows in made:
            self._put_pack(directory, data, rows)

    def get(self, keys: Sequence[Key]) -> list[bytes | Lack]:
        """The payloads in the order of the keys, each checked against its checksum."""
        entries = self._index.find(keys)
        numbers = distinct_values(entries["pack"]).tolist()
        if len(numbers) == 1 and numbers[0]:
            return self._read(numbers[0], entries)
        found: list[bytes | Lack] = [Lack.MISSING] * len(keys)
        for number in numbers:
            if number:
                places = np.flatnonzero(entries["pack"] == number)
                payloads = self._read(number, entries[places])
                for place, payload in zip(places.tolist(), payloads, strict=True):
                    found[place] = payload
        return found

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget keys: one mark for all of them, then packs that nobody wants go."""
        self._clear_doubts()
        self._calls += 1
        self._retire(self._index.remove(keys))
        # Also what a call before this one retired and failed to save.
        if self._unsaved:
            self._save_dead()
            self.drop_empty()

    def stored(self) -> Listing:
        """Every copy."""
        return Listing(
            self._store,
            [
                Listed(pid, seqs, entries["envelope_bytes"] + entries["body_bytes"], entries["crc"])
                for pid, seqs, entries in self._index.live()
            ],
        )

    def compact(self, *, pressed: bool = False) -> bool:
        """Rewrite some thin or small packs as one; False if there are none worth it.

        Args:
            pressed: the space is needed, so those are too that are being consumed.
        """
        chosen = self._worth_rewriting(rest_calls=0 if pressed else _REST_CALLS)
        if not chosen:
            return False
        tables = []
        for number in chosen:
            table = self._live_table(number)
            if table is None:
                self._packs[number].readable = False
                return True
            tables.append(table)
        directory = self._packs[chosen[0]].path.rpartition("/")[0]
        if not all(self._packs[number].is_empty for number in chosen):
            data, rows = pack.write(pack.joined(tables))
            self._put_pack(directory, data, rows)
        self.drop_empty()
        return True

    # Opening

    def _load(self) -> None:
        self._bucket.sweep(self._root)
        packs: dict[int, _Pack] = {}
        for path, size in self._bucket.list(f"{self._root}/"):
            name = path.rpartition("/")[2]
            number = int("".join(filter(str.isdigit, name)) or 0)
            if name.startswith("pack-"):
                packs[number] = _Pack(path, size)
            elif name.startswith("dead-"):
                self._dead_objects[number] = size
        self._number = max([0, *packs, *self._dead_objects])
        dead = self._dead()
        for number in sorted(packs):
            self._packs[number] = packs[number]
            self._load_pack(number, dead)

    def _load_pack(self, number: int, dead: dict[int, Any]) -> None:
        found = self._packs[number]
        try:
            rows = pack.read_rows(self._footer(found))
        except DamagedRecord:
            found.readable = False
            return
        is_dead = np.isin(rows["body_at"], dead.get(number, ()))
        self._enter(number, rows[~is_dead], rows[is_dead])

    def _footer(self, found: _Pack) -> bytes:
        start = max(0, found.size - _TAIL_GUESS_BYTES)
        tail = self._bucket.get(found.path, start, found.size) or b""
        if len(tail) < pack.TAIL_BYTES:
            raise DamagedRecord(f"{found.path} is gone or too short")
        wanted = pack.footer_bytes(tail)
        if wanted > len(tail):
            tail = self._bucket.get(found.path, max(0, found.size - wanted), found.size) or b""
        return tail

    def _dead(self) -> dict[int, Any]:
        """body_at of the dead rows of each pack."""
        parts = []
        for number in sorted(self._dead_objects):
            try:
                parts.append(dead_marks.unpack(self._bucket.get(self._dead_path(number)) or b""))
            except DamagedRecord as error:
                raise StorageFailed(
                    f"{self._dead_path(number)} in {self._bucket.where} is damaged",
                    "restore that object, or evict the device: going on could bring back "
                    "messages that were acked",
                ) from error
        return dead_marks.by_pack(parts)

    # Packs

    def _put_pack(self, directory: str, data: bytes, rows: pack.Rows) -> None:
        self._number += 1
        path = f"{directory}/pack-{self._number:010d}.parquet"
        if not directory.startswith(self._root):
            path = f"{self._root}/{path}"
        self._doubtful.append(path)
        self._bucket.put(path, data)
        self._doubtful.remove(path)
        self._packs[self._number] = _Pack(path, len(data))
        self._enter(self._number, rows)

    def _enter(self, number: int, rows: pack.Rows, dead: pack.Rows | None = None) -> None:
        """Count a pack in: rows that are copies, and rows that are none."""
        self._packs[number].rows = len(rows) + (0 if dead is None else len(dead))
        if dead is not None and len(dead):
            self._count_dead(entries_of(number, dead))
        self._retire(self._index.add(number, rows))

    def _retire(self, entries: Entries) -> None:
        """These rows are not wanted any more."""
        if len(entries):
            self._unsaved.append(entries)
            self._count_dead(entries)

    def _count_dead(self, entries: Entries) -> None:
        for number in distinct_values(entries["pack"]).tolist():
            part = entries[entries["pack"] == number]
            self._packs[number].touched_at = self._calls
            self._packs[number].dead_rows += len(part)
            self._packs[number].dead_bytes += int(
                part["envelope_bytes"].sum() + part["body_bytes"].sum()
            )

    def _clear_doubts(self) -> None:
        """Delete packs whose put failed: they may have arrived all the same."""
        while self._doubtful:
            self._bucket.delete(self._doubtful[:1])
            del self._doubtful[0]

    def _read(self, number: int, entries: Entries) -> list[bytes | Lack]:
        starts = np.concatenate([entries["body_at"], entries["envelope_at"]])
        sizes = np.concatenate([entries["body_bytes"], entries["envelope_bytes"]])
        asked = np.flatnonzero(sizes)
        path = self._packs[number].path
        read = self._bucket.get_ranges(
            path, starts[asked].tolist(), (starts + sizes)[asked].tolist()
        )
        if read is None:
            return [Lack.DAMAGED] * len(entries)
        crcs = entries["crc"].tolist()
        if len(asked) == len(entries) and not entries["envelope_bytes"].any():
            payloads = list(map(bytes, read))
        else:
            parts = dict(zip(asked.tolist(), read, strict=True))
            blocks = range(len(entries), 2 * len(entries))
            payloads = [
                b"".join((parts.get(block, b""), parts.get(block - len(entries), b"")))
                for block in blocks
            ]
        return [
            payload if crc32c.crc32c(payload) == crc else Lack.DAMAGED
            for payload, crc in zip(payloads, crcs, strict=True)
        ]

    # Giving space back

    def _save_dead(self) -> None:
        """Write what was retired since the last time; many such objects become one."""
        numbers = [np.zeros((0, 2), "<u4")]
        numbers += [
            np.stack([entries["pack"], entries["body_at"]], axis=1) for entries in self._unsaved
        ]
        before = list(self._dead_objects)
        if len(before) >= _DEAD_OBJECTS_MAX:
            for number, marks_of in self._dead().items():
                if number in self._packs:
                    numbers.append(np.stack([np.full_like(marks_of, number), marks_of], axis=1))
        data = dead_marks.pack(np.concatenate(numbers))
        self._number += 1
        number = self._number
        self._bucket.put_whatever_the_space(self._dead_path(number), data)
        self._dead_objects[number] = len(data)
        self._unsaved.clear()
        if len(before) >= _DEAD_OBJECTS_MAX:
            self._bucket.delete([self._dead_path(old) for old in before])
            for old in before:
                del self._dead_objects[old]

    def _dead_path(self, number: int) -> str:
        return f"{self._root}/_dead/dead-{number:010d}"

    def drop_empty(self) -> None:
        """Delete packs that nobody wants any more."""
        empty = [number for number, found in self._packs.items() if found.is_empty]
        if empty and self._unsaved:
            self._save_dead()
        for number in empty:
            self._bucket.delete([self._packs[number].path])
            del self._packs[number]

    def _worth_rewriting(self, rest_calls: int) -> list[int]:
        similar: dict[tuple[str, int], list[int]] = {}
        for number, found in self._packs.items():
            if not found.readable:
                continue
            queue = found.path.rpartition("/")[0]
            if found.is_thin:
                if self._calls - found.touched_at >= rest_calls:
                    return [number]
            elif found.size < PACK_BYTES // 4:
                size_class = found.size.bit_length() // 3
                similar.setdefault((queue, size_class), []).append(number)
        return next((some for some in similar.values() if len(some) >= _SIMILAR_MAX), [])

    def _live_table(self, number: int) -> Any | None:
        """The wanted rows of a pack; None if it cannot be read."""
        data = self._bucket.get(self._packs[number].path)
        try:
            table = pack.read_table(data or b"")
            rows = pack.read_rows(data or b"")
        except DamagedRecord:
            return None
        entries = self._index.find_rows(rows)
        wanted = (entries["pack"] == number) & (entries["body_at"] == rows["body_at"])
        return pack.chosen(table, wanted)


def _parts(copies: Sequence[Copy]) -> Iterator[tuple[str, Columns]]:
    """Cut a batch into packs: by queue, and by size."""
    for part in by_queue(copies):
        directory = _directory(None if part.told is None else part.told.queue)
        for cut in part.cut(PACK_BYTES):
            yield directory, cut


def _directory(queue: str | None) -> str:
    """One path segment for any queue name; one that is too long is cut and told apart by a hash."""
    if queue is None:
        return f"queue={_NO_QUEUE}"
    name = quote(queue, safe="")
    if len(name) > _SEGMENT_CHARS_MAX:
        mark = hashlib.blake2b(queue.encode(), digest_size=8).hexdigest()
        name = f"{quote(queue[: _SEGMENT_CHARS_MAX // 12], safe='')}~{mark}"
    return f"queue={name}"
