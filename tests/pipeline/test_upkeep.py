"""Upkeep of an archive: packs written anew on Spark, taken by the device that owns them."""

from __future__ import annotations

import shutil
import time

import crc32c
import pytest

from ebbmq.feed.manifests import UnknownFeed
from ebbmq.holding import mapping
from ebbmq.holding.bucket import Bucket
from ebbmq.holding.contract import Copy, DeviceSpec, Key, Lack, Properties
from ebbmq.holding.objects import ObjectDevice
from ebbmq_spark.attempts import JobFailed
from ebbmq_spark.upkeep.job import Asked, upkeep
from ebbmq_spark.upkeep.packs import Place, UpkeepFailed

STORE = b"s" * 16
OTHER = b"o" * 16
DAY_MS = 86_400_000
SPEC = DeviceSpec(
    name="archive", tier="archive", durable=True, failure_domain="here", capacity_bytes=1 << 30
)


def key(seq, store=STORE):
    return Key(store, 1, seq)


def copy(seq, *, store=STORE, queue="orders", age_days=0):
    body = f"body {seq} ".encode() * 20
    at_ms = time.time_ns() // 1_000_000 - age_days * DAY_MS
    return Copy(key(seq, store), body, crc32c.crc32c(body), Properties(queue, 5, at_ms))


def device(directory, bucket=Bucket, **more):
    return ObjectDevice(
        SPEC, bucket(directory.as_uri()), time.perf_counter, **{"tidies": False, **more}
    )


def thinned(directory, store=STORE, **more):
    """Three packs of 40, of which every third message is left."""
    archive = device(directory)
    for at in range(0, 120, 40):
        archive.put_many([copy(seq, store=store, **more) for seq in range(at, at + 40)])
    archive.delete_many([key(seq, store) for seq in range(120) if seq % 3])
    return archive


def bodies(archive, store=STORE):
    kept = sorted(stored.key.seq for stored in archive.scan(store))
    found = archive.get_many([key(seq, store) for seq in kept])
    assert found == [copy(seq).payload for seq in kept]
    return kept


def applied(archive, store=STORE):
    steps = []
    while (step := archive.adopt(store)) is not None:
        steps.append(step)
    return steps


def packs(directory):
    return sorted(path.name for path in directory.rglob("pack-*.parquet"))


def run(spark, directory, **asked):
    return upkeep(spark, Place(directory.as_uri()), Asked(**asked))


KEPT = list(range(0, 120, 3))


def test_thin_packs_become_one_that_the_device_takes_before_they_go(spark, tmp_path):
    archive = thinned(tmp_path)
    told = run(spark, tmp_path)
    assert (told.packs, told.messages, told.dead) == (3, 120, 80)
    assert (told.rewritten, told.made, told.made_messages) == (3, 1, 40)
    assert told.offered == [STORE.hex()]
    assert len(packs(tmp_path)) == 3
    assert bodies(archive) == KEPT
    (step,) = applied(archive)
    assert (step.packs, step.messages, step.stale, step.refused) == (1, 40, 0, 0)
    assert len(packs(tmp_path)) == 1
    assert not list(tmp_path.rglob("_upkeep/**/*.parquet"))
    assert bodies(archive) == KEPT
    assert bodies(device(tmp_path)) == KEPT
    table = spark.read.parquet(str(tmp_path / "archive"))
    assert sorted(row.seq for row in table.select("seq").collect()) == KEPT
    again = run(spark, tmp_path)
    assert (again.made, again.offered, again.dead) == (0, [], 0)


def test_what_left_or_moved_since_is_not_taken_from_a_new_pack(spark, tmp_path):
    archive = thinned(tmp_path)
    run(spark, tmp_path)
    archive.delete_many([key(0), key(3)])
    archive.put_many([copy(6)])
    (step,) = applied(archive)
    assert (step.packs, step.messages, step.stale) == (1, 37, 3)
    kept = KEPT[2:]
    assert bodies(archive) == kept
    again = device(tmp_path)
    assert bodies(again) == kept
    # Nothing that does not count comes back when the packs that replaced it go.
    again.delete_many([key(6)])
    assert bodies(device(tmp_path)) == kept[1:]


