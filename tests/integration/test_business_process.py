"""A business process adds and removes storage rules of a real server."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from SpiffWorkflow.bpmn import BpmnWorkflow
from SpiffWorkflow.bpmn.exceptions import WorkflowTaskException
from SpiffWorkflow.spiff.parser import SpiffBpmnParser

from ebbmq import Broker, Client, RuleSpec
from ebbmq.bpmn.services import RuleServices
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "business_process"

PROCESS = """\
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:spiffworkflow="http://spiffworkflow.org/bpmn/schema/1.0/core"
    id="d" targetNamespace="t">
  <bpmn:process id="p" isExecutable="true">
    <bpmn:startEvent id="s"><bpmn:outgoing>a</bpmn:outgoing></bpmn:startEvent>
    <bpmn:sequenceFlow id="a" sourceRef="s" targetRef="t"/>
    <bpmn:serviceTask id="t" name="t">
      <bpmn:extensionElements>
        <spiffworkflow:serviceTaskOperator id="{operation}" resultVariable="result">
          <spiffworkflow:parameters>{parameters}</spiffworkflow:parameters>
        </spiffworkflow:serviceTaskOperator>
      </bpmn:extensionElements>
      <bpmn:incoming>a</bpmn:incoming><bpmn:outgoing>b</bpmn:outgoing>
    </bpmn:serviceTask>
    <bpmn:sequenceFlow id="b" sourceRef="t" targetRef="e"/>
    <bpmn:endEvent id="e"><bpmn:incoming>b</bpmn:incoming></bpmn:endEvent>
  </bpmn:process>
</bpmn:definitions>
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("process") / "data"
    with Running(data, "--config", str(EXAMPLE / "ebbmq.toml")) as running:
        yield running


def perform(broker: Any, tmp_path: Path, operation: str, **parameters: Any) -> Any:
    """Run a process of one service task and return its result."""
    told = "".join(
        f'<spiffworkflow:parameter id="{name}" type="any" value="{value!r}"/>'.replace(
            "'", "&apos;"
        )
        for name, value in parameters.items()
    )
    file = tmp_path / "process.bpmn"
    file.write_text(PROCESS.format(operation=operation, parameters=told))
    parser = SpiffBpmnParser()
    parser.add_bpmn_file(str(file))
    workflow = BpmnWorkflow(parser.get_spec("p"), script_engine=RuleServices(broker))
    workflow.do_engine_steps()
    assert workflow.completed
    return workflow.data["result"]


def test_the_example_has_a_rule_for_as_long_as_its_sale_is_on(server: Running) -> None:
    example = runpy.run_path(str(EXAMPLE / "run.py"))
    with Client(server.url) as client:
        workflow = example["load"](client, "spring")
        workflow.do_engine_steps()
        [rule] = client.rules().rules
        assert (rule.id, rule.device, rule.weight) == ("sale-spring", "fast", 90.0)
        assert rule.when == 'HEADER("campaign") == spring'
        example["waiting_for"](workflow).run()
        workflow.do_engine_steps()
        assert workflow.completed
        assert client.rules().rules == []
        assert [change.what for change in client.rule_changes()[-2:]] == ["added", "removed"]


def test_the_example_runs_as_a_program(server: Running) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--url", server.url, "--sale", "autumn"],
        input="\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "The sale is on; rules: sale-autumn." in ran.stdout
    assert ran.stdout.rstrip().endswith("done; rules: none")


def test_every_operation_may_be_carried_out_twice(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        rule = {"id": "a", "weight": 5, "device": "hdd", "when": "SIZE > 3"}
        for _ in range(2):
            put = perform(broker, tmp_path, "ebbmq/put_rule", **rule)
            assert (put["id"], put["version"]) == ("a", 1)
        for _ in range(2):
            assert not perform(broker, tmp_path, "ebbmq/disable_rule", id="a")["enabled"]
        assert perform(broker, tmp_path, "ebbmq/enable_rule", id="a")["enabled"]
        assert perform(broker, tmp_path, "ebbmq/list_rules")["version"] == 3
        assert perform(broker, tmp_path, "ebbmq/remove_rule", id="a") == {"removed": True}
        assert perform(broker, tmp_path, "ebbmq/remove_rule", id="a") == {"removed": False}


@pytest.mark.parametrize(
    ("operation", "parameters", "said"),
    [
        ("ebbmq/put_rule", {"id": "b", "weight": 5, "device": "d", "when": "SZE > 1"}, "SZE"),
        ("ebbmq/put_rule", {"id": "b", "weight": 5}, "'device' is missing"),
        ("ebbmq/put_rule", {"id": "b", "weight": 5, "device": "d", "wehn": ""}, "'wehn'"),
        ("ebbmq/enable_rule", {"id": "none"}, "there is no rule 'none'"),
        ("ebbmq/enable_rule", {"name": "a"}, "name"),
        ("ebbmq/move_rule", {"id": "a"}, "there is no operation 'ebbmq/move_rule'"),
    ],
)
def test_a_refusal_ends_the_task_and_says_why(
    tmp_path: Path, operation: str, parameters: dict[str, Any], said: str
) -> None:
    with Broker.open(tmp_path / "data") as broker:
        broker.put_rule(RuleSpec("a", 1, "hdd"))
        with pytest.raises(WorkflowTaskException) as refused:
            perform(broker, tmp_path, operation, **parameters)
        assert said in str(refused.value)
        assert [view.id for view in broker.rules().rules] == ["a"]
