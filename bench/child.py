"""The process that answers one question: `python -m bench.child QUESTION DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.suite import answer


def say(message: dict[str, Any]) -> None:
    """One JSON object per line to the asking process."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    question, directory, *flags = sys.argv[1:]
    answer(question, Path(directory), quick="--quick" in flags, say=say)
