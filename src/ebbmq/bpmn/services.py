"""The script engine that lets service tasks of a process change storage rules.

A service task names an operation and gives its parameters, which are expressions over the data of
the process:

    ebbmq/put_rule      id, weight, device; when and enabled where needed
    ebbmq/enable_rule   id
    ebbmq/disable_rule  id
    ebbmq/remove_rule   id; a rule that is not there is as good as removed
    ebbmq/list_rules

The result is what the verb returned, in the variable the task names. A refusal ends the task with
an error that says what to do. A process may be repeated from its last task: every operation may be
carried out twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from SpiffWorkflow.bpmn.exceptions import WorkflowTaskException
from SpiffWorkflow.bpmn.script_engine import PythonScriptEngine
from typing_extensions import override

from ebbmq.errors import EbbError, InvalidSpec, UnknownRule
from ebbmq.policy.rules.spec import RuleSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.client.client import Client
    from ebbmq.node.broker import Broker

PREFIX: Final = "ebbmq/"


class RuleServices(PythonScriptEngine):  # type: ignore[misc]  # it has no types
    """Carries out the service tasks of a process that are about rules."""

    def __init__(self, broker: Broker | Client, environment: Any = None) -> None:
        """Makes one.

        Args:
            broker: whose rules are changed: a broker of this process, or a client of a server.
            environment: what evaluates the expressions of the process; SpiffWorkflow's own unless
                given, which runs Python: only for processes you trust.
        """
        super().__init__(environment)
        self._broker = broker
        self._operations: dict[str, Callable[[dict[str, Any]], object]] = {
            "put_rule": self._put,
            "enable_rule": lambda given: broker.enable_rule(_id(given)),
            "disable_rule": lambda given: broker.enable_rule(_id(given), enabled=False),
            "remove_rule": self._remove,
            "list_rules": lambda given: broker.rules(),
        }

    @override
    def call_service(self, task: Any, **kwargs: Any) -> str:
        """Carry out an operation of ours; others are the environment's, as ever."""
        name = str(kwargs.get("operation_name", ""))
        if not name.startswith(PREFIX):
            told: str = self.environment.call_service(task.data, **kwargs)
            return told
        given = {key: each["value"] for key, each in kwargs.get("operation_params", {}).items()}
        try:
            operation = self._operations.get(name.removeprefix(PREFIX))
            if operation is None:
                known = ", ".join(PREFIX + each for each in self._operations)
                raise InvalidSpec(f"there is no operation {name!r:.80}", f"use one of {known}")
            return msgspec.json.encode(operation(given)).decode()
        except EbbError as error:
            raise WorkflowTaskException(str(error), task=task, exception=error) from error

    def _put(self, given: dict[str, Any]) -> object:
        fields = RuleSpec.__struct_fields__
        unknown = [name for name in given if name not in fields]
        lacking = [name for name in ("id", "weight", "device") if name not in given]
        if unknown or lacking:
            what = f"{unknown[0]!r} is not known" if unknown else f"{lacking[0]!r} is missing"
            raise InvalidSpec(f"parameter {what}", f"a rule has {', '.join(fields)}")
        return self._broker.put_rule(RuleSpec(**given))

    def _remove(self, given: dict[str, Any]) -> object:
        try:
            self._broker.remove_rule(_id(given))
        except UnknownRule:
            return {"removed": False}
        return {"removed": True}


def _id(given: dict[str, Any]) -> str:
    if set(given) != {"id"}:
        raise InvalidSpec(f"parameters are {sorted(given)}", "give the id of a rule, and no more")
    return str(given["id"])
