"""A checkpoint is there as a whole or not at all, and an older one is there beside it."""

from __future__ import annotations

import random

import pytest

from ebbmq.errors import DamagedRecord, Overloaded, StorageFailed
from ebbmq.journal.checkpoint import Checkpoints, Loaded
from ebbmq.journal.disk import MemoryDisk

PAGE, DEDUP = 1, 2


def written(disk: MemoryDisk, generation: int, pages: dict[int, bytes]) -> None:
    checkpoints = Checkpoints(disk)
    checkpoints.begin(generation)
    for number, payload in pages.items():
        checkpoints.put(PAGE, 3, number, 1_000 + generation, payload)
    checkpoints.commit(b"meta %d" % generation, 100 * generation)


def contents(loaded: Loaded | None) -> dict[int, bytes]:
    assert loaded is not None
    return {blob.number: loaded.read(blob) for blob in loaded.blobs}


def test_an_empty_disk_has_no_checkpoint() -> None:
    assert Checkpoints(MemoryDisk()).load() is None


def test_what_was_committed_is_loaded() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: b"zero", 7: bytes(262_144)})
    loaded = Checkpoints(disk).load()
    assert loaded is not None
    assert (loaded.generation, loaded.start_position, loaded.meta) == (1, 100, b"meta 1")
    assert [(b.kind, b.pid, b.number, b.position) for b in loaded.blobs] == [
        (PAGE, 3, 0, 1_001),
        (PAGE, 3, 7, 1_001),
    ]
    assert contents(loaded) == {0: b"zero", 7: bytes(262_144)}
    loaded.close()


def test_a_generation_that_was_not_committed_does_not_exist() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: b"one"})
    checkpoints = Checkpoints(disk)
    checkpoints.begin(2)
    checkpoints.put(PAGE, 3, 0, 5, b"two")
    disk.kill()
    assert contents(Checkpoints(disk).load()) == {0: b"one"}
    written(disk, 2, {0: b"two again"})
    assert contents(Checkpoints(disk).load()) == {0: b"two again"}


def test_the_leavings_of_an_interrupted_commit_are_no_obstacle() -> None:
    disk = MemoryDisk()
    disk.create("checkpoint-00000001.manifest.new", 10)
    written(disk, 1, {0: b"one"})
    assert contents(Checkpoints(disk).load()) == {0: b"one"}
    assert all(not name.endswith(".new") for name in disk.names())


@pytest.mark.parametrize("seed", range(10))
def test_a_committed_generation_survives_a_power_cut(seed: int) -> None:
    disk = MemoryDisk()
    written(disk, 1, {number: bytes([number]) * 5_000 for number in range(9)})
    disk.crash(random.Random(seed))
    assert contents(Checkpoints(disk).load()) == {n: bytes([n]) * 5_000 for n in range(9)}


@pytest.mark.parametrize("syncs", range(2))
def test_a_failed_sync_leaves_the_former_generation(syncs: int) -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: b"one"})
    disk.fail_sync_after(syncs)
    with pytest.raises(StorageFailed, match="Input/output"):
        written(disk, 2, {0: b"two"})
    assert contents(Checkpoints(disk).load()) == {0: b"one"}


def test_a_full_disk_is_named_and_costs_nothing() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: b"one"})
    disk.capacity = 1_000
    checkpoints = Checkpoints(disk)
    checkpoints.begin(2)
    with pytest.raises(Overloaded, match="disk_full"):
        checkpoints.put(PAGE, 3, 0, 5, bytes(2_000))
    assert contents(Checkpoints(disk).load()) == {0: b"one"}
    disk.capacity = 1 << 20
    checkpoints.begin(2)
    checkpoints.put(PAGE, 3, 0, 5, bytes(2_000))
    checkpoints.commit(b"", 0)
    assert contents(Checkpoints(disk).load()) == {0: bytes(2_000)}


def test_unchanged_blobs_are_named_again_and_not_written_again() -> None:
    disk = MemoryDisk()
    written(disk, 1, {number: bytes([number]) * 1_000 for number in range(10)})
    checkpoints = Checkpoints(disk)
    checkpoints.begin(2)
    kept = [checkpoints.keep(PAGE, 3, number) for number in range(10)]
    assert all(kept)
    assert not checkpoints.keep(PAGE, 3, 10)
    assert not checkpoints.keep(DEDUP, 3, 0)
    checkpoints.put(PAGE, 3, 10, 2_000, b"new")
    checkpoints.commit(b"", 200)
    loaded = Checkpoints(disk).load()
    assert loaded is not None
    assert contents(loaded) == {**{n: bytes([n]) * 1_000 for n in range(10)}, 10: b"new"}
    assert disk.open("checkpoint-00000002.pages").size() == 3


