"""The drawings of docs/format.md agree with the code that reads and writes those bytes."""

import re
from pathlib import Path
from struct import Struct

from ebbmq.core import facts, row
from ebbmq.journal import record
from ebbmq.node import recovery

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f32": 4}
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f32": "f"}


def fields_under(heading: str) -> list[tuple[int, str, str]]:
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    return [
        (int(offset), kind, name)
        for offset, kind, name in re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \|", section, re.M)
    ]


def test_offsets_and_types_of_a_record_add_up_to_its_header() -> None:
    end = 0
    for offset, kind, _ in fields_under("Record"):
        assert offset == end
        end += SIZES[kind]
    assert end == record.HEADER_BYTES


def test_a_packed_record_has_its_fields_where_they_are_drawn() -> None:
    drawn = {name: (offset, kind) for offset, kind, name in fields_under("Record")}
    header = record.pack(record.seed(bytes(16)), 64, (2, 3, 4, 5, 6), b"body")
    read = {
        name: Struct("<" + CODES[kind]).unpack_from(header, offset)[0]
        for name, (offset, kind) in drawn.items()
    }
    assert header[:2] == bytes.fromhex("EB B0")
    assert read["version"] == record.VERSION
    assert (read["kind"], read["payload_bytes"], read["pid"]) == (2, 4, 3)
    assert (read["count"], read["first"], read["synced"]) == (4, 5, 6)


def test_the_row_is_drawn_as_it_is_packed() -> None:
    drawn = [(name, offset, SIZES[kind]) for offset, kind, name in fields_under("Row")]
    fields = row.DTYPE.fields
    assert fields is not None
    assert drawn == [(name, of[1], of[0].itemsize) for name, of in fields.items()]


def test_every_fact_is_listed_under_its_number() -> None:
    section = PAGE.split("## Facts")[1].split("\n## ")[0]
    listed = {
        name: int(kind) for kind, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \|", section, re.M)
    }
    assert listed == {name: getattr(facts, name) for name in listed}
    assert len(set(listed.values())) == len(listed)
    assert {"META", "PUBLISH", "ACK", "RULES"} <= listed.keys()


def test_a_removal_is_drawn_as_it_is_packed() -> None:
    text = PAGE.split("A removal: ")[1].split(").\n")[0]
    kinds = re.findall(r"\b(u8|u16|u32|u64|f32) ", text)
    assert "<" + "".join(CODES[kind] for kind in kinds) == facts.REMOVAL.format


def test_the_version_on_the_page_is_the_one_written() -> None:
    assert f"Format version: **{record.VERSION}**" in PAGE


def test_every_kind_of_blob_is_listed_under_its_number() -> None:
    section = PAGE.split("| blob kind |")[1].split("\n\n")[0]
    listed = {name: int(kind) for kind, name in re.findall(r"^\| (\d+) \| (\w+) \|", section, re.M)}
    assert listed == {
        "page": recovery.PAGE,
        "dedup": recovery.DEDUP,
        "histories": recovery.HISTORIES,
        "copies": recovery.COPIES,
        "names": recovery.NAMES,
        "reviewed": recovery.REVIEWED,
    }
