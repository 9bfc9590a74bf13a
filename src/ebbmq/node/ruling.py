"""The rules of a node: those of its configuration, and those added to it while it runs.

Theory of operation. Every change makes the next version of all rules. Added rules are in the
journal: RULES facts are steps (what changed with a version) and, said again before the segment of
an older one goes, the whole. What is known already is passed over when it is read, so it does not
matter how much of the journal a checkpoint repeats.

Who chooses devices does not wait for who changes rules. A change is put on record under the
engine's lock, then made ready outside of it, which with thousands of rules takes a while, and
swapped in as one: the chooser in force is never changed, only replaced.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.errors import UnknownRule
from ebbmq.node.devices.settings import LOG
from ebbmq.node.log import log
from ebbmq.policy.rules.choose import Chooser, Strategy
from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.properties import DeviceState, States
from ebbmq.policy.rules.rule import Rule, RuleSet, check_devices, rule_of
from ebbmq.policy.rules.spec import RuleChange, RuleSpec, RulesView, RuleView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ebbmq.node.config import Config
    from ebbmq.policy.rules.choose import View
    from ebbmq.policy.rules.spec import Source

#: The node's own log, which is all there is where no device is configured.
ALONE: Final[States] = {LOG: DeviceState(tier=LOG, failure_domain=LOG)}
_SHOWN_MAX: Final = 10


class Configured(NamedTuple):
    """What the configuration says about rules."""

    rules: dict[str, Rule]
    strategy: Strategy
    #: Every device there is; None where none is configured, and any may be named.
    devices: frozenset[str] | None
    #: The same for the same rules and strategy; empty without any.
    fingerprint: str


class Step(msgspec.Struct, frozen=True, tag="step"):
    """What changed with a version."""

    version: int
    put: list[RuleView]
    removed: list[str]
    changes: list[RuleChange]


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """Everything as of a version."""

    version: int
    added: list[RuleView]
    changes: list[RuleChange]
    #: Of the configuration's rules that are counted in, and the version they came with.
    fingerprint: str = ""
    configured_version: int = 0


encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Step | Whole).decode


class Rules:
    """All rules of a node, and the chooser in force; changed with the engine's lock held."""

    def __init__(self, config: Config) -> None:
        """Reads the rules of the configuration.

        Raises:
            InvalidRule: one of them is not usable; the detail names it.
        """
        self.configured = read_configured(config)
        self.version = 0
        #: By id: what was added while the node ran, which the journal has.
        self.added: dict[str, RuleView] = {}
        self.changes: deque[RuleChange] = deque(maxlen=limits.RULE_CHANGES_MAX)
        self.fingerprint = ""
        self.configured_version = 0
        #: Segments that hold what is known of added rules; None until this run has said it.
        self.segments: set[int] | None = None
        #: About what it takes to say it all again.
        self.stored_bytes = 0
        self._read: dict[str, Rule] = {}
        self._building = threading.Lock()
        self._wanted = RuleSet(), Strategy()
        self._ready = self._wanted
        self._view = Chooser(*self._wanted).view(ALONE)
        self._chooser = self._view.chooser
        #: Whether a rule in force asks how often a message is read, so that it has to be counted.
        self.ask_reads = False

    # What is in force

    def view(self, states: States) -> View:
        """What is chosen while devices are in these states: the same view for the same mapping."""
        view, chooser = self._view, self._chooser
        if view.states is not states or view.chooser is not chooser:
            self._view = view = chooser.view(states)
        return view

    def make_ready(self) -> None:
        """Put the rules as they are by now in force; the engine's lock need not be held."""
        with self._building:
            wanted = self._wanted
            if wanted is not self._ready:
                chooser = Chooser(*wanted)
                # Its tables are made now, so that no publish waits for them.
                self.ask_reads = chooser.alike.asks("access_rate")
                self._chooser, self._ready = chooser, wanted

    def what_if(self, states: States) -> View:
        """What would be chosen in other states; the view in force stays as it is."""
        return self._chooser.view(states)

    def is_empty(self) -> bool:
        """Whether no rule is in force."""
        return not self._chooser.devices

    # What there is

    def listed(self) -> RulesView:
        """Every rule, by id; one of the configuration hides an added one of its id."""
        names = sorted(self.added.keys() | self.configured.rules.keys())
        rules = [self.require(name) for name in names]
        return RulesView(self.version, strategy_name(self.configured.strategy), rules)

    def require(self, rule_id: str) -> RuleView:
        """The rule of an id.

        Raises:
            UnknownRule: there is none; the nearest is named.
        """
        configured = self.configured.rules.get(rule_id)
        if configured is not None:
            return view_of(configured, "configuration", self.configured_version)
        found = self.added.get(rule_id)
        if found is None:
            near = meant(str(rule_id), (*self.added, *self.configured.rules))
            raise UnknownRule(
                f"there is no rule {rule_id!r:.80}",
                f"did you mean {near!r}?" if near else "list the rules to see their ids",
            )
        return found

    def set_added(self, put: Iterable[tuple[RuleView, Rule]], removed: Iterable[str]) -> None:
        """Have these rules from the next `make_ready` on, and no longer those."""
        for name in removed:
            del self.added[name]
            self._read.pop(name, None)
        for view, rule in put:
            self.added[view.id] = view
            self._read[view.id] = rule
        self._want()

    def configure(self, configured: Configured) -> None:
        """Have these rules of the configuration from the next `make_ready` on."""
        self.configured = configured
        hidden = sorted(self.added.keys() & configured.rules.keys())
        if hidden:
            log.warning(
                "rules_hidden",
                rules=hidden[:_SHOWN_MAX],
                detail="the configuration has rules of the same ids, which count instead",
            )
        self._want()

    def _want(self) -> None:
        rules = {**self._read, **self.configured.rules}
        self._wanted = RuleSet(rules, self.version), self.configured.strategy

    # The record

    def restore(self, payload: bytes | memoryview) -> None:
        """Make true what a RULES fact or a checkpoint says, unless it is known already."""
        told = _decode(payload)
        if isinstance(told, Whole):
            if told.version >= self.version:
                self.added = {view.id: view for view in told.added}
                self.changes = deque(told.changes, maxlen=limits.RULE_CHANGES_MAX)
                self.fingerprint = told.fingerprint
                self.configured_version = told.configured_version
                self.version = told.version
        elif told.version > self.version:
            for name in told.removed:
                self.added.pop(name, None)
            self.added.update((view.id, view) for view in told.put)
            self.changes.extend(told.changes)
            self.version = told.version

    def start(self, wall_ms: int) -> None:
        """Read what was restored, count in what the configuration says, and put it in force."""
        for view in self.added.values():
            try:
                self._read[view.id] = rule_of(spec_of(view))
            except InvalidRule as error:
                log.error("rule_not_in_force", detail=error.detail, action=error.action)
        self._warn_of_devices()
        if self.fingerprint != self.configured.fingerprint:
            self.note_configured(self.configured, wall_ms)
        self.configure(self.configured)
        self.make_ready()

    def note_configured(self, configured: Configured, wall_ms: int) -> None:
        """Make the next version of what the configuration says."""
        self.version += 1
        self.configured_version = self.version
        self.fingerprint = configured.fingerprint
        told = f"{len(configured.rules)} rules, {strategy_name(configured.strategy)}"
        self.changes.append(
            RuleChange(self.version, wall_ms, "configuration", "configured", rule="", after=told)
        )

    def _warn_of_devices(self) -> None:
        known = self.configured.devices
        lost = [
            name
            for name, rule in self._read.items()
            if known is not None and rule.devices() - known
        ]
        if lost:
            log.warning(
                "rules_without_device",
                rules=sorted(lost)[:_SHOWN_MAX],
                count=len(lost),
                action="configure their devices again, or remove them with `ebbmq rules remove`",
            )

    def whole(self) -> bytes:
        """All that is not in the configuration, as `restore` takes it."""
        return encode(
            Whole(
                self.version,
                list(self.added.values()),
                list(self.changes),
                self.fingerprint,
                self.configured_version,
            )
        )