def test_two_generations_are_kept_and_other_files_go() -> None:
    disk = MemoryDisk()
    disk.create("young-0000000001.seg", 10)
    for generation in range(1, 6):
        written(disk, generation, {0: b"%d" % generation})
    assert disk.names() == [
        "checkpoint-00000004.manifest",
        "checkpoint-00000004.pages",
        "checkpoint-00000005.manifest",
        "checkpoint-00000005.pages",
        "young-0000000001.seg",
    ]
    newest = Checkpoints(disk).load()
    assert newest is not None
    assert contents(Checkpoints(disk).load(before=newest.generation)) == {0: b"4"}
    assert Checkpoints(disk).load(before=4) is None


def test_a_file_of_which_little_is_named_is_not_named_again() -> None:
    disk = MemoryDisk()
    written(disk, 1, {number: bytes(1_000) for number in range(10)})
    checkpoints = Checkpoints(disk)
    for generation in range(2, 12):
        checkpoints.begin(generation)
        for number in range(10):
            if number < generation - 1 or not checkpoints.keep(PAGE, 3, number):
                checkpoints.put(PAGE, 3, number, generation, bytes([generation]) * 1_000)
        checkpoints.commit(b"", 0)
        total = sum(disk.open(name).size() for name in disk.names() if name.endswith(".pages"))
        assert total <= 3 * 2 * 10_000
    assert len(contents(Checkpoints(disk).load())) == 10
    assert "checkpoint-00000001.pages" not in disk.names()


def test_the_number_of_files_is_bounded() -> None:
    disk = MemoryDisk()
    checkpoints = Checkpoints(disk)
    for generation in range(1, 101):
        checkpoints.begin(generation)
        for number in range(generation - 1):
            if not checkpoints.keep(PAGE, 3, number):
                checkpoints.put(PAGE, 3, number, 0, bytes(100))
        checkpoints.put(PAGE, 3, generation - 1, 0, bytes(100))
        checkpoints.commit(b"", 0)
    assert len(disk.names()) <= 2 * 33 + 2
    assert len(contents(Checkpoints(disk).load())) == 100


def test_a_damaged_blob_is_named() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: bytes(1_000), 5: bytes(1_000)})
    disk.flip("checkpoint-00000001.pages", 1_500, 3)
    loaded = Checkpoints(disk).load()
    assert loaded is not None
    assert loaded.read(loaded.blobs[0]) == bytes(1_000)
    with pytest.raises(DamagedRecord, match=r"blob 1/3/5 in checkpoint-00000001\.pages"):
        loaded.read(loaded.blobs[1])


def test_a_missing_or_cut_file_is_damage_too() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: bytes(1_000)})
    loaded = Checkpoints(disk).load()
    assert loaded is not None
    disk.open("checkpoint-00000001.pages").truncate(10)
    with pytest.raises(DamagedRecord):
        loaded.read(loaded.blobs[0])
    disk.delete("checkpoint-00000001.pages")
    loaded = Checkpoints(disk).load()
    assert loaded is not None
    with pytest.raises(DamagedRecord, match="No such file"):
        loaded.read(loaded.blobs[0])


def test_any_flipped_bit_of_a_manifest_means_the_former_generation() -> None:
    disk = MemoryDisk()
    written(disk, 1, {0: b"one"})
    written(disk, 2, {0: b"two"})
    name = "checkpoint-00000002.manifest"
    for offset in range(disk.open(name).size()):
        disk.flip(name, offset, offset % 8)
        assert contents(Checkpoints(disk).load()) == {0: b"one"}
        disk.flip(name, offset, offset % 8)
    disk.open(name).truncate(5)
    assert contents(Checkpoints(disk).load()) == {0: b"one"}
    written(disk, 3, {0: b"three"})
    assert contents(Checkpoints(disk).load(before=3)) == {0: b"one"}


def test_a_later_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    with monkeypatch.context() as patch:
        patch.setattr("ebbmq.journal.checkpoint._VERSION", 2)
        written(disk, 1, {0: b"one"})
    with pytest.raises(StorageFailed, match="format version 2"):
        Checkpoints(disk).load()
