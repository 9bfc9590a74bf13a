"""The node's own files in the lake: written and made visible together, bounded, oldest away first.

Only files of the node's name are ever touched. What an end in the middle left behind, files that no
manifest names, goes at the next start. A manifest that cannot be read may name any of them: while
there is one, nothing that is unnamed goes from its table.

What is there never takes more than `bytes_max`, unless one file of events does: room is made before
a file is written. The last snapshot and the one in the making have three quarters of it at most, so
that a quarter is left to events; a snapshot that does not fit is given up. The older snapshot goes
before events do once snapshots take more than half; else it stays for who reads it.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ebbmq.errors import InvalidSpec
from ebbmq.feed import layout, manifests
from ebbmq.feed.manifests import Manifest, Part, UnknownFeed
from ebbmq.feed.snapshots import CATALOG
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ebbmq.feed.settings import Settings
    from ebbmq.feed.table import Table
    from ebbmq.node.feeding.lake import Lake

#: The last snapshots that are kept: one may be read while the next is written.
SNAPSHOTS_KEPT: Final = 2
#: Of `bytes_max`: what the last snapshot and the one in the making take at most.
SNAPSHOTS_SHARE: Final = 0.75
#: Of it: what all snapshots may take before the older one goes so that events can stay.
_OLDER_SHARE: Final = 0.5
#: So much more than two snapshots take is enough: manifests and some more messages fit as well.
_NEEDED: Final = 1.5
#: Of it: what a file of events takes at most where two of them fit, whatever snapshots take.
_EVENTS_SHARE: Final = (1 - SNAPSHOTS_SHARE) / 2


class NoRoom(Exception):  # noqa: N818  # it is nobody's fault
    """A snapshot does not fit beside what has to stay."""


@dataclass(slots=True)
class Making:
    """A snapshot in the making: files that count, and that nobody sees yet."""

    parts: list[Part] = field(default_factory=list)
    bytes: int = 0
    #: What there was to write so far, with the file that did not fit.
    bytes_asked: int = 0
    rows_asked: int = 0

    def bytes_of(self, messages: int) -> int:
        """What a snapshot of so many messages takes, by what is known of this one."""
        rows = max(1, self.rows_asked)
        return self.bytes_asked * max(messages, rows) // rows


#: Manifests that are read at once at a start, and so many wait in RAM at most.
_READS_AT_ONCE: Final = 16
_READS_WAITING: Final = 1024


class _Visible(NamedTuple):
    """A manifest and what it makes visible."""

    #: Empty where files never got one.
    path: str
    parts: tuple[str, ...]
    bytes: int


class _Told(NamedTuple):
    """A manifest that was sent to the lake, and what it makes visible."""

    path: str
    packed: bytes
    parts: tuple[Part, ...]

    def is_at(self, lake: Lake) -> bool:
        """Whether it is there; not, where that cannot be seen."""
        try:
            return lake.read(self.path) == self.packed
        except Exception:  # whatever a lake that fails comes up with
            return False

    def is_whole(self, lake: Lake) -> bool:
        """Whether all that it names is there."""
        directories = {part.path.rpartition("/")[0] for part in self.parts}
        found = {path: size for each in directories for path, size in lake.list(each)}
        return all(found.get(part.path) == part.bytes for part in self.parts)


class Files:
    """What a node has in the lake; used by one thread."""

    def __init__(self, lake: Lake, node: str, store: bytes, bytes_max: int) -> None:
        self.lake = lake
        self._store = store
        self.boot = 0
        self.bytes = 0
        self.written = 0
        #: Files that had to go so that others fit.
        self.removed = 0
        #: Tables with own manifests that cannot be read, and why. They stay, and so does what they
        #: may name: for whoever can read it, and beside what is bounded here.
        self.refused: list[str] = []
        self._node = node
        self.bytes_max = bytes_max
        #: What `bytes_max` would have to be for more than the last file of events; 0 while there is
        #: room for more.
        self.events_need = 0
        #: Of the last file of events that had to go while no other came beside it: its bytes.
        self._pressed_out = 0
        self._making: Making | None = None
        #: What should be gone and could not be deleted yet.
        self._leftovers: deque[_Visible] = deque()
        self._number = 0
        #: By table: of which it is not known whether it is there, or will be.
        self._unsettled: dict[str, _Told] = {}
        self._visible: dict[str, deque[_Visible]] = {
            layout.EVENTS: deque(),
            layout.CATALOG: deque(),
        }

    def open(self, epoch: int) -> None:
        """See what is there, and choose a boot that was not told of before.

        Raises:
            InvalidSpec: another store writes to the lake under this node's name.
        """
        self.claim()
        self.boot, self.bytes, self.refused = epoch, 0, []
        for table in self._visible:
            self._see(table)

    def _see(self, table: str) -> None:
        """Find what is visible of a table, and delete what never became so."""
        visible, unnamed = self._visible[table], set[str]()
        visible.clear()
        refused: list[str] = []
        own = [each for each in sorted(self.lake.list(table)) if self._is_own(each[0])]
        unnamed.update(path for path, _ in own if not path.endswith(".json"))
        for path, size, stored in self._stored([each for each in own if each[0] not in unnamed]):
            try:
                visible.append(self._read(path, size, stored))
            except UnknownFeed as error:
                refused.append(error.detail)
        self.bytes += sum(found.bytes for found in visible)
        unnamed.difference_update(*(found.parts for found in visible))
        if refused:
            log.warning("feed_manifests_not_known", manifests=len(refused), first=refused[0])
            self.refused.append(f"{len(refused)} manifests cannot be read, such as {refused[0]}")
        elif unnamed:
            log.info("feed_leftovers", lake=self.lake.where, files=len(unnamed))
            self.lake.delete(sorted(unnamed))

    def _stored(self, found: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, bytes]]:
        """Small files, many at a time: a store takes some 30 ms for each, however many wait."""
        with ThreadPoolExecutor(_READS_AT_ONCE, "ebbmq-feed-read") as pool:
            for begin in range(0, len(found), _READS_WAITING):
                some = found[begin : begin + _READS_WAITING]
                stored = pool.map(self.lake.read, [path for path, _ in some])
                for (path, size), each in zip(some, stored, strict=True):
                    yield path, size, each

    def claim(self) -> None:
        """Have the node's name for this store alone: readers tell nodes apart by it.

        A lake that somebody took away is claimed anew.

        Raises:
            InvalidSpec: another store writes to the lake under this node's name.
        """
        path = layout.node_file(self._node)
        if not any(found == path for found, _ in self.lake.list(layout.NODES)):
            self.lake.publish(path, msgspec.json.encode({"store": self._store.hex()}))
            return
        owner = msgspec.json.decode(self.lake.read(path), type=dict[str, str]).get("store")
        if owner != self._store.hex():
            raise InvalidSpec(
                f"another store writes to {self.lake.where} as node {self._node!r}",
                "give each broker a name of its own: set node in its configuration; if the other "
                f"store is gone for good, remove {path} there",
            )

    def _is_own(self, path: str) -> bool:
        own, parts = layout.segment(self._node), path.split("/")
        if layout.MANIFESTS in parts:
            return parts[-1][17:].rsplit("-", 2)[0] == own
        return f"node={own}" in parts

    def _read(self, path: str, size: int, stored: bytes) -> _Visible:
        # What is told under a boot stays its own, also where only the name can be read.
        named = layout.named(path)
        if named is not None:
            self.boot = max(self.boot, named.boot + 1)
        told = manifests.decode(stored, path)
        self.boot = max(self.boot, told.boot + 1)
        parts = tuple(part.path for part in told.parts)
        return _Visible(path, parts, size + sum(part.bytes for part in told.parts))

    def number(self) -> int:
        """A number no file of this boot has."""
        self._number += 1
        return self._number

    def write(self, path: str, data: bytes, rows: int) -> Part:
        """Write a file of events nobody sees yet; it may take the place of the last ones."""
        self._make_room(len(data), events_kept=0)
        return self._write(path, data, rows)

    def _write(self, path: str, data: bytes, rows: int) -> Part:
        part = Part(path, rows, len(data))
        self.bytes += part.bytes
        try:
            self.lake.write(path, data)
        except FileExistsError:  # that one is not ours
            self.bytes -= part.bytes
            raise
        except BaseException:
            # It may be there all the same: an answer that did not come says nothing.
            self.give_up([part])
            raise
        return part

    def begin_snapshot(self) -> Making:
        """Begin a snapshot; until it is published or given up it counts as it grows."""
        self._making = Making()
        return self._making

    def add(self, path: str, data: bytes, rows: int) -> None:
        """Write a file of the snapshot in the making.

        Raises:
            NoRoom: the snapshot does not fit, or was given up so that events do.
        """
        making = self._fitting(len(data), rows)
        making.parts.append(self._write(path, data, rows))
        making.bytes += len(data)

    def _fitting(self, size: int, rows: int) -> Making:
        """The snapshot in the making, with room for so much more of it."""
        making, snapshots = self._making, self._visible[layout.CATALOG]
        if making is None:
            raise NoRoom
        making.bytes_asked += size
        making.rows_asked += rows
        last = snapshots[-1].bytes if snapshots else 0
        if last + making.bytes + size > self.bytes_max * SNAPSHOTS_SHARE:
            raise NoRoom
        self._make_room(size)
        if self._making is None:
            raise NoRoom
        return making

    def give_up_snapshot(self) -> None:
        """Delete what there is of the snapshot in the making."""
        making, self._making = self._making, None
        if making is not None:
            self.give_up(making.parts)

    def snapshot_need(self, making: Making, messages: int) -> int:
        """What `bytes_max` would have to be for a snapshot of so many messages and the next one."""
        snapshots = self._visible[layout.CATALOG]
        size = making.bytes_of(messages)
        both = size + max(size, snapshots[-1].bytes if snapshots else 0)
        return max(int(both * _NEEDED), self.bytes_max + 1)

    def publish(
        self,
        table: Table,
        parts: Sequence[Part],
        at_ms: int,
        seqs: tuple[int, int] | None = None,
        instants: tuple[int, int] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Make files visible together; a snapshot is no longer in the making then.

        Raises:
            NoRoom: it is a snapshot, and its manifest does not fit.
            OSError, EbbError: it is not known whether they are, or will be: a request that is not
                answered may be carried out at any time. They stay until `settle`.
        """
        number = self.number()
        manifest = Manifest(
            table=table.name,
            version=table.version,
            node=self._node,
            boot=self.boot,
            number=number,
            written_at_ms=at_ms,
            parts=tuple(parts),
            first_seq=seqs[0] if seqs else None,
            last_seq=seqs[1] if seqs else None,
            first_at_ms=instants[0] if instants else None,
            last_at_ms=instants[1] if instants else None,
            settings=settings,
        )
        path = layout.manifest_file(table.name, at_ms, self._node, self.boot, number)
        packed = manifests.encode(manifest)
        if table is CATALOG:
            self._fitting(len(packed), 0)
            self._making = None
        else:
            try:
                self._make_room(len(packed), events_kept=0)
            except BaseException:
                self.give_up(parts)
                raise
        self.bytes += len(packed)
        told = self._unsettled[table.name] = _Told(path, packed, tuple(parts))
        self._send(table, told)

    def settle(self, table: Table) -> int | None:
        """Send the last manifest of a table once more if it is not known whether it is there.

        Returns:
            How many rows are visible by it; None if there is none, or none any more, as files that
            it names are gone.

        Raises:
            OSError, EbbError: it still is not known.
        """
        told = self._unsettled.get(table.name)
        if told is None:
            return None
        if not told.is_whole(self.lake):
            self.lake.delete([told.path])
            del self._unsettled[table.name]
            self.bytes -= len(told.packed)
            self.give_up(told.parts)
            return None
        self._send(table, told)
        return sum(part.rows for part in told.parts)

    def _send(self, table: Table, told: _Told) -> None:
        try:
            self.lake.publish(told.path, told.packed)
        except Exception:
            # It may have come without the answer, now or the last time.
            if not told.is_at(self.lake):
                raise
        del self._unsettled[table.name]
        size = len(told.packed) + sum(part.bytes for part in told.parts)
        names = tuple(part.path for part in told.parts)
        self._visible[table.name].append(_Visible(told.path, names, size))
        self.written += len(names)

    def give_up(self, parts: Sequence[Part]) -> None:
        """Delete files that will not be made visible."""
        if parts:
            size = sum(part.bytes for part in parts)
            self._leave(_Visible("", tuple(part.path for part in parts), size))

    def _leave(self, left: _Visible) -> None:
        """Delete what nobody needs; what stays counts, and is tried again."""
        self._leftovers.append(left)
        try:
            self._clear()
        except Exception as error:  # whatever a lake that fails comes up with
            files = len(left.parts)
            log.info("feed_leftovers", lake=self.lake.where, files=files, detail=str(error))

    def _clear(self) -> None:
        while self._leftovers:
            self._remove(self._leftovers)

    def keep_within_bounds(self) -> None:
        """Delete the oldest; what cannot be deleted is tried again the next time."""
        snapshots, events = self._visible[layout.CATALOG], self._visible[layout.EVENTS]
        self._clear()
        while len(snapshots) > SNAPSHOTS_KEPT:
            self._remove(snapshots)
        self._make_room(0)
        if len(events) > 1:
            self._pressed_out = 0
        largest = max(self._pressed_out, events[0].bytes if events else 0)
        is_pressed = self._pressed_out or self.bytes > self.bytes_max
        self.events_need = int(largest / _EVENTS_SHARE) + 1 if is_pressed else 0

    def _make_room(self, coming: int, events_kept: int = 1) -> None:
        """Delete the oldest until so many bytes more are within bounds, or nothing may go."""
        events = self._visible[layout.EVENTS]
        while self.bytes + coming > self.bytes_max:
            visible = self._next_to_go(events_kept)
            if visible is not None:
                size = visible[0].bytes
                self.removed += self._remove(visible)
                if visible is events:
                    self._pressed_out = size
            elif self._making is not None:
                self.give_up_snapshot()
            else:
                return

    def _next_to_go(self, events_kept: int) -> deque[_Visible] | None:
        """Of what the oldest goes; of nothing before the snapshot in the making is given up."""
        snapshots, events = self._visible[layout.CATALOG], self._visible[layout.EVENTS]
        making = self._making.bytes if self._making is not None else 0
        taken = making + sum(each.bytes for each in snapshots)
        if len(snapshots) > 1 and taken > self.bytes_max * _OLDER_SHARE:
            return snapshots
        # The bound was a larger one when it was written.
        if snapshots and snapshots[-1].bytes > self.bytes_max * SNAPSHOTS_SHARE:
            return snapshots
        if len(events) > events_kept:
            return events
        if len(snapshots) > 1 or (snapshots and self._making is None):
            return snapshots
        return None

    def _remove(self, visible: deque[_Visible]) -> int:
        """The manifest goes first: whoever sees it finds its files. Returns how many these were."""
        oldest = visible[0]
        if oldest.path:
            self.lake.delete([oldest.path])
        self.lake.delete(oldest.parts)
        visible.popleft()
        self.bytes -= oldest.bytes
        return len(oldest.parts)
