"""What the page about simulations shows can be used as it stands there."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbmq.cli.main import cli
from ebbmq.feed.traces import TRACE
from ebbmq_spark.simulation.generate import SHAPES
from ebbmq_spark.simulation.sweep import Sweep, read_sweep

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()


def sweeps() -> list[Sweep]:
    texts = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    return [read_sweep(text.encode(), "docs/simulate.md") for text in texts]


def test_the_file_of_policies_is_one() -> None:
    found = sweeps()[0]
    policies = found.candidates(60_000)
    assert len(policies) == 2 + 1 + 2 * 3 * 2
    for policy in policies:
        assert found.spec("orders", policy).default_importance == 7


def test_every_column_of_a_trace_is_told_and_no_other() -> None:
    table = PAGE.split("## Your own traffic")[1].split("From a log")[0]
    told = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|([^|]+)\|", table, re.M)))
    assert sorted(told) == sorted(TRACE.names)


def test_patterns_are_told_as_they_are() -> None:
    for pattern, shape in SHAPES.items():
        assert f"`{pattern}`" in PAGE or f"--generate {pattern}" in PAGE
        assert shape.says in re.sub(r"\s+", " ", PAGE)


@pytest.mark.parametrize("command", re.findall(r"^ebbmq simulate .*$", PAGE, re.M))
def test_options_shown_exist(command: str) -> None:
    told = CliRunner().invoke(cli, ["simulate", "--help"]).output
    for option in re.findall(r"--[\w-]+", command):
        assert option in told
