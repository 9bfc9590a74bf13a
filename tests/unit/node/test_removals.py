"""The removals log where it is damaged: what is whole is told, what is missing appended again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ebbmq.core.facts import REMOVAL_DTYPE
from ebbmq.node.removal_blocks import find_blocks, pack, unreadable_bytes
from ebbmq.node.removals import Removals

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 24 + REMOVAL_DTYPE.itemsize


def record(seq: int) -> bytes:
    made = np.zeros(1, dtype=REMOVAL_DTYPE)
    made["pid"], made["seq"] = 1, seq
    return made.tobytes()


def filled(directory: Path, count: int, bytes_max: int = 1 << 20) -> Path:
    """A log of so many removals, one to a block, message n at position 10 * n."""
    log = Removals(directory, bytes_max)
    for seq in range(1, count + 1):
        log.note(record(seq), 10 * seq)
        log.flush(10 * seq)
    log.close()
    return directory / "removals.log"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def told(log: Removals) -> Counter[int]:
    return Counter(log.reading().find([1])["seq"].tolist())


@pytest.mark.parametrize("at", [0, 5, 17, 40], ids=["magic", "count", "crc", "record"])
def test_damage_costs_the_block_it_is_in_and_no_other(tmp_path: Path, at: int) -> None:
    path = filled(tmp_path, 5)
    flip(path, 2 * BLOCK_BYTES + at)
    for _ in range(2):
        log = Removals(tmp_path)
        assert told(log) == Counter([1, 2, 4, 5])
        log.close()
    assert unreadable_bytes(path.read_bytes()) == (BLOCK_BYTES, 0)


@pytest.mark.parametrize("damaged", range(1, 6))
@pytest.mark.parametrize("bytes_max", [1 << 20, 4 * BLOCK_BYTES], ids=["one file", "two files"])
def test_what_the_journal_still_has_is_appended_again_once(
    tmp_path: Path, damaged: int, bytes_max: int
) -> None:
    path = filled(tmp_path, 6, bytes_max)
    first = next(find_blocks(path.read_bytes())).position // 10
    if damaged >= first:
        flip(path, (damaged - first) * BLOCK_BYTES + 40)
    log = Removals(tmp_path, bytes_max)
    for seq in range(3, 8):
        log.note(record(seq), 10 * seq)
    lost = {damaged} if first <= damaged < 3 else set()
    assert told(log) == Counter(set(range(1, 8)) - lost)
    log.close()


def test_an_end_that_was_cut_short_is_cut_off(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    log = Removals(tmp_path)
    assert told(log) == Counter([1, 2])
    log.note(record(3), 30)
    log.flush(30)
    log.close()
    assert unreadable_bytes(path.read_bytes()) == (0, 0)


def test_a_block_is_found_wherever_it_begins_behind_damage() -> None:
    block = b"".join(pack(record(7), 70))
    for gap in (1, 3, 24, 65_533, 65_534, 65_536, 200_000):
        (found,) = find_blocks(bytes(gap) + block)
        assert (found.start, found.position) == (gap, 70)
        assert unreadable_bytes(bytes(gap) + block + b"x") == (gap, 1)
