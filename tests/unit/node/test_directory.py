"""What store.json holds: one flipped bit never makes a store another one."""

import base64

import msgspec
import pytest

from ebbmq.checksum import crc32c
from ebbmq.node.directory import FORMAT_VERSION, Identity, decode, encode

UUID = bytes(range(100, 116))
IDENTITY = Identity(UUID, FORMAT_VERSION)


def test_an_identity_is_read_back_with_its_checksum() -> None:
    written = msgspec.json.decode(encode(IDENTITY))
    assert written["crc"] == crc32c(UUID + FORMAT_VERSION.to_bytes(4, "little"))
    read = decode(encode(IDENTITY))
    assert (read.uuid, read.format_version) == (UUID, FORMAT_VERSION)


def test_an_identity_without_a_checksum_is_read() -> None:
    assert decode(msgspec.json.encode(IDENTITY)) == IDENTITY
    assert b"crc" not in msgspec.json.encode(IDENTITY)


@pytest.mark.parametrize("has_log", [False, True])
def test_a_flipped_bit_is_refused_or_changes_nothing(has_log: bool) -> None:
    data = encode(msgspec.structs.replace(IDENTITY, has_log=has_log))
    refused = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        try:
            read = decode(bytes(flipped))
        except msgspec.DecodeError:
            refused += 1
        else:
            assert (read.uuid, read.format_version) == (UUID, FORMAT_VERSION)
            assert read.has_log is has_log
    assert refused > 6 * len(data)


@pytest.mark.parametrize("uuid", [b"", UUID[:15], UUID + b"x"])
def test_a_uuid_of_another_length_is_refused(uuid: bytes) -> None:
    held = {"uuid": base64.b64encode(uuid).decode(), "format_version": FORMAT_VERSION}
    with pytest.raises(msgspec.DecodeError, match="length"):
        decode(msgspec.json.encode(held))
