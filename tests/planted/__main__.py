"""Plants every bug in a copy of the tree, one at a time, and runs the suite that must catch it.

`python -m tests.planted [WORDS ..]` plants only those with any of these in what is wrong with them.
The exit status is 0 if all are caught.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.planted import ROOT, edits

if TYPE_CHECKING:
    from tests.planted import Edit

TIMEOUT_S: Final = 300
FAILED: Final = 1
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", "data", "dist"
)


def main(*words: str) -> int:
    """Plant those bugs; how many were missed."""
    chosen = [edit for edit in edits() if any(word in edit.bug for word in words or ("",))]
    missed: list[Edit] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as temporary:
        tree = _copy(Path(temporary) / "tree")
        for number, edit in enumerate(chosen, 1):
            began = time.monotonic()
            print(f"[{number}/{len(chosen)}] {edit.bug} ..", end=" ", flush=True)  # noqa: T201
            verdict = _try(tree, edit)
            print(f"{verdict} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
            if verdict != "caught":
                missed.append(edit)
    for edit in missed:
        print(f"missed: {edit.bug} ({edit.file}; {edit.suite})")  # noqa: T201
    return len(missed)


def _copy(tree: Path) -> Path:
    shutil.copytree(ROOT, tree, ignore=_LEFT_OUT)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    # By their hash: two edits of one size within a second would pass for the same file.
    command = (sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash")
    subprocess.run((*command, "src"), cwd=tree, check=True)
    return tree


def _try(tree: Path, edit: Edit) -> str:
    path = tree / edit.file
    right = path.read_text()
    path.write_text(edit.planted(right))
    try:
        status = _run(tree, edit.suite)
    finally:
        path.write_text(right)
    if status == 0:
        return "MISSED"
    return "caught" if status == FAILED else f"MISSED: pytest ended with {status}"


def _run(tree: Path, suite: str) -> int:
    """The exit status of pytest; 1 also if it hangs."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    process = subprocess.Popen(
        (*command, *shlex.split(suite)),
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return FAILED
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
