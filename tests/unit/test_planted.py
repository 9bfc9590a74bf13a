"""The bugs of `make planted` fit the tree as it is: they themselves are planted by hand."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.planted import ROOT, Edit, edits

#: Upkeep of archives by the pipeline.
WITHOUT = {9}


@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.bug)
def test_a_bug_can_be_planted_and_its_suite_exists(edit: Edit) -> None:
    text = (ROOT / edit.file).read_text()
    assert edit.planted(text) != text
    paths = [word for word in shlex.split(edit.suite) if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    text = (ROOT / "docs" / "GUARANTEES.md").read_text()
    promises = {int(number) for number in re.findall(r"^## (\d+)\.", text, re.MULTILINE)}
    assert promises - WITHOUT <= {edit.promise for edit in edits()}


def test_no_bug_is_there_twice() -> None:
    bugs = [edit.bug for edit in edits()]
    assert len(set(bugs)) == len(bugs) >= 20
