"""Objects of a store, read by Spark's own reader: by URLs that are signed in the driver (ADR 0040).

Spark brings no reader of object stores. So there is one file of Java, `ObjectFiles.java`, which
reads ranges of URLs as Hadoop reads files. It is compiled in the driver as the rule of `handover`
is, when objects are asked for the first time, and goes to executors as a jar, by Spark itself.

1. The driver lists objects and signs a URL for each, which is valid for half a day. Executors need
   neither a package nor a key.
2. URLs go with the settings of Hadoop that Spark sends along with the query. Plans show names.
3. Each range is asked for on the condition that the object has the tag and the size it was listed
   with: one that was replaced is gone, and never mistaken for the other.
4. The driver itself reads the end of one object before it hands a query over. Whatever is in the
   way, be it a rule of the bucket or a proxy, leaves the query to Python.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import zipfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ebbmq_spark import places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq_spark.places import Address, Files, Place

_TEXT: Final = "ObjectFiles.java"
_JAR: Final = "ebbmq-object-files.jar"
_CLASS: Final = "ebbmq.ObjectFiles"
_SETTING: Final = "fs.ebbmq-object.impl"
#: A store may ask a service of its cloud, again and again, before it says that it cannot sign.
_ASKED_AGAIN_S: Final = 600.0
_logger = logging.getLogger("ebbmq.spark")
#: Java asks in threads of its own.
_guard = threading.Lock()
#: Places that could not sign, by their digest, and until when that is taken for granted.
_unsigned: dict[bytes, float] = {}


def addresses(place: Place, files: Files, paths: Sequence[str]) -> Sequence[Address] | None:
    """Where Spark's own reader finds files; None where it cannot, and the log says why."""
    # Options may be secrets: a digest tells places apart as well.
    known = hashlib.sha256(msgspec.json.encode([place.address, place.store])).digest()
    for other, until_s in list(_unsigned.items()):
        if until_s < time.monotonic():
            _unsigned.pop(other, None)
    if known in _unsigned:
        return None
    try:
        return files.addresses(paths)
    except places.Unsigned as error:
        _unsigned[known] = time.monotonic() + _ASKED_AGAIN_S
        _logger.warning("rows of %s are read by Python: %s", files.where, error.detail)
        return None


def ship(context: Any) -> None:
    """Have Hadoop find the files of objects, in the driver and in every executor of a context."""
    with _guard:
        settings = context._jsc.hadoopConfiguration()  # noqa: SLF001  # it has no public name
        if settings.get(_SETTING) is not None:
            return
        compiler = context._jvm.org.codehaus.janino.SimpleCompiler()  # noqa: SLF001  # as above
        compiler.setParentClassLoader(settings.getClassLoader())
        compiler.cook(resources.files(__package__).joinpath(_TEXT).read_text())
        jar = Path(context._temp_dir, _JAR)  # noqa: SLF001  # it goes with the context
        with zipfile.ZipFile(jar, "w") as archive:
            for name, code in compiler.getBytecodes().items():
                archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
        context._jsc.addJar(str(jar))  # noqa: SLF001  # as above
        # Tasks in this Java may have the settings of the driver, with what loads classes for it.
        settings.setClassLoader(compiler.getClassLoader())
        # One that is kept would have the URLs of the query it was made for.
        settings.set(f"{_SETTING}.disable.cache", "true")
        settings.set(_SETTING, _CLASS)
