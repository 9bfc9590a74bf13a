"""A file that goes after it was found is not called damaged; what goes earlier is not missed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from ebbmq.feed.events import EVENTS
from ebbmq.feed.manifests import UnknownFeed
from ebbmq_spark.connector import columns
from ebbmq_spark.connector.archive import ArchiveReader, packs_of
from ebbmq_spark.connector.lake import LakeReader, visible
from ebbmq_spark.pieces import Piece, batches
from ebbmq_spark.places import Gone, Place, Store, open_place
from ebbmq_spark.schemas import schema_of
from tests.pipeline.test_connector_archive import Between, copy, put, put_together
from tests.pipeline.test_connector_read import make_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql.datasource import DataSourceReader, InputPartition

    from tests.servers import Weed

EVENT_COLUMNS = schema_of(EVENTS)


class Somewhere(Protocol):
    """A directory as it is, or copied to a store."""

    def __call__(self, directory: Path) -> Place: ...


@pytest.fixture(params=["directory", "store"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Somewhere:
    if request.param == "directory":
        return lambda directory: Place(str(directory))
    weed: Weed = request.getfixturevalue("weed")

    def stored(directory: Path) -> Place:
        place = Place(
            f"s3://{weed.bucket}/{tmp_path.name}",
            {
                "endpoint": weed.endpoint, "region": "us-east-1",
                "access_key_id": weed.access_key, "secret_access_key": weed.secret_key,
            },
        )  # fmt: skip
        for path in directory.rglob("*"):
            if path.is_file():
                Store(place).write(str(path.relative_to(directory)), path.read_bytes())
        return place

    return stored


def removed(place: Place, name: str) -> str:
    """A file whose path has a name in it, which is gone."""
    files = open_place(place)
    (path,) = (each.path for each in files.list("") if name in each.path)
    if isinstance(files, Store):
        files.delete([path])
    else:
        Path(place.address, path).unlink()
    return path


def archived(directory: Path, place: Somewhere) -> tuple[Place, DataSourceReader, str]:
    put(directory, [copy(seq) for seq in range(5)], dead=[1, 3])
    put(directory, [copy(seq) for seq in range(5, 9)])
    there = place(directory)
    return there, ArchiveReader(there, columns.ARCHIVED), "pack-0000000001"


def told(directory: Path, place: Somewhere) -> tuple[Place, DataSourceReader, str]:
    make_lake(directory, 100, 2)
    there = place(directory)
    return there, LakeReader(there, "events", EVENT_COLUMNS), "00000001.parquet"


def rows_of(reader: DataSourceReader, partitions: Sequence[InputPartition]) -> int:
    found = (cast("Iterator[Any]", reader.read(each)) for each in partitions)
    return sum(batch.num_rows for batches in found for batch in batches)


@pytest.mark.parametrize("made", [archived, told])
def test_a_file_that_goes_after_it_was_planned_for_is_named_and_not_called_damaged(
    made: Callable[..., tuple[Place, DataSourceReader, str]], somewhere: Somewhere, tmp_path: Path
) -> None:
    place, reader, name = made(tmp_path, somewhere)
    planned = reader.partitions()
    path = removed(place, name)
    with pytest.raises(Gone, match=rf"gone; {path} in .* no more: it was compacted.*read again"):
        rows_of(reader, planned)


def test_an_archive_without_the_pack_that_went_is_read_when_it_is_planned_anew(
    somewhere: Somewhere, tmp_path: Path
) -> None:
    place, reader, name = archived(tmp_path, somewhere)
    removed(place, name)
    assert rows_of(reader, reader.partitions()) == 4


def test_a_file_that_goes_while_it_is_read_is_not_called_damaged(tmp_path: Path) -> None:
    table = make_lake(tmp_path, 100, 1)
    path = "events/date=2023-11-14/hour=22/node=n1/00000000.parquet"
    files = Store(Place("memory://"))
    files.write(path, (tmp_path / path).read_bytes())

    class Opened:
        """Files of which one goes as soon as it is open."""

        where = files.where

        def open(self, path: str) -> Any:
            opened = files.open(path)
            files.delete([path])
            return opened

    with pytest.raises(Gone, match=path):
        list(batches(cast("Any", Opened()), Piece(path), table.schema))


def taken_away(directory: Path) -> None:
    """As a node does: the manifest first, then its file."""
    for path in (*directory.rglob("00000001.json"), *directory.rglob("00000001.parquet")):
        path.unlink()


@pytest.mark.parametrize("at", ["listed", "read"])
def test_what_a_node_takes_away_while_it_is_looked_for_is_not_missed(
    tmp_path: Path, at: str
) -> None:
    make_lake(tmp_path, 100, 3)
    found = visible(cast("Any", Between(tmp_path, at, taken_away)), "events")
    assert [each.path.rpartition("/")[2] for each in found] == [
        "00000000.parquet",
        "00000002.parquet",
    ]


def test_a_file_that_is_missing_for_good_is_missed(tmp_path: Path) -> None:
    make_lake(tmp_path, 100, 3)
    (lost,) = tmp_path.rglob("00000001.parquet")
    lost.unlink()
    with pytest.raises(UnknownFeed, match=r"00000001.parquet.* is missing"):
        visible(open_place(Place(str(tmp_path))), "events")


def test_a_file_that_goes_while_a_directory_is_listed_is_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"12")
    # As one that went between its name and its size: a name that leads nowhere.
    (tmp_path / "went").symlink_to(tmp_path / "nowhere")
    assert list(open_place(Place(str(tmp_path))).list("")) == [("there", 2, None)]


def test_marks_in_a_store_that_are_put_together_meanwhile_are_read_all_the_same(
    tmp_path: Path, somewhere: Somewhere
) -> None:
    put(tmp_path, [copy(seq) for seq in range(5)], dead=[1, 3])
    place = somewhere(tmp_path)
    (before,) = (each.dead for each in packs_of(open_place(place)))

    def together(directory: Path) -> None:
        files = open_place(place)
        if isinstance(files, Store):
            (path,) = (each.path for each in files.list("") if "_dead/" in each.path)
            files.write(path.rpartition("-")[0] + "-0000000099", files.read(path))
            files.delete([path])
        else:
            put_together(directory)

    ((*_, dead),) = packs_of(cast("Any", Between(tmp_path, "read", together, place)))
    assert dead == before != b""
