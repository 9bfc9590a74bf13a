"""Over Spark Connect a lake and an archive are read by Spark's own reader, too."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.pipeline.native_driver import OF_A_LAKE, OF_AN_ARCHIVE
from tests.pipeline.test_cluster import ROOT
from tests.pipeline.test_connect import connect
from tests.pipeline.test_connector_archive import copy, fill, put
from tests.pipeline.test_connector_read import make_lake

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_of_a_lake_and_an_archive_are_those_of_python_and_spark_reads_them(
    tmp_path: Path,
) -> None:
    # Names that Spark would take for patterns.
    lake, archive = tmp_path / "lake[1]", tmp_path / "archive {a} %41"
    for each in (lake, archive):
        each.mkdir()
    make_lake(lake, 1_000, 3)
    fill(archive)
    late = [copy(900 + n, headers={"at": str(n)}) for n in range(10)]
    put(archive, late, dead=[900])
    with connect(tmp_path / "connect") as master:
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.native_driver", master, lake, archive],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    names = [f"events {name}" for name in OF_A_LAKE]
    assert list(seen) == names + [f"archive {name}" for name in OF_AN_ARCHIVE]
    for name, found in seen.items():
        assert found["ours"] == found["theirs"] != [], name
        assert "FileScan parquet" in found["plan"], name
        assert "BatchScan" not in found["plan"], name
    assert len(seen["events everything"]["ours"]) == 1_000
    assert len(seen["archive everything"]["ours"]) == 74 + 60 + 6 + 38 + 2 + 9
    assert "GreaterThanOrEqual(seq,990)" in seen["events some"]["plan"].partition("Pushed")[2]
    assert "subquery" in seen["archive some"]["plan"]
    assert "read_lake and read_archive" in done.stderr
