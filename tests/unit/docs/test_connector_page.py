"""The page about the connector names every option."""

from __future__ import annotations

from pathlib import Path

from ebbmq_spark.connector.options import OPTIONS

PAGE = Path(__file__).parents[3] / "docs" / "connector.md"


def test_every_option_is_on_the_page_as_it_is_meant() -> None:
    rows = PAGE.read_text().splitlines()
    for option in OPTIONS:
        assert f"| `{option.name}` | {option.used_by} | {option.meaning} |" in rows