def test_a_mapping_that_is_mostly_outdated_is_refused_and_costs_nothing(spark, tmp_path):
    archive = thinned(tmp_path)
    run(spark, tmp_path)
    archive.delete_many([key(seq) for seq in KEPT[:30]])
    before = packs(tmp_path)
    (step,) = applied(archive)
    assert (step.packs, step.refused, step.stale, step.messages) == (0, 1, 40, 0)
    assert packs(tmp_path) == before
    assert bodies(archive) == bodies(device(tmp_path)) == KEPT[30:]
    assert applied(archive) == []


def test_a_mapping_that_was_applied_changes_nothing_when_it_comes_again(spark, tmp_path):
    archive = thinned(tmp_path)
    run(spark, tmp_path)
    root = tmp_path / mapping.upkeep_root(STORE.hex())
    offered = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    applied(archive)
    before = packs(tmp_path)
    for path, data in offered.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (step,) = applied(device(tmp_path))
    assert (step.packs, step.messages, step.refused) == (0, 0, 1)
    assert packs(tmp_path) == before
    assert bodies(device(tmp_path)) == KEPT


class Dies(Bucket):
    """Everything ends at the nth change, before or after it is made."""

    at = 0
    after = False

    def _count(self, change, *args):
        Dies.at -= 1
        if Dies.at == 0 and not Dies.after:
            raise KeyboardInterrupt
        found = change(*args)
        if Dies.at == 0:
            raise KeyboardInterrupt
        return found

    def put(self, path, data):
        return self._count(super().put, path, data)

    def move(self, path, to):
        return self._count(super().move, path, to)

    def delete(self, paths):
        return self._count(super().delete, paths)


@pytest.mark.parametrize("after", [False, True])
def test_a_broker_that_dies_at_any_change_loses_nothing_and_goes_on(spark, tmp_path, after):
    thinned(tmp_path / "begin")
    run(spark, tmp_path / "begin")
    changes = 0
    while True:
        directory = tmp_path / f"{changes}"
        shutil.copytree(tmp_path / "begin", directory)
        device(directory).delete_many([key(0), key(3)])
        changes += 1
        Dies.at, Dies.after = changes, after
        dying = device(directory, Dies)
        try:
            applied(dying)
            break
        except KeyboardInterrupt:
            assert bodies(device(directory)) == KEPT[2:]
            applied(device(directory))
        assert bodies(device(directory)) == KEPT[2:]
        assert not list(directory.rglob("mapping.json"))
        assert len(packs(directory)) == 1
        shutil.rmtree(directory)
    assert changes > 5


def test_checksums_are_verified_and_exactly_what_is_damaged_is_told(spark, tmp_path):
    archive = thinned(tmp_path)
    first, _, last = sorted(tmp_path.rglob("pack-*.parquet"))
    data = bytearray(first.read_bytes())
    for seq in (9, 10, 30):  # 10 is dead, so nobody misses it
        data[data.index(copy(seq).payload) + 3] ^= 1
    first.write_bytes(data)
    last.write_bytes(last.read_bytes()[:-100] + bytes(100))
    looked = run(spark, tmp_path, verify=True, compact=False)
    assert [(each.message, each.pack.split("/")[-1]) for each in looked.damage] == [
        ("1-1e", first.name),
        ("1-9", first.name),
        (None, last.name),
    ]
    assert looked.offered == []
    told = run(spark, tmp_path)
    assert sorted(each.message or "" for each in told.damage) == ["", "1-1e", "1-9"]
    (step,) = applied(archive)
    assert step.damaged == ((1, 9), (1, 30))
    assert first.exists()
    assert archive.get_many([key(9), key(12)]) == [Lack.DAMAGED, copy(12).payload]
    assert last.exists()


