"""Compiles `ebbmq._speedups` where there is a compiler; without it the package is all Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = Path("src", "ebbmq", "_speedups.c")


class Speedups(BuildHookInterface[Any]):
    """Puts what it compiled beside its source, where an editable installation looks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, if that is possible; a build never fails for it."""
        del version
        made = _SOURCE.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        try:
            _compile(Path(self.root), made)
        except (OSError, subprocess.CalledProcessError) as error:
            (Path(self.root) / made).unlink(missing_ok=True)
            why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]
            self.app.display_warning(
                f"{_SOURCE} was not compiled: {why}; EbbMQ works without it, one message at a time "
                "takes a quarter longer (a C compiler and Python.h are needed: gcc python3-dev)"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(made.as_posix())


def _compile(root: Path, made: Path) -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-O2", "-std=c11", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    include = f"-I{sysconfig.get_path('include')}"
    # Another process may have the old one loaded: it is replaced, not overwritten.
    fresh = made.with_name(f"{made.name}.{os.getpid()}.tmp")
    command = [*compiler, *flags, *shared, include, str(_SOURCE), "-o", str(fresh)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603
    (root / fresh).replace(root / made)
