from pathlib import Path

import pytest

from bench import suite


@pytest.mark.parametrize("question", ["connector", "plan", "simulation"])
def test_every_question_about_spark_is_answered(tmp_path: Path, question: str) -> None:
    rows = suite.ask(question, quick=True, data=tmp_path, tell=lambda *_: None)
    assert rows
    assert len({row.name for row in rows}) == len(rows)
    assert not list(tmp_path.iterdir())