def read_configured(config: Config, before: Configured | None = None) -> Configured:
    """What a configuration says about rules.

    With what it said before, rules that stand in it as they did are not read again, and devices
    are those there were: they are opened at the start.

    Raises:
        InvalidRule: a rule is not usable; the detail names it.
    """
    known = before.rules if before else {}
    found: dict[str, Rule] = {}
    for spec in config.rules:
        rule = known.get(spec.id)
        if rule is None or spec_of(view_of(rule, "configuration", 0)) != spec:
            rule = rule_of(spec)
        if rule.id in found:
            raise InvalidRule(f"there are two rules {rule.id!r}", "give one of them another id")
        found[rule.id] = rule
    devices = frozenset((LOG, *config.devices)) if config.devices else None
    if before is not None:
        devices = before.devices
    if devices is not None:
        check_devices(found.values(), devices)
    strategy = config.placement.choice()
    told = [strategy_name(strategy), *(f"{r.id}: {r.text} {r.enabled}" for r in found.values())]
    plain = not found and strategy == Strategy()
    fingerprint = "" if plain else hashlib.sha256("\n".join(told).encode()).hexdigest()
    return Configured(RuleSet.of(found.values()).rules, strategy, devices, fingerprint)


def fact_of(payload: bytes) -> fact.Fact:
    """What is known, or what changed, as a RULES fact."""
    return fact.Fact(fact.RULES, 0, 0, 0, [payload])


def view_of(rule: Rule, source: Source, version: int) -> RuleView:
    """A rule as it is shown."""
    return RuleView(
        rule.id, rule.weight, rule.device, rule.condition_text, rule.enabled, source, version
    )


def spec_of(view: RuleView) -> RuleSpec:
    """What was asked for."""
    return RuleSpec(view.id, view.weight, view.device, view.when, view.enabled)


def strategy_name(strategy: Strategy) -> str:
    """How rules become a choice, for people."""
    if strategy.kind != "aggregate":
        return strategy.kind
    return f"aggregate ({strategy.combine})"
