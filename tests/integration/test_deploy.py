"""What starts and watches this server works with it: make, the unit, the alert rules."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebbmq import Message
from ebbmq.cli.main import cli
from ebbmq.node.config import Config, HttpConfig
from tests.served import Served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "ebbmq.service"
RULES = DEPLOY / "ebbmq.rules.yml"


def needs(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    tool = needs("systemd-analyze")
    here = str(Path(sys.executable).parent)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/ebbmq/bin", here))
    done = run(tool, "verify", str(copy))
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (told, done.returncode) == ([], 0), done.stderr


def test_the_unit_starts_the_server_with_options_it_has(unit: ConfigParser) -> None:
    _, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    with cli.commands[command].make_context(command, list(arguments)) as context:
        assert context.params["file"] == Path("/etc/ebbmq/ebbmq.toml")


def test_the_unit_leaves_time_to_drain_and_files_for_connections(unit: ConfigParser) -> None:
    assert int(unit["Service"]["TimeoutStopSec"]) * 1_000 > 2 * HttpConfig().drain_timeout_ms
    assert int(unit["Service"]["LimitNOFILE"]) > Config().http.connections_max + 1_024


@pytest.mark.parametrize(("words", "port"), [((), 8080), (("PORT=9090",), 9090)])
def test_make_run_serves_on_the_port_it_is_told(words: tuple[str, ...], port: int) -> None:
    done = run(needs("make"), "--dry-run", "--directory", str(ROOT), "run", *words)
    assert f"--http-port {port} " in done.stdout


def test_make_run_on_a_fresh_machine_sets_up_spark_before_it_serves(tmp_path: Path) -> None:
    fresh = f"VENV={tmp_path / 'venv'}"
    done = run(needs("make"), "--dry-run", "--directory", str(ROOT), "run", fresh)
    steps = ("requirements/run.lock", "requirements/spark.lock", "ebbmq serve ")
    assert all(step in done.stdout for step in steps)
    assert sorted(steps, key=done.stdout.index) == list(steps)


def test_make_run_serves_also_where_spark_cannot_be_set_up(tmp_path: Path) -> None:
    ready = tmp_path / "venv"
    (ready / "bin").mkdir(parents=True)
    for name in ("python", "ebbmq"):
        tool = ready / "bin" / name
        ends = 1 if name == "python" else 0
        tool.write_text(f'#!/bin/sh\necho "{name} $1 $2 $3"\nexit {ends}\n')
        tool.chmod(0o755)
    for name in ("compiler.stamp", "run.stamp"):
        (ready / name).touch()
    done = run(needs("make"), "--directory", str(ROOT), "run", f"VENV={ready}")
    assert done.returncode == 0
    assert "Spark could not be set up" in done.stdout
    assert "ebbmq serve --data data" in done.stdout


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


@pytest.fixture(scope="module")
def metric_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with Served(tmp_path_factory.mktemp("deploy") / "data", feed={"lake": "lake"}) as served:
        served.broker.publish("q", Message(b"x"))
        text = served.ask("GET", "/metrics").body.decode()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_figures_that_there_are(
    rule: dict[str, Any], metric_names: set[str]
) -> None:
    asked = set(re.findall(r"\bebbmq_\w+", rule["expr"]))
    assert asked or rule["expr"].startswith("up{")
    assert asked <= metric_names


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]


def test_prometheus_takes_the_rules() -> None:
    tool = needs("promtool")
    done = run(tool, "check", "rules", str(RULES))
    assert done.returncode == 0, done.stderr


FIRING = f"""
rule_files: [{RULES}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'ebbmq_ready{{instance="a"}}'
        values: '1x5 0x60'
      - series: 'ebbmq_device_circuit_open{{instance="a", device="hdd"}}'
        values: '0x5 1x20 0x40'
      - series: 'ebbmq_device_status{{instance="a", device="hdd"}}'
        values: '0x5 -100x20 0x40'
      - series: 'ebbmq_device_used_bytes{{instance="a", device="hdd"}}'
        values: '91x30 10x40'
      - series: 'ebbmq_device_capacity_bytes{{instance="a", device="hdd"}}'
        values: '100x70'
      - series: 'ebbmq_queue_messages_ready{{instance="a", queue="orders"}}'
        values: '5x60'
      - series: 'ebbmq_queue_messages_delivered_total{{instance="a", queue="orders"}}'
        values: '7x60'
      - series: 'ebbmq_queue_paused{{instance="a", queue="orders"}}'
        values: '0x60'
      - series: 'ebbmq_queue_messages_dead_lettered_total{{queue="orders", reason="expired"}}'
        values: '0x20 15x40'
      - series: 'ebbmq_queue_messages_lost_total{{queue="orders", reason="max_attempts"}}'
        values: '0x20 15x40'
    promql_expr_test:
      - expr: count(ALERTS{{alertname="EbbMQNotReady", alertstate="firing"}}) or vector(0)
        eval_time: 4m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQNotReady", alertstate="firing"}})
        eval_time: 8m
        exp_samples: [{{value: 1}}]
      - expr: count(ALERTS{{alertname="EbbMQDeviceAway", alertstate="firing"}}) or vector(0)
        eval_time: 7m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQDeviceAway", device="hdd", alertstate="firing"}})
        eval_time: 10m
        exp_samples: [{{value: 1}}]
      - expr: count(ALERTS{{alertname="EbbMQDeviceAway", alertstate="firing"}}) or vector(0)
        eval_time: 40m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQDeviceFillsUp", device="hdd", alertstate="firing"}})
        eval_time: 15m
        exp_samples: [{{value: 1}}]
      - expr: count(ALERTS{{alertname="EbbMQDeviceStrained", alertstate="firing"}}) or vector(0)
        eval_time: 25m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQNobodyConsumes", queue="orders", alertstate="firing"}})
        eval_time: 25m
        exp_samples: [{{value: 1}}]
      - expr: count(ALERTS{{alertname="EbbMQDeadLetters", alertstate="firing"}}) or vector(0)
        eval_time: 20m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQDeadLetters", reason="expired", alertstate="firing"}})
        eval_time: 25m
        exp_samples: [{{value: 1}}]
      - expr: count(ALERTS{{alertname="EbbMQMessagesLost", alertstate="firing"}}) or vector(0)
        eval_time: 20m
        exp_samples: [{{value: 0}}]
      - expr: count(ALERTS{{alertname="EbbMQMessagesLost", queue="orders", alertstate="firing"}})
        eval_time: 25m
        exp_samples: [{{value: 1}}]
"""


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    tool = needs("promtool")
    story = tmp_path / "story.yml"
    story.write_text(FIRING)
    done = run(tool, "test", "rules", str(story))
    assert done.returncode == 0, done.stdout + done.stderr
