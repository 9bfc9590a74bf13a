"""The commands by name, each loaded when it is asked for: all of them take longer than one runs."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import click


class Commands(MutableMapping[str, "click.Command"]):
    """Commands in the place of their modules, in which each has the name that it is given by."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._found: dict[str, click.Command | str] = dict(modules)

    @override
    def __getitem__(self, name: str) -> click.Command:
        found = self._found[name]
        if isinstance(found, str):
            found = self._found[name] = getattr(importlib.import_module(found), name)
        return found

    @override
    def __setitem__(self, name: str, command: click.Command) -> None:
        self._found[name] = command

    @override
    def __delitem__(self, name: str) -> None:
        del self._found[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    @override
    def __len__(self) -> int:
        return len(self._found)

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._found
