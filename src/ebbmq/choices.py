"""Names what a field takes, where it takes one of a few words."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec


def hint(form: type[msgspec.Struct], path: str, otherwise: str) -> str:
    """`use one of ..` for the field at a path such as `log.level`, else what is given."""
    words = _words(form, path.split("."))
    return f"use one of {', '.join(words)}" if words else otherwise


def _words(form: Any, names: list[str]) -> list[str]:
    for name in names:
        held = get_type_hints(form).get(name) if isinstance(form, type) else None
        form = next((kind for kind in _parts(held) if _is_form_or_words(kind)), None)
    return [str(word) for word in get_args(form)] if get_origin(form) is Literal else []


def _parts(held: Any) -> tuple[Any, ...]:
    return (held,) if get_origin(held) is Literal else (held, *get_args(held))


def _is_form_or_words(kind: Any) -> bool:
    is_form = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_form or get_origin(kind) is Literal
