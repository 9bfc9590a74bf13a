"""Scans of a lake or an archive, handed over to Spark's own Parquet reader.

A source in Python gives Spark rows, never files for its own readers. So a rule of ours is put among
those by which Spark optimizes a query (`Handover.java`). It is asked once for each query, last
before Spark asks sources to take filters:

1. It finds the scans of `ebbmq` and asks this process, by a callback, which files each of them is.
   The answer is as of then: what is derived from a DataFrame later sees what came in between. (A
   DataFrame itself is planned once: Spark keeps the plan of what is collected.)
2. Where there are files, Spark reads them itself, filters and columns included. Columns keep their
   order, their types and whether they may be empty; a value that has to be there is looked for.
   What the path of a pack says are columns of all its rows, by which Spark leaves whole packs out.
   Dead rows of a pack are told as bits, and filtered out by the number of each row in its file.
3. Where there are none (a queue, a store that cannot sign, a lake or an archive that is not as it
   should be) the scan stays with Python, which reads it or says why not. It is made anew for each
   query: Spark 4.2 keeps filters and partitions of a source for the next query on the same
   DataFrame.

Only planning knows of it, in the driver. Executors need nothing for files in directories; those in
object stores are read by a class that is shipped to them (`signed`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
import threading
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from ebbmq.errors import EbbError
from ebbmq_spark.connector import signed
from ebbmq_spark.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from pyspark.sql import SparkSession

    from ebbmq_spark.connector.files import NamedFile

    #: The files of a scan by its options, its schema and the directory that paths begin at; None
    #: for a scan that Python reads.
    FilesOf = Callable[[MutableMapping[str, str], T.StructType, Path], list[NamedFile] | None]

_TEXT: Final = "Handover.java"
_RULE: Final = "ebbmq.Handover."
_IN_PYTHON: Final = "lakes and archives are read by Python"
_EACH_QUERY: Final = "ebbmq.Handover$EachQuery"
_logger = logging.getLogger("ebbmq.spark")
#: Two threads may register the same session; it guards what is compiled, too.
_installing = threading.Lock()
#: Once for each Java: py4j takes two classes of one name for the same.
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class _Scan(msgspec.Struct):
    """A scan that Java asks about, or why it could not ask, or make anything of the answer."""

    token: str
    options: dict[str, str] = {}
    schema: str = ""
    #: Where Java runs, and Python that it starts: maybe not where this process is by now.
    directory: str = ""
    failed: str | None = None


class Named:
    """Says which files a scan is; Java calls it, in a thread of its own choice.

    PySpark listens to anybody on this machine, and lets attributes be asked for: so who asks tells
    a token, of which only the digest is here.
    """

    def __init__(self, files: FilesOf, digest: bytes, ship: Callable[[], None]) -> None:
        self._files = files
        self._digest = digest
        self._ship = ship

    def apply(self, asked: str) -> str | None:
        """Files as JSON; None leaves the scan to Python."""
        scan = msgspec.json.decode(asked, type=_Scan)
        if digest_of(scan.token) != self._digest:
            return None
        if scan.failed is not None:
            # Of a traceback the end says what was wrong.
            why = " ".join(scan.failed.split())[-500:]
            _logger.warning("%s: their files could not be asked for: %s", _IN_PYTHON, why)
            return None
        schema = T.StructType.fromJson(msgspec.json.decode(scan.schema))
        try:
            found = self._files(CaseInsensitiveDict(scan.options), schema, Path(scan.directory))
        except (EbbError, OSError):
            # The reader in Python meets the same, and tells it.
            return None
        if found is None:
            return None
        if any(each.url is not None for each in found):
            self._ship()
        return msgspec.json.encode(found).decode()

    class Java:
        """What it is in Java."""

        implements: Final = ["java.util.function.Function"]


def digest_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def install(spark: SparkSession, source: str, files: FilesOf) -> bool:
    """Hand scans of a source over from now on, in a session and those that come from it.

    Args:
        spark: the session; asked twice it is done once.
        source: the name of the source.
        files: which files a scan is.

    Returns:
        Whether it could be done. Where it could not, the log says why and Python reads.
    """
    if is_connect(spark):
        _logger.warning(
            "%s: the driver of Spark Connect is elsewhere; read_lake and read_archive have Spark "
            "read them",
            _IN_PYTHON,
        )
        return False
    try:
        with _installing:
            _install(spark, source, files)
    # A class that is not there is a package to py4j, and cannot be called.
    except (Py4JError, PySparkException, TypeError, OSError) as error:
        why = " ".join(str(getattr(error, "java_exception", error)).split())
        _logger.warning("%s: this Spark does not take our rule: %.500s", _IN_PYTHON, why)
        return False
    return True


def _install(spark: SparkSession, source: str, files: FilesOf) -> None:
    context: Any = spark.sparkContext
    session: Any = spark._jsparkSession  # noqa: SLF001  # it has no public name
    extensions = session.extensions()
    rules = extensions.buildPreCBORules(session)
    if any(rules.apply(at).ruleName() == _RULE + source for at in range(rules.size())):
        return
    gateway = context._gateway  # noqa: SLF001  # as above
    if gateway not in _compiled:
        _compiled[gateway] = _compile(context._jvm, session)  # noqa: SLF001  # as above
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # as above
    rule = _compiled[gateway].getConstructors()[0].newInstance(None)
    token = secrets.token_hex()
    ship = functools.partial(signed.ship, context)
    rule.ask(source, token, Named(files, digest_of(token), ship))
    extensions.injectPreCBORule(rule)


def _compile(jvm: Any, session: Any) -> Any:
    """The class that makes a rule for each query."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(session.getClass().getClassLoader())
    compiler.cook(resources.files(__package__).joinpath(_TEXT).read_text())
    return compiler.getClassLoader().loadClass(_EACH_QUERY)
