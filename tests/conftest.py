"""What all tests share: options, and signals as a terminal has them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

ROOT: Final = Path(__file__).parent
#: What takes longest begins first, so that what is left in the end is short. The tests of one
#: directory stay together: the Spark that they share is started and warmed up once.
DIRECTORIES: Final = ("pipeline", "crash", "integration", "simulation")
FILES: Final = (
    "pipeline/test_cluster.py",
    "pipeline/test_killed_run.py",
    "pipeline/test_killed_broker.py",
    "pipeline/test_connector_stream.py",
    "pipeline/test_pipeline_command.py",
    "pipeline/test_connect.py",
    "pipeline/test_stream.py",
    "pipeline/test_jobs.py",
    "pipeline/test_connector_handover.py",
    "pipeline/test_object_lake.py",
    "crash/test_device_faults.py",
    "crash/test_damage.py",
    "crash/test_server_kill.py",
    "crash/test_kill.py",
    "integration/test_overload.py",
    "integration/test_device_outages.py",
    "integration/test_devices.py",
    "integration/test_cli.py",
)


def pytest_configure() -> None:
    # A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says something of the machine only.
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-cycles",
        type=int,
        default=200,
        help="how often the random crash test kills its worker (default 200)",
    )
    parser.addoption(
        "--server-kills",
        type=int,
        default=50,
        help="how often the server is killed under load (default 50)",
    )
    parser.addoption(
        "--device-faults",
        type=int,
        default=6,
        help="how many devices fail one after another under load (default 6)",
    )
    parser.addoption(
        "--overload-seconds",
        type=float,
        default=60.0,
        help="how long more is published than consumed (default 60)",
    )
    parser.addoption(
        "--at-once-seconds",
        type=float,
        default=5.0,
        help="how long ten threads call every verb at once (default 5)",
    )
    parser.addoption(
        "--simulation-seeds",
        type=int,
        default=1,
        help="how many fresh seeds the simulation tries beside the fixed ones (default 1)",
    )
    parser.addoption(
        "--simulation-seed",
        type=int,
        action="append",
        help="the only seed that the simulation tries; may be given more than once",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Workers begin files in this order when pytest is told --no-loadscope-reorder.
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    """When the file of a test begins; those that are not named stay in the order of their names."""
    path = item.path.relative_to(ROOT)
    first = path.parts[0]
    return (
        DIRECTORIES.index(first) if first in DIRECTORIES else len(DIRECTORIES),
        FILES.index(path.as_posix()) if path.as_posix() in FILES else len(FILES),
    )
