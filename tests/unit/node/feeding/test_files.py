"""Files of a node in a lake that fails in the middle: nothing visible lacks its files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq.feed.events import EVENTS
from ebbmq.feed.snapshots import CATALOG
from ebbmq.node.feeding.files import SNAPSHOTS_KEPT, Files, NoRoom
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
        #: Of files.
        self.loses_answers = False
        self.bytes_most = 0
        #: Requests are kept back, and not answered.
        self.keeps_back = False
        self.kept: list[tuple[str, bytes]] = []

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        self._look()
        if self.loses_answers:
            raise OSError("the answer did not come")

    def publish(self, path: str, data: bytes) -> None:
        if self.keeps_back:
            self.kept.append((path, data))
            raise OSError("the answer did not come")
        super().publish(path, data)
        self._look()
        if self.answers_late:
            raise OSError("the answer did not come")

    def delete(self, paths: Sequence[str]) -> None:
        if self.refuses_deletes:
            raise OSError("not allowed to delete")
        super().delete(paths)

    def _look(self) -> None:
        found = sum(size for path, size in self.list(".") if not path.startswith("_nodes"))
        self.bytes_most = max(self.bytes_most, found)


@pytest.fixture
def lake(tmp_path: Path) -> Failing:
    return Failing(tmp_path)


def opened(lake: Failing, bytes_max: int = 10_000) -> Files:
    files = Files(lake, "n", b"store", bytes_max)
    files.open(1)
    return files


def told(files: Files, table=EVENTS, size: int = 100) -> None:
    if table is CATALOG:
        snapshot(files, size)
        return
    part = files.write(f"{table.name}/node=n/{files.number()}.parquet", b"." * size, 1)
    files.publish(table, [part], AT_MS)


def added(files: Files, size: int, rows: int = 1) -> None:
    files.add(f"catalog/node=n/{files.number()}.parquet", b"." * size, rows)


def snapshot(files: Files, *sizes: int) -> None:
    making = files.begin_snapshot()
    for size in sizes:
        added(files, size)
    files.publish(CATALOG, making.parts, AT_MS)


def kept(lake: Failing) -> tuple[int, int]:
    """How many manifests there are of events and of snapshots."""
    found = [path for path, _ in lake.list(".") if path.endswith(".json")]
    return tuple(  # type: ignore[return-value]  # it is two
        sum(path.startswith(f"{name}/") for path in found) for name in ("events", "catalog")
    )


def there(lake: Failing, ending: str) -> int:
    return sum(path.endswith(ending) for path, _ in lake.list("."))


def test_a_file_whose_answer_did_not_come_is_deleted_and_counts_until_then(lake: Failing) -> None:
    files = opened(lake)
    lake.loses_answers = lake.refuses_deletes = True
    for _ in range(3):
        with pytest.raises(OSError, match="did not come"):
            told(files)
    assert there(lake, ".parquet") == 3
    assert files.bytes == 300
    lake.refuses_deletes = False
    files.keep_within_bounds()
    assert (there(lake, ".parquet"), files.bytes) == (0, 0)


def test_files_whose_manifest_there_is_no_room_made_for_are_deleted(lake: Failing) -> None:
    files = opened(lake, bytes_max=2_000)
    told(files, size=500)
    part = files.write("events/date=x/hour=0/node=n/1.parquet", b"." * 1_100, 1)
    lake.refuses_deletes = True
    with pytest.raises(OSError, match="not allowed"):
        files.publish(EVENTS, [part], AT_MS)
    lake.refuses_deletes = False
    files.keep_within_bounds()
    assert files.bytes == opened(lake, bytes_max=2_000).bytes
    assert there(lake, ".parquet") == 1


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
    assert (there(lake, ".parquet"), there(lake, ".json")) == (1, 1)
    counted = files.bytes  # whether or not it came
    lake.keeps_back = False
    for path, data in lake.kept[:1]:
        lake.publish(path, data)
    assert files.settle(EVENTS) == 1
    assert files.settle(EVENTS) is None
    assert len(set(lake.kept)) == 1
    assert (there(lake, ".parquet"), there(lake, ".json")) == (1, 2)
    assert opened(lake).bytes == files.bytes == counted > 100


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


def test_there_is_never_more_than_the_bound_not_even_while_it_is_written(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    for _ in range(20):
        for _ in range(5):
            told(files, size=1_000)
            files.keep_within_bounds()
        snapshot(files, 1_500, 1_500)
        files.keep_within_bounds()
    assert 15_000 < lake.bytes_most <= 20_000
    assert kept(lake)[0] > 3


def test_small_snapshots_stay_both_where_events_have_to_go(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    snapshot(files, 500)
    snapshot(files, 500)
    for _ in range(40):
        told(files, size=1_000)
        files.keep_within_bounds()
    assert kept(lake)[1] == 2
    assert files.removed > 0


def test_the_older_of_large_snapshots_goes_before_events_do(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    told(files, size=3_000)
    for _ in range(2):
        snapshot(files, 5_000)
    assert kept(lake) == (1, 2)
    for _ in range(2):
        told(files, size=3_000)
    assert kept(lake) == (3, 1)
    assert files.removed == 1


def test_a_snapshot_in_the_making_counts_and_no_reader_sees_it(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    for _ in range(3):
        told(files, size=4_000)
    before = files.bytes
    files.begin_snapshot()
    added(files, 4_000)
    added(files, 4_000)
    assert kept(lake) == (2, 0)
    assert before < files.bytes <= 20_000


@pytest.mark.parametrize("sizes", [(16_000,), (6_000, 6_000, 6_000), (1_000,) * 30])
def test_a_snapshot_that_does_not_fit_is_given_up_and_events_keep_a_quarter(
    lake: Failing, sizes: Sequence[int]
) -> None:
    files = opened(lake, bytes_max=20_000)
    for _ in range(3):
        told(files, size=1_000)
    for _ in range(3):
        with pytest.raises(NoRoom):
            snapshot(files, *sizes)
        files.give_up_snapshot()
        assert kept(lake) == (3, 0)
        assert there(lake, ".parquet") == 3
        assert files.bytes == opened(lake, bytes_max=20_000).bytes
    assert lake.bytes_most <= 20_000


def test_what_a_snapshot_needs_is_what_it_is_told_to(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    making = files.begin_snapshot()
    with pytest.raises(NoRoom):
        added(files, 16_000, 1_000)
    files.give_up_snapshot()
    assert making.bytes_of(4_000) == 64_000
    needed = files.snapshot_need(making, 4_000)
    assert needed == 3 * 64_000
    enough = opened(lake, bytes_max=needed)
    for _ in range(4):
        snapshot(enough, *(16_000,) * 4)
        told(enough)
        enough.keep_within_bounds()
    assert kept(lake) == (4, 2)


def test_the_last_snapshot_stays_where_the_next_does_not_fit(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    snapshot(files, 8_000)
    files.begin_snapshot()
    with pytest.raises(NoRoom):
        added(files, 8_000)
    files.give_up_snapshot()
    assert kept(lake) == (0, 1)


def test_a_snapshot_whose_manifest_does_not_fit_is_given_up(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    making = files.begin_snapshot()
    added(files, 14_990)
    with pytest.raises(NoRoom):
        files.publish(CATALOG, making.parts, AT_MS)
    files.give_up_snapshot()
    assert (there(lake, ".parquet"), kept(lake), files.bytes) == (0, (0, 0), 0)


def test_a_snapshot_that_is_too_large_for_a_smaller_bound_goes_before_events(lake: Failing) -> None:
    files = opened(lake, bytes_max=40_000)
    told(files, size=1_000)
    told(files, size=1_000)
    snapshot(files, 19_000)
    smaller = opened(lake, bytes_max=20_000)
    smaller.keep_within_bounds()
    assert kept(lake) == (2, 0)
    assert smaller.bytes <= 20_000


def test_events_of_which_one_file_is_all_there_is_room_for_need_more(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    snapshot(files, 1_000)
    for size, needs_more in [(12_000, False), (12_000, True), (12_000, True), (100, False)]:
        told(files, size=size)
        files.keep_within_bounds()
        assert (files.events_need > 20_000) is needs_more
        assert (files.events_need > 0) is needs_more
        assert lake.bytes_most <= 20_000
    assert kept(lake) == (2, 1)


def test_one_file_of_events_stays_however_large(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    snapshot(files, 1_000)
    files.begin_snapshot()
    added(files, 1_000)
    told(files, size=30_000)
    files.keep_within_bounds()
    assert files.events_need > 8 * 30_000
    # What was in the making is given up.
    with pytest.raises(NoRoom):
        added(files, 1_000)
    assert (kept(lake), there(lake, ".parquet")) == ((1, 0), 1)
    told(files, size=100)
    told(files, size=100)
    files.keep_within_bounds()
    assert files.bytes <= 20_000
    assert files.events_need == 0


def test_files_of_a_given_up_snapshot_count_until_they_can_be_deleted(lake: Failing) -> None:
    files = opened(lake, bytes_max=20_000)
    told(files)
    files.begin_snapshot()
    added(files, 5_000)
    lake.refuses_deletes = True
    files.give_up_snapshot()
    assert files.bytes > 5_000
    for _ in range(2):
        with pytest.raises(OSError, match="not allowed"):
            files.keep_within_bounds()
    assert there(lake, ".parquet") == 2
    lake.refuses_deletes = False
    files.keep_within_bounds()
    assert there(lake, ".parquet") == 1
    assert files.bytes == opened(lake, bytes_max=20_000).bytes


def test_files_of_others_stay_whatever_has_to_go(lake: Failing) -> None:
    other = Files(lake, "other", b"another", 20_000)
    other.open(1)
    part = other.write("events/node=other/1.parquet", b"." * 9_000, 1)
    other.publish(EVENTS, [part], AT_MS)
    files = opened(lake, bytes_max=5_000)
    for _ in range(5):
        told(files, size=2_000)
        files.keep_within_bounds()
    assert files.bytes <= 5_000
    assert any(path == part.path for path, _ in lake.list("events"))


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
