"""One small Spark for all tests of the pipeline: two cores, little memory, no UI."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from ebbmq_spark.session import Settings, spark_session
from tests.azurite import COMMAND, Azurite
from tests.servers import Weed
from tools.classes import archive_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: For a Java that lives for seconds: it starts at once, and never gets to the last bit of speed.
#: The one that all tests share ends when it has no place left for what it compiled, by default
#: 48 MB.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
SETTINGS = Settings(
    master="local[2]",
    memory="512m",
    shuffle_partitions=2,
    more={
        "spark.sql.adaptive.enabled": "false",
        "spark.default.parallelism": "2",
        # Compiling what runs once, on a few rows, takes longer than running it. On a cluster, with
        # Connect and by commands tests run all of it compiled, and compare the results.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
)


@pytest.fixture(scope="package", autouse=True)
def quick_java() -> Iterator[None]:
    """Whatever starts Spark, also a command in a process of its own, has it start quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", f"{QUICK_JAVA} {archive_options()}")
        patch.setenv("SPARK_LAUNCHER_OPTS", QUICK_JAVA)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", f"{QUICK_JAVA} {archive_options()}")
        yield


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One session for this directory; Java is gone before the tests of another one begin."""
    with spark_session(SETTINGS, "ebbmq tests") as session:
        yield session
        gateway = session.sparkContext._gateway  # noqa: SLF001  # it has no public name
    assert gateway is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        del gateway, session
        gc.collect()


@pytest.fixture(scope="package")
def weed() -> Iterator[Weed]:
    """An S3 service for this directory."""
    server = Weed()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="package")
def azurite_server() -> Iterator[Azurite]:
    """An emulator of Azure for this directory."""
    if not COMMAND.exists():
        pytest.skip("Azurite is not installed: `make test` does that where there is npm")
    server = Azurite()
    server.start()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def java_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """If the Java that tests share ends, the test in which it did says so, and how it ended."""
    if "spark" not in request.fixturenames:
        yield
        return
    java = request.getfixturevalue("spark").sparkContext._gateway.proc  # noqa: SLF001
    assert java.poll() is None, f"Java ended before this test with {java.returncode}"
    yield
    told = [place.read_text()[:4_000] for place in Path.cwd().glob(f"hs_err_pid{java.pid}.log")]
    assert java.poll() is None, f"Java ended in this test with {java.returncode}: {told}"


@pytest.fixture(autouse=True)
def spark_may_leave_sockets_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark keeps sockets to Java and lets the collector close them: not later than here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        if "spark" in request.fixturenames:
            gc.collect()
