"""Opening a Spark session: this machine by default, any cluster by its address, always in UTC."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import sys
import tempfile
import zipfile
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from pyspark.sql import SparkSession

from ebbmq.errors import ClientError
from ebbmq.feed import memory
from ebbmq.limits import MIB
from ebbmq_spark.attempts import first_line
from ebbmq_spark.java import require_java, told_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

MASTER_DEFAULT: Final = "local[*]"
CONNECT: Final = "sc://"
CONNECT_PORT: Final = 15_002
SHIPPED: Final = "ebbmq-shipped.zip"
_SCRATCH: Final = "ebbmq-spark-"
_CONNECT_S: Final = 10.0
_LOCAL: Final = re.compile(r"local(?:\[([0-9]+|\*)\])?")
#: As many as on a cluster.
_TRIES: Final = 4
#: Spark calls a socket `/.UUID.sock`, and a name has 103 bytes at most where they are shortest.
_SOCKETS_AT: Final = 103 - 43
#: Arrow looks at bounds, and at whether a value is there, for every value that Java takes from what
#: Python sent. Spark has asked before, and who sent it is our own Python: a tenth in a profile.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


class SparkFailed(ClientError):
    """Spark could not be started or reached."""

    code = "spark_failed"


class InvalidSetting(ClientError):
    """The memory of Spark is no amount, or too little."""

    code = "invalid_setting"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run Spark; the defaults suit one machine."""

    master: str = MASTER_DEFAULT
    memory: str = "1g"
    shuffle_partitions: int | None = None
    ui: bool = False
    #: Anything else, by Spark's own names; it wins over what is set here.
    more: dict[str, str] = {}

    @property
    def is_local(self) -> bool:
        """Whether everything runs in this machine's one Java process."""
        return self.master.startswith("local")

    @property
    def has_driver(self) -> bool:
        """Whether the driver is this process, so that it can be asked how far it is."""
        return not self.master.startswith(CONNECT)

    def of_spark(self, scratch: Path) -> dict[str, str]:
        """These settings by Spark's names."""
        settings = {
            # Instants are whole milliseconds; where one is shown it must not depend on the place.
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            # Where a column was made is told to Java with each of them, for messages about errors:
            # half of all calls.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # To look at files that are named takes less time than a job to do so.
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
            # To open a file costs as much as to read so much of it: less than Spark takes for
            # granted, so that the few files with what is due are shared evenly.
            "spark.sql.files.openCostInBytes": str(MIB),
        }
        if self.shuffle_partitions is not None:
            settings["spark.sql.shuffle.partitions"] = str(self.shuffle_partitions)
        if self.has_driver:
            settings |= {
                "spark.ui.enabled": str(self.ui).lower(),
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "ERROR",
                # Beside the options a user has set, which are others.
                "spark.driver.defaultJavaOptions": _ARROW,
                "spark.executor.defaultJavaOptions": _ARROW,
                "spark.driver.memory": self.memory,
                "spark.local.dir": str(scratch),
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            }
        if self.is_local:
            settings |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
            # Python writes to Java in half the time of TCP. Names of sockets have an end.
            if len(os.fsencode(scratch)) <= _SOCKETS_AT:
                settings |= {
                    "spark.python.unix.domain.socket.enabled": "true",
                    "spark.python.unix.domain.socket.dir": str(scratch),
                }
        return settings | self.more


@contextlib.contextmanager
def spark_session(settings: Settings | None = None, name: str = "ebbmq") -> Iterator[SparkSession]:
    """A session that is stopped in the end, and its scratch files removed.

    What Java has to say goes to a file, which stays, and is named, if Spark does not start.

    Raises:
        JavaMissing: there is no Java that can run Spark.
        SparkFailed: Spark could not be started, or the cluster not be reached.
        InvalidSetting: the memory is none, or too little.
    """
    settings = settings or Settings()
    if settings.has_driver:
        _require_memory(settings)
        require_java()
    else:
        _require_connect(settings.master)
    with (
        tempfile.NamedTemporaryFile(prefix=_SCRATCH, suffix=".log", delete=False) as file,
        tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as scratch,
    ):
        log, place = Path(file.name), Path(scratch)
        try:
            with _errors_to(file):
                spark = _open(settings, name, place)
            if not settings.is_local:
                ship(spark, place)
        except Exception as error:
            why = told_in(log.read_text(errors="replace")) or first_line(error)
            raise SparkFailed(
                f"Spark did not start on {_shown(settings.master)}: {why}",
                f"see {log}; --master names where to run",
            ) from error
        try:
            yield spark
        finally:
            spark.stop()
            log.unlink()


def _require_memory(settings: Settings) -> None:
    if not memory.is_enough(settings.memory):
        raise InvalidSetting(f"the memory of Spark is {settings.memory!r:.80}", memory.USE)


def _require_connect(master: str) -> None:
    """See that Spark Connect can be spoken, and is listened to.

    PySpark itself would end the process without a word, and try for ten minutes.
    """
    if importlib.util.find_spec("grpc") is None:
        raise SparkFailed(
            f"Spark Connect is not installed, so {_shown(master)} cannot be reached",
            "pip install 'pyspark[connect]', or name a cluster by spark://HOST:PORT",
        )
    server = urlsplit(master)
    try:
        where = server.hostname or "", server.port or CONNECT_PORT
        socket.create_connection(where, _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise SparkFailed(
            f"no Spark Connect server at {server.netloc or _shown(master)}: {error}",
            f"--master names one as sc://HOST:PORT, {CONNECT_PORT} unless given",
        ) from error


def _shown(master: str) -> str:
    """An address without what is told to the server only, such as a token."""
    return master.partition("/;")[0]


def ship(spark: SparkSession, scratch: Path) -> None:
    """Send this package to where tasks run; libraries that it needs have to be there."""
    path = scratch / SHIPPED
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("ebbmq", "ebbmq_spark"):
            # As it is imported here, from wherever that is.
            for found in resources.files(package).iterdir():
                _pack(archive, found, package)
    if is_connect(spark):
        spark.addArtifacts(str(path), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(path))


def _pack(archive: zipfile.ZipFile, found: Traversable, above: str) -> None:
    name = f"{above}/{found.name}"
    if found.is_dir() and found.name != "__pycache__":
        for each in found.iterdir():
            _pack(archive, each, name)
    elif found.is_file():
        archive.writestr(name, found.read_bytes())


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect: then the driver is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Have Spark take a session for the active one, which it looks at whichever one it is told."""
    if is_connect(spark):
        yield
        return
    jvm: Any = spark._jvm  # noqa: SLF001  # it has no public name
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001  # as above
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _open(settings: Settings, name: str, scratch: Path) -> SparkSession:
    # Python on executors must be this one: another has neither this package nor its libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if settings.master.startswith(CONNECT):
        builder = builder.remote(settings.master)
    else:
        builder = builder.master(_patient(settings.master))
    for key, value in settings.of_spark(scratch).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _patient(master: str) -> str:
    """Let a task on this machine be tried again, as on a cluster: Python may be slow to start."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_TRIES}]" if found else master


@contextlib.contextmanager
def _errors_to(file: IO[bytes]) -> Iterator[None]:
    """Let a process started meanwhile, and only it, write its errors to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
