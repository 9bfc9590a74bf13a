"""Nothing that is read from a file, a lake or the network can run code."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
#: Modules that build any object a file asks for.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_module_unpickles() -> None:
    paths = sorted(SOURCES.rglob("*.py"))
    assert len(paths) > 100
    assert {path.name: imported(path) & UNSAFE for path in paths if imported(path) & UNSAFE} == {}
    assert [path.name for path in paths if "allow_pickle=True" in path.read_text()] == []
