import json
import subprocess
import sys
from pathlib import Path


def test_bench_prints_figures_with_their_bars_as_json(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "figures.json"
    where = ["--scratch", str(tmp_path), "--out", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "ebbmq.bench", "--quick", "--only=publish", "--json", *where],
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
