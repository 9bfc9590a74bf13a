"""Files of a node in a lake that fails in the middle: nothing visible lacks its files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq.feed.events import EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.node.feeding.files import SNAPSHOTS_KEPT, Files
from ebbmq.node.feeding.lake import DirectoryLake

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AT_MS = 1_700_000_000_000


class Failing(DirectoryLake):
    """A lake of which some things fail as long as they are told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.refuses_deletes = False
        self.answers_late = False
        #: Requests are kept back, and not answered.
        self.keeps_back = False
        self.kept: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        if self.keeps_back:
            self.kept.append((path, data))
            raise OSError("the answer did not come")
        super().publish(path, data)
        if self.answers_late:
            raise OSError("the answer did not come")

    def delete(self, paths: Sequence[str]) -> None:
        if self.refuses_deletes:
            raise OSError("not allowed to delete")
        super().delete(paths)


@pytest.fixture
def lake(tmp_path: Path) -> Failing:
    return Failing(tmp_path)


def opened(lake: Failing, bytes_max: int = 10_000) -> Files:
    files = Files(lake, "n", b"store", bytes_max)
    files.open(1)
    return files


def told(files: Files, table=EVENTS, size: int = 100) -> None:
    part = files.write(f"{table.name}/node=n/{files.number()}.parquet", b"." * size, 1)
    files.publish(table, [part], AT_MS)


def there(lake: Failing, ending: str) -> int:
    return sum(path.endswith(ending) for path, _ in lake.list("."))


def test_a_manifest_that_is_there_counts_though_its_answer_did_not_come(lake: Failing) -> None:
    files = opened(lake)
    lake.answers_late = True
    told(files)
    assert files.settle(EVENTS) is None
    lake.answers_late = False
    assert (there(lake, ".parquet"), there(lake, ".json")) == (1, 2)  # and whose name this is
    assert opened(lake).bytes == files.bytes > 100


def test_a_manifest_that_comes_late_is_the_one_that_is_sent_again(lake: Failing) -> None:
    files = opened(lake)
    lake.keeps_back = True
    with pytest.raises(OSError, match="did not come"):
        told(files)
    with pytest.raises(OSError, match="did not come"):
        files.settle(EVENTS)
    assert (there(lake, ".parquet"), there(lake, ".json"), files.bytes) == (1, 1, 0)
    lake.keeps_back = False
    for path, data in lake.kept[:1]:
        lake.publish(path, data)
    assert files.settle(EVENTS) == 1
    assert files.settle(EVENTS) is None
    assert len(set(lake.kept)) == 1
    assert (there(lake, ".parquet"), there(lake, ".json")) == (1, 2)
    assert opened(lake).bytes == files.bytes > 100


def test_a_manifest_is_not_sent_again_where_its_files_are_gone(lake: Failing) -> None:
    files = opened(lake)
    lake.keeps_back = True
    with pytest.raises(OSError, match="did not come"):
        told(files)
    lake.keeps_back = False
    lake.delete([path for path, _ in lake.list("events") if path.endswith(".parquet")])
    assert files.settle(EVENTS) is None
    assert (there(lake, ".json"), files.bytes) == (1, 0)
    told(files)
    assert files.bytes > 100


def test_what_cannot_be_deleted_counts_until_it_can(lake: Failing) -> None:
    files = opened(lake)
    for _ in range(SNAPSHOTS_KEPT + 1):
        told(files, CATALOG)
    before, lake.refuses_deletes = files.bytes, True
    for _ in range(2):
        with pytest.raises(OSError, match="not allowed"):
            files.keep_within_bounds()
    assert files.bytes == before
    lake.refuses_deletes = False
    files.keep_within_bounds()
    assert there(lake, ".parquet") == SNAPSHOTS_KEPT
    assert files.bytes == opened(lake).bytes


def test_the_oldest_events_go_first_and_are_counted(lake: Failing) -> None:
    files = opened(lake, bytes_max=2_000)
    for _ in range(3):
        told(files, size=900)
    files.keep_within_bounds()
    assert (there(lake, ".parquet"), files.removed) == (1, 2)
    assert files.bytes <= 2_000


def test_a_file_that_was_there_is_refused_and_stays(tmp_path: Path) -> None:
    lake = DirectoryLake(tmp_path)
    for write in (lake.write, lake.publish):
        path = f"events/{write.__name__}"
        write(path, b"first")
        with pytest.raises(FileExistsError):
            write(path, b"second")
        assert lake.read(path) == b"first"
    assert {path for path, _ in lake.list("")} == {"events/write", "events/publish"}


class Slow(DirectoryLake):
    """A lake that answers who reads manifests only when several do."""

    def __init__(self, root: Path, readers: int) -> None:
        super().__init__(root)
        self._together = threading.Barrier(readers, timeout=30)

    def read(self, path: str) -> bytes:
        if path.startswith("events"):
            self._together.wait()
        return super().read(path)


def test_what_is_there_is_read_many_files_at_a_time(lake: Failing, tmp_path: Path) -> None:
    files = opened(lake)
    for _ in range(16):
        told(files)
    again = Files(Slow(tmp_path, readers=8), "n", b"store", 10_000)
    again.open(1)
    assert again.bytes == files.bytes
