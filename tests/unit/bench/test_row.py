import msgspec
import pytest

from bench import report
from bench.row import at_least, at_most, stated


def test_a_figure_at_its_bar_reaches_it() -> None:
    assert at_most("a", 5.0, "us", 5).ok is True
    assert at_least("b", 10.0, "x", 10).ok is True


def test_a_figure_beyond_its_bar_misses_it() -> None:
    assert at_most("a", 5.01, "us", 5).ok is False
    assert at_least("b", 9.99, "x", 10).ok is False


def test_rounding_for_display_does_not_turn_a_miss_into_ok() -> None:
    row = at_most("a", 5.00001, "us", 5)
    assert row.value == 5.0
    assert row.ok is False


def test_a_stated_figure_is_not_judged() -> None:
    row = stated("a", 1.0, "us")
    assert row.bar is None
    assert row.ok is None


@pytest.mark.parametrize(("unit", "multiple"), [("us", 0.02), ("ms", 20.0), ("s", 20_000.0)])
def test_a_time_is_also_a_multiple_of_the_calibration(unit: str, multiple: float) -> None:
    assert stated("a", 2.0, unit).with_multiple_of(100.0).multiple == multiple


def test_a_size_has_no_multiple() -> None:
    assert stated("a", 2.0, "MiB").with_multiple_of(100.0).multiple is None


def test_json_has_name_value_unit_bar_and_ok() -> None:
    rows = msgspec.json.decode(report.as_json([at_most("a", 1.5, "us", 2, body=1024)]))
    assert [{key: row[key] for key in ("name", "value", "unit", "bar", "ok")} for row in rows] == [
        {"name": "a", "value": 1.5, "unit": "us", "bar": "<= 2", "ok": True}
    ]
