"""What is read back from a log is what was appended to it: all that was synced, nothing else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq.checksum import crc32c
from ebbmq.journal.disk import MemoryDisk
from ebbmq.journal.log import Log
from ebbmq.journal.mend import unflipped
from ebbmq.journal.record import HEADER_BYTES
from ebbmq.journal.scan import Damaged, Found, Torn, scan
from ebbmq.journal.sectors import SECTOR_BYTES
from ebbmq.journal.segment import FIRST_POSITION, OFFSET_MASK, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

UUID = bytes(range(16))
SEGMENT_BYTES = 2_048
#: Small enough for records to lie across the windows that a scan reads.
WINDOW_BYTES = 600


class Appended(NamedTuple):
    end: int
    about: tuple[int, int, int, int]
    payload: bytes

    @property
    def position(self) -> int:
        return self.end - (HEADER_BYTES + len(self.payload) + 7) // 8 * 8


Action = tuple[str, int]

actions = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 700)),
    st.tuples(st.just("append"), st.sampled_from([0, 1, 7, 8, 2_000, 2_500])),
    st.tuples(st.sampled_from(["write", "commit", "kill"]), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 1 << 30)),
)


class Story:
    """A log, what was appended to it, and how much of that must be there after the next blow."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.appended: list[Appended] = []
        self.log = self.open(FIRST_POSITION)

    def open(self, end: int) -> Log:
        return Log.open(self.disk, UUID, end, segment_bytes=SEGMENT_BYTES, threaded=False)

    def take(self, action: Action) -> None:
        verb, number = action
        match verb:
            case "append":
                self.append(number)
            case "write":
                self.log.write()
            case "commit":
                self.log.commit()
            case "kill":
                self.disk.kill()
                self.recover(self.log.written_position)
            case _:
                self.disk.crash(random.Random(number))
                self.recover(self.log.synced_position)

    def append(self, size: int) -> None:
        number = len(self.appended)
        payload = random.Random(number).randbytes(size)
        about = (1 + number % 255, number, number + 1, number << 20)
        segment, offset = self.log.place(size)
        end = self.log.append(*about, [payload[:3], payload[3:]])
        self.appended.append(Appended(end, about, payload))
        assert self.appended[-1].position + HEADER_BYTES == segment << 32 | offset

    def recover(self, safe: int) -> None:
        found, end = self.read()
        must = sum(appended.end <= safe for appended in self.appended)
        assert found == self.appended[: len(found)]
        assert len(found) >= must
        self.appended = found
        self.log = self.open(end)
        assert self.log.position >= end

    def read(self) -> tuple[list[Appended], int]:
        found: list[Appended] = []
        end = FIRST_POSITION
        for item in scanned(self.disk):
            assert type(item) is not Damaged
            end = item.end
            if type(item) is Found:
                found.append(as_appended(item))
        return found, end


