"""Functions that have a twin in C, which is taken where it could be compiled (ADR 0034).

A twin has the name of its function and does the same to the same bytes. They are few: what packs
and unpacks the numbers of one message on the way of a lease and an ack, and what takes many rows
apart for a feed. With EBBMQ_PURE set in the environment, no compiler when EbbMQ was installed, or
another `_speedups.c` than the one that was compiled, all of it is Python.
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

_SOURCE: Final = Path(__file__).with_name("_speedups.c")
#: The functions in Python whose twins are used, by their names.
replaced: Final[dict[str, Callable[..., Any]]] = {}


def _load() -> Any:
    if os.environ.get("EBBMQ_PURE"):
        return None
    try:
        found = import_module("ebbmq._speedups")
        source = _SOURCE.read_bytes()
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
