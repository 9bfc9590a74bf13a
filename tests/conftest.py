"""What all tests share: options, and signals as a terminal has them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest


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
        "--simulation-seeds",
        type=int,
        default=1,
        help="how many fresh seeds the simulation tries beside the fixed ones (default 1)",
    )
