"""The membership functions are those of scikit-fuzzy."""

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbmq.policy.rules.conditions import Condition
from ebbmq.policy.rules.evaluate import WHOLE, degree_of
from ebbmq.policy.rules.parse import parse_condition
from ebbmq.policy.rules.properties import Properties

UNIVERSE = np.linspace(0, 150, 601)


def degree(condition: Condition, softness: float = 0.2, **said: Any) -> float:
    """How true a condition is, from 0 to 1: in whole thousandths."""
    return degree_of(condition, Properties(**said), {}, softness) / WHOLE


@pytest.fixture(scope="module")
def membership() -> dict[str, Any]:
    # Its package imports scipy for parts that are of no concern here.
    spec = importlib.util.find_spec("skfuzzy")
    assert spec is not None
    assert spec.origin is not None
    return runpy.run_path(str(Path(spec.origin).parent / "membership" / "generatemf.py"))


def test_a_span_with_soft_edges_is_a_trapezoid(membership: dict[str, Any]) -> None:
    condition = parse_condition("SIZE > 10 AND SIZE < 100")
    ours = [degree(condition, size=float(x)) for x in UNIVERSE]
    theirs = membership["trapmf"](UNIVERSE, [8, 12, 80, 120])
    assert np.allclose(ours, theirs, atol=0.0005)


def test_equality_with_soft_edges_is_a_triangle(membership: dict[str, Any]) -> None:
    condition = parse_condition("SIZE == 50")
    ours = [degree(condition, 0.5, size=float(x)) for x in UNIVERSE]
    assert np.allclose(ours, membership["trimf"](UNIVERSE, [25, 50, 75]), atol=0.0005)


def test_an_edge_without_width_is_a_step() -> None:
    at_zero = parse_condition("SIZE > 0")
    assert [degree(at_zero, size=x) for x in (0.0, 0.001)] == [0, 1]


def test_negation_is_what_is_missing_to_one() -> None:
    condition = parse_condition("NOT SIZE > 10 OR TYPE == TEXT")
    assert degree(condition, size=11) == 0.25
    assert degree(condition, size=11, type="TEXT") == 1
