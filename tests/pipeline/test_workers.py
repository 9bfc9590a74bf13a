"""Processes that tasks run in: what they have loaded is not looked at after every task."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from ebbmq_spark.connector import workers

workers.settle()
loaded = gc.get_freeze_count()
made = [[] for _ in range(1_000)]
workers.settle()
print(loaded > 1_000, gc.get_freeze_count() == loaded)
"""


def test_what_is_loaded_is_left_out_once_and_what_a_task_makes_is_not() -> None:
    # In a process of its own: it cannot be undone for some objects and not for others.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"True"]
