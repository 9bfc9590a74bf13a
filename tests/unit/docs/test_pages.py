"""What the documents point at exists: files, decisions, tests."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DECISIONS = {path.name[:4]: path for path in (ROOT / "docs" / "adr").glob("*.md")}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [*PAGES, *SOURCES], ids=name_of)
def test_cited_decisions_exist(page: Path) -> None:
    for number in re.findall(r"\bADR\s+(\d{4})", page.read_text()):
        assert number in DECISIONS, number


@pytest.mark.parametrize("page", DECISIONS.values(), ids=name_of)
def test_a_decision_has_its_number_and_its_sections(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]} ")
    assert re.findall(r"^## (.+)$", text, re.M) == [
        "Status",
        "Context",
        "Decision",
        "Consequences",
        "How we would notice that it was wrong",
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_cited_tests_exist(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", page.read_text()):
        tree = ast.parse((ROOT / path).read_text())
        names = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        assert name in names, f"{path}::{name}"


def test_files_named_by_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / "src" / "ebbmq" / path).exists(), path


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "GUARANTEES.md").read_text()
    promises = re.split(r"^## ", text, flags=re.M)[1:]
    assert len(promises) >= 6
    for promise in promises:
        assert re.search(r"`tests/[\w/.]+\.py::\w+`", promise), promise.splitlines()[0]
