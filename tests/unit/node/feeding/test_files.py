"""Files of a node in a lake that fails in the middle: nothing visible lacks its files."""

from __future__ import annotations

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

    def publish(self, path: str, data: bytes) -> None:
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


def test_a_manifest_whose_answer_did_not_come_is_taken_back_with_its_files(lake: Failing) -> None:
    files = opened(lake)
    lake.answers_late = True
    with pytest.raises(OSError, match="did not come"):
        told(files)
    assert (there(lake, ".parquet"), there(lake, ".json")) == (0, 1)  # whose name this is
    assert opened(lake).bytes == files.bytes == 0


def test_files_stay_where_the_manifest_that_may_name_them_does(lake: Failing) -> None:
    files = opened(lake)
    lake.answers_late = lake.refuses_deletes = True
    with pytest.raises(OSError, match="did not come"):
        told(files)
    lake.answers_late = lake.refuses_deletes = False
    assert there(lake, ".parquet") == 1
    again = opened(lake)
    assert (there(lake, ".parquet"), again.bytes > 100) == (1, True)


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
