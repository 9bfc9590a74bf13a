import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import suite

ON_SPARK = {"plan", "simulation", "connector"}
#: It replays a week hour by hour, which takes minutes at any size.
LONG = {"adaptive"}


def test_bench_prints_figures_with_their_bars_as_json(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "figures.json"
    where = ["--scratch", str(tmp_path), "--out", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only=publish", "--json", *where],
        capture_output=True,
        check=True,
        timeout=120,
    )
    rows = json.loads(done.stdout)
    assert [row["unit"] for row in rows] == ["us", "us"]
    for row in rows:
        assert {"name", "value", "unit", "bar", "ok"} <= row.keys()
        assert row["value"] > 0
        assert row["multiple"] > 0
    assert rows[0]["bar"] == "<= 5"
    assert json.loads(kept.read_text())["rows"] == rows
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("question", sorted(suite.QUESTIONS.keys() - ON_SPARK - LONG))
def test_every_question_is_answered(tmp_path: Path, question: str) -> None:
    rows = suite.ask(question, quick=True, data=tmp_path, tell=lambda *_: None)
    assert rows
    assert len({row.name for row in rows}) == len(rows)
    assert not list(tmp_path.iterdir())
