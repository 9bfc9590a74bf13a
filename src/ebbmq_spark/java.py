"""Whether Spark can run here: it needs Java, which no Python package brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from ebbmq.errors import ClientError

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_INSTALL: Final = (
    "install it, on Debian or Ubuntu: apt-get install openjdk-17-jre-headless; "
    "or let JAVA_HOME name where it is"
)


#: How Java and Spark begin to say what went wrong.
_TOLD: Final = re.compile(
    r'^(?:(?:Exception in thread "[^"]*" |Caused by: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error): '
    r"|\S+ \S+ ERROR \w+: (?!Error initializing ))(.+)$",
    re.MULTILINE,
)
#: What they say beside that.
_BESIDE: Final = re.compile(
    r"\s|WARNING: |NOTE: |Picked up |Using |Setting |To adjust |\S+ \S+ (?:WARN|INFO|ERROR) "
    r"|Error: (?:Could not create|A fatal)"
)


class JavaMissing(ClientError):
    """There is no Java that can run Spark."""

    code = "java_missing"


def java_path() -> str | None:
    """The java Spark would start: that of JAVA_HOME, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if os.access(path, os.X_OK) else None
    return shutil.which("java")


def require_java() -> None:
    """See that there is a Java that can run Spark.

    Raises:
        JavaMissing: there is none, or it is too old.
    """
    path = java_path()
    if path is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is none here"
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer: {where}", _INSTALL)
    told = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)  # noqa: S603  # found on the path of the user who asks
    found = _VERSION.search(told.stderr + told.stdout)
    # Up to Java 8 the number that counts was the second one: 1.8.
    major = int(found[2] if found[1] == "1" and found[2] else found[1]) if found else 0
    if major < JAVA_MIN:
        version = f"Java {major}" if major else "no Java that tells its version"
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer: {path} is {version}", _INSTALL)


def told_in(log: str) -> str | None:
    """The last line in which Java says what went wrong; None if there is none."""
    found: list[str] = _TOLD.findall(log) or [
        line for line in log.splitlines() if line and not _BESIDE.match(line)
    ]
    return found[-1].strip()[:300] if found else None
