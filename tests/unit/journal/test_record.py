"""A header is believed only in its own store, at its own position, in a version we know."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from ebbmq.errors import StorageFailed
from ebbmq.journal import record

UUID = bytes(range(16))
STORE = record.seed(UUID)
POSITION = 7 << 32 | 64
ABOUT = (3, 9, 100, 12_345_678_901, 6 << 32)
PAYLOAD = b"some payload"


def packed() -> bytes:
    return record.pack(STORE, POSITION, ABOUT, PAYLOAD)


def test_the_bytes_of_a_header_are_as_drawn() -> None:
    header = packed()
    assert len(header) == record.HEADER_BYTES == 40
    fields = [(0, 2), (2, 1), (3, 1), (4, 4), (8, 4), (12, 4), (16, 8), (24, 8), (32, 4), (36, 4)]
    values = [int.from_bytes(header[at : at + size], "little") for at, size in fields]
    seeded = UUID + POSITION.to_bytes(8, "little") + header[:36]
    assert values == [
        0xB0EB, 1, 3, len(PAYLOAD), 9, 100, 12_345_678_901, 6 << 32, crc32c(PAYLOAD), crc32c(seeded)
    ]  # fmt: skip


def test_a_header_is_read_back_from_anywhere_in_the_data() -> None:
    header = record.parse(STORE, POSITION, b"12345678" + packed() + PAYLOAD, 8)
    end = POSITION + 40 + 16
    assert header == record.Header(
        POSITION, 3, len(PAYLOAD), 9, 100, 12_345_678_901, 6 << 32, crc32c(PAYLOAD), end
    )


def test_a_header_of_another_store_or_place_is_none() -> None:
    assert record.parse(record.seed(bytes(16)), POSITION, packed(), 0) is None
    assert record.parse(STORE, POSITION + 8, packed(), 0) is None
    assert record.parse(STORE, POSITION + (1 << 32), packed(), 0) is None


def test_no_flipped_bit_goes_unnoticed() -> None:
    for bit in range(8 * record.HEADER_BYTES):
        data = bytearray(packed())
        data[bit // 8] ^= 1 << bit % 8
        assert record.parse(STORE, POSITION, bytes(data), 0) is None


def test_too_few_bytes_are_no_header() -> None:
    assert record.parse(STORE, POSITION, packed()[:-1], 0) is None
    assert record.parse(STORE, POSITION, b"", 0) is None


def test_zeros_are_no_header() -> None:
    assert record.parse(STORE, POSITION, bytes(40), 0) is None


def test_a_later_version_is_refused_by_name() -> None:
    data = bytearray(packed())
    data[2] = record.VERSION + 1
    seeded = UUID + POSITION.to_bytes(8, "little") + data[:36]
    data[36:] = crc32c(bytes(seeded)).to_bytes(4, "little")
    with pytest.raises(StorageFailed, match="version 2") as raised:
        record.parse(STORE, POSITION, bytes(data), 0)
    assert "EbbMQ that wrote it" in raised.value.action


@pytest.mark.parametrize(("payload", "expected"), [(0, 40), (1, 48), (8, 48), (9, 56), (16, 56)])
def test_records_are_padded_to_eight_bytes(payload: int, expected: int) -> None:
    assert record.record_bytes(payload) == expected
    assert len(record.PADDING[payload % 8]) == expected - 40 - payload