def test_messages_too_old_for_the_archive_are_left_out_and_told_to_the_broker(spark, tmp_path):
    archive = device(tmp_path)
    archive.put_many([copy(seq, age_days=100 if seq < 30 else 1) for seq in range(40)])
    told = run(spark, tmp_path, keep_ms=90 * DAY_MS)
    assert (told.expired, told.made_messages) == (30, 10)
    (step,) = applied(archive)
    assert step.expired == tuple((1, seq) for seq in range(30))
    # It is the broker's to let them go: until then they stay where they are.
    assert bodies(archive) == list(range(40))
    archive.delete_many([key(seq) for seq in range(30)])
    assert len(packs(tmp_path)) == 1
    assert bodies(device(tmp_path)) == list(range(30, 40))


def test_stores_share_a_bucket_and_one_that_has_yet_to_apply_is_left_alone(spark, tmp_path):
    mine, other = thinned(tmp_path), thinned(tmp_path, OTHER)
    told = run(spark, tmp_path)
    assert (told.offered, told.made) == ([OTHER.hex(), STORE.hex()], 2)
    applied(mine)
    again = run(spark, tmp_path)
    assert (again.waiting, again.offered, again.made) == ([OTHER.hex()], [], 0)
    (step,) = applied(other, OTHER)
    assert (step.run, step.messages) == (told.run, 40)
    assert bodies(mine) == bodies(other, OTHER) == KEPT


@pytest.mark.parametrize("stage", ["reading footers", "writing packs", "offering", "done"])
def test_a_run_that_ends_at_any_stage_leaves_every_message_readable(spark, tmp_path, stage):
    thinned(tmp_path)

    def die(now, _):
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upkeep(spark, Place(tmp_path.as_uri()), Asked(), die)
    archive = device(tmp_path)
    assert len(applied(archive)) == (stage == "done")
    assert bodies(archive) == KEPT
    for left in (tmp_path / mapping.upkeep_root(STORE.hex())).glob("run=*"):
        left.rename(left.with_name("run=0000000000001-left"))
    told = run(spark, tmp_path)
    assert told.made == (stage != "done")
    applied(archive)
    assert not list(tmp_path.rglob("run=0000000000001-left/**/*.parquet"))
    assert bodies(device(tmp_path)) == KEPT


def test_an_archive_that_is_empty_needs_no_upkeep_and_one_that_is_not_there_is_refused(
    spark, tmp_path
):
    # What a broker does to a device that it opens.
    assert device(tmp_path / "cold").probe().ok
    told = run(spark, tmp_path / "cold", verify=True)
    assert (told.packs, told.damage, told.offered) == (0, [], [])
    with pytest.raises(UnknownFeed, match="no broker has written to it"):
        run(spark, tmp_path / "none", verify=True)
    assert not (tmp_path / "none").exists()


def test_dead_marks_that_are_damaged_stop_a_run(spark, tmp_path):
    thinned(tmp_path)
    (mark,) = tmp_path.rglob("dead-*")
    mark.write_bytes(mark.read_bytes()[:-1])
    with pytest.raises(UpkeepFailed, match="is damaged"):
        run(spark, tmp_path)


def test_a_task_that_fails_ends_a_run_with_a_sentence_and_changes_nothing(spark, tmp_path):
    thinned(tmp_path)
    in_its_place = tmp_path / mapping.upkeep_root(STORE.hex())

    def harm(stage, _):
        if stage == "writing packs":
            in_its_place.write_bytes(b"no directory")

    with pytest.raises(JobFailed, match=r"did not carry it through: .*putting archive") as failed:
        upkeep(spark, Place(tmp_path.as_uri()), Asked(), harm)
    assert "\n" not in failed.value.detail
    in_its_place.unlink()
    archive = device(tmp_path)
    assert applied(archive) == []
    assert bodies(archive) == KEPT