def scanned(disk: MemoryDisk) -> list[Found | Damaged | Torn]:
    items = list(scan(disk, UUID))
    with (
        patch("ebbmq.journal.walk.WINDOW_BYTES_MIN", WINDOW_BYTES // 4),
        patch("ebbmq.journal.walk.WINDOW_BYTES_MAX", WINDOW_BYTES),
    ):
        assert list(scan(disk, UUID)) == items
    return items


def as_appended(item: Found) -> Appended:
    header = item.header
    about = (header.kind, header.pid, header.count, header.first)
    return Appended(item.end, about, bytes(item.payload))


def written_by(taken: Sequence[Action]) -> Story:
    story = Story()
    for action in taken:
        story.take(action)
    return story


@given(st.lists(actions, max_size=40))
@settings(max_examples=300, deadline=None)
def test_what_is_found_is_a_prefix_with_everything_that_was_safe(taken: list[Action]) -> None:
    story = written_by(taken)
    for appended in story.appended:
        position = appended.position + HEADER_BYTES
        segment, offset = position >> 32, position & OFFSET_MASK
        assert story.log.read(segment, offset, len(appended.payload)) == appended.payload
    story.log.close()
    assert story.read()[0] == story.appended


@given(st.lists(actions, min_size=3, max_size=30), st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_costs_the_record_it_is_in_and_nothing_else(
    taken: list[Action], data: st.DataObject
) -> None:
    story = written_by(taken)
    story.log.close()
    hit = flip_any_bit(story, data)
    items = scanned(story.disk)
    found = [as_appended(item) for item in items if type(item) is Found]
    broken = [item for item in items if type(item) is not Found]
    lost = [appended for appended in story.appended if appended not in found]
    assert found == [appended for appended in story.appended if appended not in lost]
    assert len(broken) <= 1
    assert len(lost) <= 1
    if lost:
        assert lost[0].position <= hit < lost[0].end
        assert [type(item) for item in broken] == [Damaged]
        assert broken[0].position == lost[0].position


@given(st.lists(actions, min_size=3, max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_before_a_proof_of_sync_is_damage_also_after_a_kill(
    taken: list[Action], data: st.DataObject
) -> None:
    story = written_by([*taken, ("commit", 0), ("append", 10), ("write", 0)])
    proven = story.log.synced_position
    story.disk.kill()
    hit = flip_any_bit(story, data)
    items = scanned(story.disk)
    found = [as_appended(item) for item in items if type(item) is Found]
    lost = [a for a in story.appended if a.end <= proven and a not in found]
    assert len(lost) <= 1
    if lost:
        assert lost[0].position <= hit < lost[0].end
    assert all(type(item) is not Torn or item.position >= proven for item in items)


@given(st.lists(actions, min_size=3, max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_a_sector_that_cannot_be_read_costs_the_records_it_is_in_and_nothing_else(
    taken: list[Action], data: st.DataObject
) -> None:
    story = written_by(taken)
    story.log.close()
    name = data.draw(st.sampled_from(story.disk.names()), label="name")
    sector = data.draw(st.integers(0, SEGMENT_BYTES // SECTOR_BYTES - 1), label="sector")
    story.disk.spoil(name, sector * SECTOR_BYTES, SECTOR_BYTES)
    start = int(name[6:16]) << 32 | sector * SECTOR_BYTES
    items = scanned(story.disk)
    found = [as_appended(item) for item in items if type(item) is Found]
    lost = [a for a in story.appended if a.position < start + SECTOR_BYTES and a.end > start]
    assert found == [appended for appended in story.appended if appended not in lost]
    # The last LINK, which proves what was synced, may be what cannot be read.
    damaged = [item for item in items if type(item) is not Found]
    assert bool(damaged) >= bool(lost)
    assert all(item.position < start + SECTOR_BYTES for item in damaged)
    assert all(type(item) is Torn or item.end > start for item in damaged)


def flip_any_bit(story: Story, data: st.DataObject) -> int:
    """Returns the position of the flipped bit."""
    names = [name for name in story.disk.names() if story.disk.open(name).size()]
    name = data.draw(st.sampled_from(names), label="name")
    number = int(name[6:16])
    assert name == name_of(number)
    offset = data.draw(st.integers(0, story.disk.open(name).size() - 1), label="offset")
    story.disk.flip(name, offset, data.draw(st.integers(0, 7), label="bit"))
    return number << 32 | offset


@given(st.lists(actions, max_size=30), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_a_second_crash_during_recovery_changes_nothing(
    taken: list[Action], first: int, second: int
) -> None:
    story = written_by(taken)
    story.disk.crash(random.Random(first))
    found, end = story.read()
    story.open(end)
    story.disk.crash(random.Random(second))
    again, end_again = story.read()
    assert again == found
    story.open(end_again).close()
    assert story.read()[0] == found


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_flipped_bit_is_put_right_and_two_are_not(data: bytes, chance: st.DataObject) -> None:
    crc = crc32c(data)
    number = int.from_bytes(data, "little")
    bits = chance.draw(st.sets(st.integers(0, 8 * len(data) - 1), min_size=1, max_size=2))
    for bit in bits:
        number ^= 1 << bit
    found = unflipped(number.to_bytes(len(data), "little"), crc)
    assert found == (data if len(bits) == 1 else None)
    own = crc ^ 1 << chance.draw(st.integers(0, 31))
    assert unflipped(data, own) == data
