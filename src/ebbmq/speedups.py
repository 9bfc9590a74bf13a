"""Functions that have a twin in C, which is taken where it could be compiled (ADR 0034).

A twin has the name of its function and does the same to the same bytes. They are few: what packs
and unpacks the numbers of one message on the way of a lease and an ack. With EBBMQ_PURE set in the
environment, or no compiler when EbbMQ was installed, all of it is Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

#: The functions in Python whose twins are used, by their names.
replaced: Final[dict[str, Callable[..., Any]]] = {}


def _load() -> Any:
    if os.environ.get("EBBMQ_PURE"):
        return None
    try:
        return import_module("ebbmq._speedups")
    except ImportError:
        return None


_compiled: Final = _load()


def twin(function: F) -> F:
    """The twin of a function in Python, or that function where there is none."""
    found: F | None = getattr(_compiled, function.__name__, None)
    if found is None:
        return function
    replaced[function.__name__] = function
    return found
