"""Opening a Spark session: this machine by default, any cluster by its address, always in UTC."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import SparkSession

from ebbmq.errors import ClientError
from ebbmq_spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator

MASTER_DEFAULT: Final = "local[*]"
CONNECT: Final = "sc://"


class SparkFailed(ClientError):
    """Spark could not be started or reached."""

    code = "spark_failed"


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
            "spark.ui.enabled": str(self.ui).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.log.level": "ERROR",
        }
        if self.shuffle_partitions is not None:
            settings["spark.sql.shuffle.partitions"] = str(self.shuffle_partitions)
        if self.has_driver:
            settings |= {
                "spark.driver.memory": self.memory,
                "spark.local.dir": str(scratch),
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            }
        if self.is_local:
            settings |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
        return settings | self.more


@contextlib.contextmanager
def spark_session(settings: Settings | None = None, name: str = "ebbmq") -> Iterator[SparkSession]:
    """A session that is stopped in the end, and its scratch files removed.

    What Java itself has to say goes to a file; it is kept, and named, if Spark does not start.

    Raises:
        JavaMissing: there is no Java that can run Spark.
        SparkFailed: Spark could not be started, or the cluster not be reached.
    """
    settings = settings or Settings()
    if settings.has_driver:
        require_java()
    else:
        _require_connect(settings.master)
    scratch = Path(tempfile.mkdtemp(prefix="ebbmq-spark-"))
    log = scratch / "spark.log"
    try:
        spark = _open(settings, name, scratch, log)
    except Exception as error:
        raise SparkFailed(
            f"Spark did not start on {settings.master}: {_first_line(error)}",
            f"see {log}; --master names where to run",
        ) from error
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _require_connect(master: str) -> None:
    """See that Spark Connect can be spoken; PySpark itself would end the process without a word."""
    if importlib.util.find_spec("grpc") is None:
        raise SparkFailed(
            f"Spark Connect is not installed, so {master} cannot be reached",
            "pip install 'pyspark[connect]', or name a cluster by spark://HOST:PORT",
        )


def _open(settings: Settings, name: str, scratch: Path, log: Path) -> SparkSession:
    # Python on executors must be this one: another has neither this package nor its libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if settings.master.startswith(CONNECT):
        builder = builder.remote(settings.master)
    else:
        builder = builder.master(settings.master)
    for key, value in settings.of_spark(scratch).items():
        builder = builder.config(key, value)
    with _errors_to(log):
        return builder.getOrCreate()


@contextlib.contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Let a process started meanwhile, and only it, write its errors to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
