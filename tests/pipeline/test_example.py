"""What `make run` serves, as it is: photos move by themselves, and Spark recommends a factor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = Path(__file__).parents[2] / "deploy" / "example.toml"
DEADLINE_S = 600
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def sooner(path: Path) -> Path:
    """The example with nothing changed but how long it waits before the first run."""
    text = EXAMPLE.read_text()
    # Snapshots must not be so many that they go before they are read.
    for name, before_ms, ms in (
        ("snapshot_every_ms", 30_000, 15_000),
        ("every_ms", 45_000, 16_000),
    ):
        assert text.count(f"\n{name} = {before_ms}\n") == 1
        text = text.replace(f"\n{name} = {before_ms}\n", f"\n{name} = {ms}\n")
    path.write_text(text)
    return path


def eventually(holds: Callable[[], object], server: Running) -> None:
    """Look again and again: Spark may take minutes where others are at work, too."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert server.process.poll() is None, server.log()
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.2)


def taken(server: Running) -> int:
    """Decay factors of the pipeline that the broker uses."""
    with server.caller() as caller:
        runs: list[dict[str, Any]] = caller.call("GET", "/v1/plans").json["runs"]
    return sum(each["applied"] for each in runs if each["table"] == "rates")


def devices_of_a_photo(server: Running) -> set[str]:
    """Where decisions put one, be it now or before."""
    with server.caller() as caller:
        (photo,) = caller.call("GET", "/v1/queues/example.photos/messages?count=1").json["messages"]
        told = caller.call("GET", f"/v1/messages/{photo['id']}").json
    return {each["device"] for each in told["decisions"]}


def copies(server: Running) -> dict[str, int]:
    with server.caller() as caller:
        devices = caller.call("GET", "/v1/devices").json["devices"]
    return {each["name"]: each["copies"] for each in devices}


def test_the_photos_of_make_run_move_and_a_run_on_spark_recommends_a_factor_and_says_so(
    tmp_path: Path,
) -> None:
    config = sooner(tmp_path / "example.toml")
    data = tmp_path / "data"
    with Running(data, "--config", str(config), "--example", environment=QUICK_JAVA) as server:
        assert "slow" in devices_of_a_photo(server)
        eventually(lambda: copies(server)["slow"] == 0, server)
        eventually(lambda: "The report: " in server.log(), server)
        eventually(lambda: taken(server) == 1, server)
        with server.caller() as caller:
            assert caller.call("GET", "/health/ready").json["pipeline"] == []
        assert server.stop() == 0
    report = data / "lake" / "reports" / "latest.html"
    assert report.exists()
    (told,) = [line for line in server.lines if line.startswith("  report ")]
    assert str(report) in told
    assert f"The report: {report}" in server.log()
