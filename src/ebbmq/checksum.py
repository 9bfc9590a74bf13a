"""CRC-32C, from the compiled part of its library alone.

The rest of that library looks up its own version when it is imported, and with it loads the parsers
of e-mail and zip files: a seventh of what loading the broker takes, which a restart waits for.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

__all__ = ["crc32c"]

if TYPE_CHECKING:
    from types import ModuleType

    from crc32c import crc32c


def _compiled() -> ModuleType:
    library = find_spec("crc32c")
    found = library and PathFinder.find_spec("_crc32c", library.submodule_search_locations)
    if not found or not found.loader:
        import crc32c as whole  # noqa: PLC0415  # where it is laid out differently

        return whole
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    crc32c = _compiled().crc32c
