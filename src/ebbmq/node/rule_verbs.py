"""The verbs about storage rules that the broker has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ebbmq import limits
from ebbmq.errors import InvalidSpec
from ebbmq.node import rule_changes
from ebbmq.node.explaining import explain_rules
from ebbmq.node.keeping.verbs import apply_rules
from ebbmq.node.rule_changes import Terms
from ebbmq.plain import is_text, plain
from ebbmq.policy.rules.properties import Properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ebbmq.node.engine import Engine
    from ebbmq.node.rule_changes import Others
    from ebbmq.policy.rules.explain import Explanation
    from ebbmq.policy.rules.spec import RuleChange, RuleSpec, RulesView, RuleView


class RuleVerbs:
    """Changes return once they are in force and survive a power cut."""

    engine: Engine

    def rules(self) -> RulesView:
        """Every rule, of the configuration and added, with the version of them all."""
        with self.engine.lock:
            self.engine.check_open()
            found = self.engine.rules.listed()
            placed = self.engine.keeping.placing.placed
            counts = {rule.id: placed[rule.id] for rule in found.rules if rule.id in placed}
        return replace(found, placed=counts)

    def rule(self, rule_id: str) -> RuleView:
        """One rule.

        Raises:
            UnknownRule: there is none of that id.
        """
        with self.engine.lock:
            self.engine.check_open()
            return self.engine.rules.require(rule_id)

    def put_rule(
        self,
        rule: RuleSpec,
        *,
        version: int | None = None,
        new: bool = False,
        who: str | None = None,
    ) -> RuleView:
        """Add a rule, or change the one of its id; messages that are stored stay where they are.

        Args:
            rule: the rule.
            version: refuse if the rule changed after this version of all rules.
            new: refuse if there is a rule of its id.
            who: what the record says of who did it; None takes `client` of the configuration.

        Raises:
            InvalidSpec: code `invalid_rule`; the rule is not usable.
            RuleConflict: it is the configuration's, is there already, or changed since.
        """
        terms = Terms(self._who(who), version, only_new=new)
        views, position = rule_changes.put(self.engine, [rule], terms)
        self.engine.journal.wait("synced", position)
        return views[0]

    def put_rules(
        self, rules: Iterable[RuleSpec], *, others: Others = "keep", who: str | None = None
    ) -> RulesView:
        """Add or change rules, all of them or none.

        Args:
            rules: the rules.
            others: what becomes of other rules that were added: `keep` or `remove` them.
            who: see put_rule.
        """
        _, position = rule_changes.put(self.engine, list(rules), Terms(self._who(who)), others)
        self.engine.journal.wait("synced", position)
        return self.rules()

    def enable_rule(
        self,
        rule_id: str,
        *,
        enabled: bool = True,
        version: int | None = None,
        who: str | None = None,
    ) -> RuleView:
        """Switch a rule on, or off; twice is as once.

        Raises:
            UnknownRule: there is none of that id.
        """
        terms = Terms(self._who(who), version)
        view, position = rule_changes.set_enabled(self.engine, rule_id, terms, enabled=enabled)
        self.engine.journal.wait("synced", position)
        return view

    def remove_rule(
        self, rule_id: str, *, version: int | None = None, who: str | None = None
    ) -> None:
        """Remove a rule that was added.

        Raises:
            UnknownRule: there is none of that id.
            RuleConflict: it is the configuration's, or changed since.
        """
        position = rule_changes.remove(self.engine, [rule_id], Terms(self._who(who), version))
        self.engine.journal.wait("synced", position)

    def apply_rules(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Ask the rules again for every message that is stored, and move those kept elsewhere.

        Without it a change of rules counts for what is published from then on. Returns how many
        messages are to be moved; that goes on in the background.

        Args:
            progress: told how many messages were looked at, of how many.

        Raises:
            InvalidSpec: there is no device but the node's own log.
        """
        return apply_rules(self.engine, progress)

    def rule_changes(self) -> list[RuleChange]:
        """Who changed which rule, and when, newest last; the last limits.RULE_CHANGES_MAX."""
        with self.engine.lock:
            self.engine.check_open()
            return list(self.engine.rules.changes)

    def explain_rules(
        self,
        message: Properties | None = None,
        *,
        durable: bool = True,
        replicas: int = 1,
        default: str | None = None,
        statuses: Mapping[str, float] | None = None,
    ) -> Explanation:
        """Say which devices a message would be kept on, and why each other one would not.

        Args:
            message: the message as rules see it; the terms are those of its queue, if declared.
            durable: whether it must be on a durable device.
            replicas: how many copies its publisher asks for.
            default: the device where no rule is true; None is the log.
            statuses: statuses of devices to be used instead of those that are measured.
        """
        return explain_rules(
            self.engine,
            message or Properties(),
            durable=durable,
            replicas=replicas,
            default=default,
            statuses=statuses,
        )

    def _who(self, who: str | None) -> str:
        """Who changes rules, as the record has it.

        Raises:
            InvalidSpec: `who` cannot be written down.
        """
        if who is None:
            return self.engine.config.client
        told: str = plain(who)
        if not is_text(told) or len(told) > limits.NAME_CHARS_MAX:
            raise InvalidSpec(
                f"who is {told!a:.80}",
                f"use a string of at most {limits.NAME_CHARS_MAX} characters",
            )
        return told
