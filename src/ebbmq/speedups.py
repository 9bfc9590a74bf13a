"""Functions that have a twin in C, which is taken where it could be compiled (ADR 0034).

A twin has the name of its function and does the same to the same bytes. They are few: what packs
and unpacks the numbers of one message on the way of a lease and an ack, and what takes many rows
apart for a feed. With EBBMQ_PURE set in the environment, no compiler when EbbMQ was installed, or
other sources than those that were compiled, all of it is Python.
"""

from __future__ import annotations

import os
import zlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

#: What is compiled, as `hatch_build.py` has it.
_SOURCES: Final = ("_speedups.c", "_parquet.c", "_parquet.h")
#: The functions in Python whose twins are used, by their names.
replaced: Final[dict[str, Callable[..., Any]]] = {}


def _load() -> Any:
    if os.environ.get("EBBMQ_PURE"):
        return None
    try:
        found = import_module("ebbmq._speedups")
        source = b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES)
    except (ImportError, OSError):
        return None
    # What was compiled before an update may pack what is read otherwise by now.
    return found if getattr(found, "SOURCE_CRC", None) == zlib.crc32(source) else None


_compiled: Final = _load()
#: Whether twins are used at all.
is_compiled: Final = _compiled is not None


def twin(function: F) -> F:
    """The twin of a function in Python, or that function where there is none."""
    found: F | None = getattr(_compiled, function.__name__, None)
    if found is None:
        return function
    replaced[function.__name__] = function
    return found


def offered(name: str) -> Any:
    """A function in C that has no twin; None where there is none."""
    return getattr(_compiled, name, None)
