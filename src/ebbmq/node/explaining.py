"""Why a device is chosen for a message by the rules of a node, as they and its devices are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ebbmq.node.ruling import ALONE
from ebbmq.policy.rules.explain import explain
from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.properties import DeviceState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbmq.node.engine import Engine
    from ebbmq.policy.rules.explain import Explanation
    from ebbmq.policy.rules.properties import Properties, States


def explain_rules(
    engine: Engine,
    message: Properties,
    *,
    durable: bool = True,
    replicas: int = 1,
    default: str | None = None,
    statuses: Mapping[str, float] | None = None,
) -> Explanation:
    """Explain which devices a message would be kept on.

    Raises:
        InvalidRule: there is no device of a name that is given.
    """
    engine.check_open()
    states = states_of(engine)
    for name in (*(statuses or {}), *((default,) if default else ())):
        _check_device(engine, name)
    if statuses:
        # Without devices anything may be asked; a rule's device is then there for the question.
        states = {
            **states,
            **{
                name: msgspec.structs.replace(states.get(name, DeviceState()), status=status)
                for name, status in statuses.items()
            },
        }
    view = engine.rules.what_if(states)
    return explain(view, message, durable=durable, replicas=replicas, default=default)


def states_of(engine: Engine) -> States:
    """The devices of a node as they are now."""
    return ALONE if engine.devices is None else engine.devices.states


def _check_device(engine: Engine, name: str) -> None:
    known = engine.rules.configured.devices
    if known is not None and name not in known:
        near = meant(name, known)
        raise InvalidRule(
            f"there is no device {name!r:.80}",
            f"did you mean {near!r}?" if near else f"devices are {', '.join(sorted(known))}",
        )
