"""Which Python Spark starts for tasks: one without this package can read and write no queue.

A plain session starts `python3`, whatever that is, unless PYSPARK_PYTHON names another one. On this
machine that can be looked at, without a job; what executors elsewhere have is not known.
"""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HAS_IT: Final = "import importlib.util as u, sys; sys.exit(u.find_spec('ebbmq_spark') is None)"
_TIMEOUT_S: Final = 20
_logger = logging.getLogger("ebbmq.spark")


def check(spark: SparkSession) -> None:
    """Warn where tasks on this machine would not find the package; a log says it once."""
    context: Any = spark.sparkContext
    # Files that are sent along may have the package.
    if context.master.startswith("local") and not context._python_includes:  # noqa: SLF001  # it has no public name
        _warn(context.pythonExec)


@functools.cache
def _warn(python: str) -> None:
    found = shutil.which(python) or python
    # By its name: a Python of an environment is often a link to one that is outside.
    if found != sys.executable and not _has_it(found):
        _logger.warning(
            "Spark starts %s for tasks, where ebbmq is not installed: set PYSPARK_PYTHON=%s before "
            "the session starts",
            found,
            sys.executable,
        )


def _has_it(python: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  # it is what Spark starts, too
            [python, "-c", _HAS_IT], check=False, capture_output=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
