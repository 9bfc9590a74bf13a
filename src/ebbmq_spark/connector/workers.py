"""The Python processes that Spark runs tasks in, one after the other."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Leave what is loaded by now out of later collections, once in each process.

    Spark collects after every task, and looks at every module for it: 40 ms, a quarter of what it
    takes to read a file of a lake.
    """
    gc.freeze()
