"""Run the process of `sale.bpmn` against a server: a rule for as long as a sale is on.

pip install 'ebbmq[bpmn,client]'
ebbmq serve --data /tmp/sale --config examples/business_process/ebbmq.toml
python examples/business_process/run.py --sale spring
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from SpiffWorkflow.bpmn import BpmnWorkflow
from SpiffWorkflow.spiff.parser import SpiffBpmnParser
from SpiffWorkflow.util.task import TaskState

from ebbmq import Client
from ebbmq.bpmn.services import RuleServices

PROCESS = Path(__file__).with_name("sale.bpmn")


def load(client: Client, sale: str) -> Any:
    """The process, ready to run, with the name of the sale as its data."""
    parser = SpiffBpmnParser()
    parser.add_bpmn_file(str(PROCESS))
    workflow = BpmnWorkflow(parser.get_spec("sale"), script_engine=RuleServices(client))
    workflow.get_next_task(state=TaskState.READY).data["sale"] = sale
    return workflow


def waiting_for(workflow: Any) -> Any:
    """The task somebody has to finish by hand, if there is one."""
    return workflow.get_next_task(state=TaskState.READY, manual=True)


def main() -> None:
    """Run the process, asking for what it asks for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", default="http://127.0.0.1:8080")
    options.add_argument("--token")
    options.add_argument("--sale", default="spring")
    given = options.parse_args()
    with Client(given.url, token=given.token) as client:
        workflow = load(client, given.sale)
        workflow.do_engine_steps()
        while (task := waiting_for(workflow)) is not None:
            rules = ", ".join(view.id for view in client.rules().rules)
            input(f"{task.task_spec.bpmn_name}; rules: {rules}. Press Enter when it is over. ")
            task.run()
            workflow.do_engine_steps()
        left = ", ".join(view.id for view in client.rules().rules)
        print(f"done; rules: {left or 'none'}")  # noqa: T201


if __name__ == "__main__":
    main()
