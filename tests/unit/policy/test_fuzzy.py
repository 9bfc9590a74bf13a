"""The membership functions are those of scikit-fuzzy."""

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbmq.policy.rules.fuzzy import degree_of, falling, rising, trapezoid, triangle
from ebbmq.policy.rules.parse import parse_condition
from ebbmq.policy.rules.properties import Properties

UNIVERSE = np.linspace(0, 150, 601)


@pytest.fixture(scope="module")
def membership() -> dict[str, Any]:
    # Its package imports scipy for parts that are of no concern here.
    spec = importlib.util.find_spec("skfuzzy")
    assert spec is not None
    assert spec.origin is not None
    return runpy.run_path(str(Path(spec.origin).parent / "membership" / "generatemf.py"))


def test_triangle_and_trapezoid_are_theirs(membership: dict[str, Any]) -> None:
    ours = [triangle(x, 10, 30, 80) for x in UNIVERSE]
    assert np.allclose(ours, membership["trimf"](UNIVERSE, [10, 30, 80]))
    ours = [trapezoid(x, (8, 120), (12, 80)) for x in UNIVERSE]
    theirs = membership["trapmf"](UNIVERSE, [8, 12, 80, 120])
    assert np.allclose(ours, theirs)


def test_a_span_with_soft_edges_is_a_trapezoid(membership: dict[str, Any]) -> None:
    degree = degree_of(parse_condition("SIZE > 10 AND SIZE < 100"), 0.2)
    ours = [degree(Properties(size=float(x)), {}) for x in UNIVERSE]
    theirs = membership["trapmf"](UNIVERSE, [8, 12, 80, 120])
    assert np.allclose(ours, theirs)


def test_equality_with_soft_edges_is_a_triangle(membership: dict[str, Any]) -> None:
    degree = degree_of(parse_condition("SIZE == 50"), 0.5)
    ours = [degree(Properties(size=float(x)), {}) for x in UNIVERSE]
    assert np.allclose(ours, membership["trimf"](UNIVERSE, [25, 50, 75]))


def test_an_edge_without_width_is_a_step() -> None:
    assert [rising(x, 5, 5) for x in (4.9, 5, 5.1)] == [0, 1, 1]
    assert [falling(x, 5, 5) for x in (4.9, 5, 5.1)] == [1, 1, 0]
    at_zero = degree_of(parse_condition("SIZE > 0"), 0.2)
    assert [at_zero(Properties(size=x), {}) for x in (0.0, 0.001)] == [0, 1]


def test_negation_is_what_is_missing_to_one() -> None:
    degree = degree_of(parse_condition("NOT SIZE > 10 OR TYPE == TEXT"), 0.2)
    assert degree(Properties(size=11), {}) == pytest.approx(0.25)
    assert degree(Properties(size=11, type="TEXT"), {}) == 1
