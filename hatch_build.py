"""Compiles `ebbmq._speedups` where there is a compiler; without it the package is all Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path("src", "ebbmq")
#: As `ebbmq.speedups` has them.
_SOURCES = ("_speedups.c", "_parquet.c", "_parquet.h")
_COMPILED = [str(_PACKAGE / name) for name in _SOURCES if name.endswith(".c")]


class Speedups(BuildHookInterface[Any]):
    """Puts what it compiled beside its source, where an editable installation looks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, if that is possible; a build never fails for it."""
        del version
        made = _PACKAGE / f"_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"
        why = _compile(Path(self.root), made)
        if why:
            self.app.display_warning(
                f"{_COMPILED[0]} was not compiled: {why}\nEbbMQ works without it; one message at a "
                "time takes a quarter longer. A C compiler and Python.h are needed: gcc, "
                "python3-dev"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(made.as_posix())


def _compile(root: Path, made: Path) -> str:
    """Compile by the first compiler that can; returns why none could."""
    why = "there is no compiler"
    for compiler in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc"):
        if not compiler:
            continue
        try:
            _compile_by(shlex.split(compiler), root, made)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = (getattr(error, "stderr", None) or str(error)).strip()
            continue
        return ""
    return why


def _compile_by(compiler: list[str], root: Path, made: Path) -> None:
    flags = ["-O3", "-std=c11", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    is_mac = sys.platform == "darwin"
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if is_mac else ["-shared"]
    whole = b"".join((root / _PACKAGE / name).read_bytes() for name in _SOURCES)
    known = f"-DSOURCE_CRC={zlib.crc32(whole)}"
    include = f"-I{sysconfig.get_path('include')}"
    # Another process may have the old one loaded: it is replaced, not overwritten.
    fresh = made.with_name(f"{made.name}.{os.getpid()}.tmp")
    command = [*compiler, *flags, *shared, known, include, *_COMPILED, "-o", str(fresh)]
    try:
        subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603
        (root / fresh).replace(root / made)
    finally:
        (root / fresh).unlink(missing_ok=True)
