"""The verbs about storage rules of both clients: see ebbmq.node.rule_verbs for what they mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from ebbmq.client import rule_calls, scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Literal

    from ebbmq.client.scripts import Script
    from ebbmq.policy.rules.explain import Explanation
    from ebbmq.policy.rules.properties import Properties
    from ebbmq.policy.rules.spec import RuleChange, RuleSpec, RulesView, RuleView

T = TypeVar("T")


class RuleVerbs(ABC):
    """For threads."""

    @abstractmethod
    def _play(self, script: Script[T]) -> T:
        """Do what a script says."""

    def rules(self) -> RulesView:
        """See Broker.rules."""
        return self._play(scripts.one(rule_calls.every()))

    def rule(self, rule_id: str) -> RuleView:
        """See Broker.rule."""
        return self._play(scripts.one(rule_calls.one(rule_id)))

    def put_rule(
        self, rule: RuleSpec, *, version: int | None = None, new: bool = False
    ) -> RuleView:
        """See Broker.put_rule; the record says the user whose token this client has."""
        return self._play(scripts.one(rule_calls.put(rule, version, new=new)))

    def put_rules(
        self, rules: Iterable[RuleSpec], *, others: Literal["keep", "remove"] = "keep"
    ) -> RulesView:
        """See Broker.put_rules."""
        return self._play(scripts.one(rule_calls.put_all(rules, others)))

    def enable_rule(
        self, rule_id: str, *, enabled: bool = True, version: int | None = None
    ) -> RuleView:
        """See Broker.enable_rule."""
        return self._play(scripts.one(rule_calls.enable(rule_id, version, enabled=enabled)))

    def remove_rule(self, rule_id: str, *, version: int | None = None) -> None:
        """See Broker.remove_rule."""
        self._play(scripts.one(rule_calls.remove(rule_id, version)))

    def apply_rules(self, progress: Callable[[int, int], None] | None = None) -> int:
        """See Broker.apply_rules; the server tells no more than the end."""
        moving = self._play(scripts.one(rule_calls.apply(scripts.LONG_WORK_MS)))
        if progress is not None:
            progress(moving, moving)
        return moving

    def rule_changes(self) -> list[RuleChange]:
        """See Broker.rule_changes."""
        return self._play(scripts.one(rule_calls.audit()))

    def explain_rules(
        self,
        message: Properties | None = None,
        *,
        durable: bool = True,
        replicas: int = 1,
        default: str | None = None,
        statuses: Mapping[str, float] | None = None,
    ) -> Explanation:
        """See Broker.explain_rules."""
        asked = rule_calls.explain(
            message,
            durable=durable,
            replicas=replicas,
            default=default,
            statuses=dict(statuses or {}),
        )
        return self._play(scripts.one(asked))


class AsyncRuleVerbs(ABC):
    """Awaited."""

    @abstractmethod
    async def _play(self, script: Script[T]) -> T:
        """Do what a script says."""

    async def rules(self) -> RulesView:
        """See Broker.rules."""
        return await self._play(scripts.one(rule_calls.every()))

    async def rule(self, rule_id: str) -> RuleView:
        """See Broker.rule."""
        return await self._play(scripts.one(rule_calls.one(rule_id)))

    async def put_rule(
        self, rule: RuleSpec, *, version: int | None = None, new: bool = False
    ) -> RuleView:
        """See Broker.put_rule; the record says the user whose token this client has."""
        return await self._play(scripts.one(rule_calls.put(rule, version, new=new)))

    async def put_rules(
        self, rules: Iterable[RuleSpec], *, others: Literal["keep", "remove"] = "keep"
    ) -> RulesView:
        """See Broker.put_rules."""
        return await self._play(scripts.one(rule_calls.put_all(rules, others)))

    async def enable_rule(
        self, rule_id: str, *, enabled: bool = True, version: int | None = None
    ) -> RuleView:
        """See Broker.enable_rule."""
        return await self._play(scripts.one(rule_calls.enable(rule_id, version, enabled=enabled)))

    async def remove_rule(self, rule_id: str, *, version: int | None = None) -> None:
        """See Broker.remove_rule."""
        await self._play(scripts.one(rule_calls.remove(rule_id, version)))

    async def apply_rules(self, progress: Callable[[int, int], None] | None = None) -> int:
        """See Broker.apply_rules; the server tells no more than the end."""
        moving = await self._play(scripts.one(rule_calls.apply(scripts.LONG_WORK_MS)))
        if progress is not None:
            progress(moving, moving)
        return moving

    async def rule_changes(self) -> list[RuleChange]:
        """See Broker.rule_changes."""
        return await self._play(scripts.one(rule_calls.audit()))

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
        asked = rule_calls.explain(
            message,
            durable=durable,
            replicas=replicas,
            default=default,
            statuses=dict(statuses or {}),
        )
        return await self._play(scripts.one(asked))
