"""Why a device is chosen for a message by the rules of a node, as they and its devices are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ebbmq.core.copies import LOG
from ebbmq.node.ruling import ALONE
from ebbmq.policy.placement import Terms
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
    """Explain which devices a message would be kept on if it were published now.

    Raises:
        InvalidRule: there is no device of a name that is given.
    """
    with engine.lock:
        engine.check_open()
        states = _states(engine)
        terms = _terms(engine, message.queue)
        declared = engine.catalog.queues.get(message.queue or "")
        consumer = None if declared is None else declared.consumer
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
    if default is not None:
        terms = msgspec.structs.replace(terms, default=default)
    asked = _as_published(engine, message, durable=durable, consumer=consumer)
    return explain(view, asked, terms=terms, durable=durable, replicas=replicas)


def _states(engine: Engine) -> States:
    """The devices of a node as a publish sees them now."""
    return ALONE if engine.devices is None else engine.keeping.view().states


def _terms(engine: Engine, queue: str | None) -> Terms:
    """What a queue asks of placement; one that is not declared asks for nothing."""
    declared = engine.catalog.queues.get(queue) if queue is not None else None
    if declared is None:
        return Terms(default=LOG)
    return engine.keeping.placing.terms(declared.spec)


def _as_published(
    engine: Engine, message: Properties, *, durable: bool, consumer: str | None
) -> Properties:
    """The message with what every published one has, whether its publisher says it or not."""
    client = next(
        (each for each in (message.client_id, message.producer) if each is not None),
        engine.config.client,
    )
    return msgspec.structs.replace(
        message,
        client_id=client if message.client_id is None else message.client_id,
        producer=client if message.producer is None else message.producer,
        consumer=consumer if message.consumer is None else message.consumer,
        qos=message.qos or ("synced" if durable else "memory"),
    )


def _check_device(engine: Engine, name: str) -> None:
    known = engine.rules.configured.devices
    if known is not None and name not in known:
        near = meant(name, known)
        raise InvalidRule(
            f"there is no device {name!r:.80}",
            f"did you mean {near!r}?" if near else f"devices are {', '.join(sorted(known))}",
        )
