"""Seeded simulations: crashes, failing syncs and jumps of time against every promise."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.simulation.simulation import Simulation

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 400
FIXED = range(1, 26)


def _fresh(count: int) -> list[int]:
    # Processes that share the tests of a run must find the same ones.
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    return [chance.getrandbits(48) for _ in range(count)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        config = metafunc.config
        given = config.getoption("--simulation-seed")
        fresh = _fresh(config.getoption("--simulation-seeds"))
        metafunc.parametrize("seed", given or [*FIXED, *fresh])


def test_every_promise_holds_in_a_simulated_life(seed: int, tmp_path: Path) -> None:
    try:
        assert Simulation(seed, tmp_path).run(STEPS) == []
    except Exception as error:
        error.add_note(f"again: pytest tests/simulation --simulation-seed {seed}")
        raise


@pytest.mark.parametrize("number", [3, 4])
def test_the_same_seed_gives_the_same_trace(number: int, tmp_path: Path) -> None:
    traces = []
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        simulation = Simulation(number, tmp_path / run)
        simulation.run(STEPS)
        traces.append(simulation.trace())
    assert traces[0] == traces[1]
