"""The verbs about storage rules that the awaitable broker has."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ebbmq.node.broker import Broker
    from ebbmq.node.rule_changes import Others
    from ebbmq.policy.rules.explain import Explanation
    from ebbmq.policy.rules.properties import Properties
    from ebbmq.policy.rules.spec import RuleChange, RuleSpec, RulesView, RuleView


class AsyncRuleVerbs:
    """RuleVerbs, awaited: reading thousands of rules is nothing for the loop's thread."""

    _broker: Broker

    async def rules(self) -> RulesView:
        """See Broker.rules."""
        return await asyncio.to_thread(self._broker.rules)

    async def rule(self, rule_id: str) -> RuleView:
        """See Broker.rule."""
        return self._broker.rule(rule_id)

    async def put_rule(
        self,
        rule: RuleSpec,
        *,
        version: int | None = None,
        new: bool = False,
        who: str | None = None,
    ) -> RuleView:
        """See Broker.put_rule."""
        verb = partial(self._broker.put_rule, rule, version=version, new=new, who=who)
        return await asyncio.to_thread(verb)

    async def put_rules(
        self, rules: Iterable[RuleSpec], *, others: Others = "keep", who: str | None = None
    ) -> RulesView:
        """See Broker.put_rules."""
        verb = partial(self._broker.put_rules, rules, others=others, who=who)
        return await asyncio.to_thread(verb)

    async def enable_rule(
        self,
        rule_id: str,
        *,
        enabled: bool = True,
        version: int | None = None,
        who: str | None = None,
    ) -> RuleView:
        """See Broker.enable_rule."""
        verb = partial(self._broker.enable_rule, rule_id, enabled=enabled, version=version, who=who)
        return await asyncio.to_thread(verb)

    async def remove_rule(
        self, rule_id: str, *, version: int | None = None, who: str | None = None
    ) -> None:
        """See Broker.remove_rule."""
        verb = partial(self._broker.remove_rule, rule_id, version=version, who=who)
        await asyncio.to_thread(verb)

    async def apply_rules(self, progress: Callable[[int, int], None] | None = None) -> int:
        """See Broker.apply_rules; `progress` is called in another thread."""
        return await asyncio.to_thread(self._broker.apply_rules, progress)

    async def rule_changes(self) -> list[RuleChange]:
        """See Broker.rule_changes."""
        return self._broker.rule_changes()

    async def explain_rules(
        self,
        message: Properties | None = None,
        *,
        durable: bool = True,
        replicas: int = 1,
        default: str | None = None,
        statuses: Mapping[str, float] | None = None,
    ) -> Explanation:
        """See Broker.explain_rules."""
        verb = partial(
            self._broker.explain_rules,
            message,
            durable=durable,
            replicas=replicas,
            default=default,
            statuses=statuses,
        )
        return await asyncio.to_thread(verb)
