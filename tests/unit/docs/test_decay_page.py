"""The tables of docs/decay.md are what the formula gives."""

import re
from pathlib import Path

import pytest

from ebbmq.model import QueueSpec
from ebbmq.policy.importance import current_importance, stale_age_ms

PAGE = (Path(__file__).parents[3] / "docs" / "decay.md").read_text()
MINUTE_MS = 60_000
TABLES = [
    ("`QueueSpec.fresh_first`", QueueSpec.fresh_first("q")),
    ("`QueueSpec.deadline(ttl_ms=600_000)`", QueueSpec.deadline("q", ttl_ms=600_000)),
    ("`QueueSpec(decay_rate=0.5)`", QueueSpec("q", decay_rate=0.5)),
]


def table_under(heading: str) -> list[list[str]]:
    section = PAGE.split(f"### {heading}")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def minutes(cell: str) -> float:
    found = re.fullmatch(r"([\d.]+) min", cell)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("heading", "spec"), TABLES)
def test_the_tables_of_the_page_are_what_the_formula_gives(heading: str, spec: QueueSpec) -> None:
    header, _, *body = table_under(heading)
    span_ms = spec.default_ttl_ms or spec.decay_unit_ms
    assert len(body) == 3
    for cells in body:
        importance = int(cells[0])
        for age, shown in zip(header[1:-1], cells[1:-1], strict=True):
            age_ms = round(minutes(age) * MINUTE_MS)
            value = current_importance(importance, spec.decay_rate, age_ms, span_ms)
            assert float(shown) == pytest.approx(value), (importance, age)
        stale_ms = stale_age_ms(importance, spec.decay_rate, span_ms, spec.stale_threshold)
        assert stale_ms == pytest.approx(minutes(cells[-1]) * MINUTE_MS, abs=1)
