"""Changing the rules of a node: each change is checked, put on record, and then put in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from ebbmq import limits
from ebbmq.errors import Overloaded, RuleConflict, UnknownRule
from ebbmq.node.ruling import (
    Step,
    encode,
    fact_of,
    read_configured,
    spec_of,
    view_of,
)
from ebbmq.policy.rules.faults import InvalidRule
from ebbmq.policy.rules.rule import RULES_MAX, Rule, check_devices, rule_of
from ebbmq.policy.rules.spec import RuleChange, RuleSpec, What
from ebbmq.policy.rules.text import value_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.node.config import Config
    from ebbmq.node.engine import Engine
    from ebbmq.node.ruling import Configured, Rules
    from ebbmq.policy.rules.spec import RuleView

Others = Literal["keep", "remove"]
#: Words that stand where an id could stand in a path.
_RESERVED: Final = ("apply", "audit", "explain")
#: What the record of a change keeps of a rule's text.
_TEXT_CHARS: Final = 500


class Terms(NamedTuple):
    """Who changes rules, and on which condition."""

    who: str
    #: Refuse if a rule changed after this version of all rules.
    version: int | None = None
    #: Refuse to change a rule that is there.
    only_new: bool = False
    #: Refuse to add one that is not.
    only_known: bool = False


def put(
    engine: Engine, specs: Sequence[RuleSpec], terms: Terms, others: Others = "keep"
) -> tuple[list[RuleView], int]:
    """Add rules, or change those of their ids, all or none; returns them and what to wait for.

    Raises:
        InvalidRule: one is not usable, or there would be too many.
        RuleConflict: one is the configuration's, or not as the terms ask.
        Overloaded: code `disk_full`; nothing was changed.
    """
    read = [rule_of(spec) for spec in specs]
    _check_ids(read)
    with engine.lock:
        engine.check_open()
        rules = engine.rules
        for rule in read:
            _check_terms(rules, rule.id, terms)
        if rules.configured.devices is not None:
            check_devices(read, rules.configured.devices)
        fresh = [rule for rule in read if not _is_same(rules, rule)]
        kept = {rule.id for rule in read} if others == "remove" else rules.added.keys()
        removed = [name for name in rules.added if name not in kept]
        position = _note(engine, fresh, removed, terms.who)
        views = [rules.added[rule.id] for rule in read]
    rules.make_ready()
    return views, position


def set_enabled(
    engine: Engine, rule_id: str, terms: Terms, *, enabled: bool
) -> tuple[RuleView, int]:
    """Switch a rule on or off; twice is as once.

    Raises:
        UnknownRule: there is none of that id.
        RuleConflict: it is the configuration's, or not as the terms ask.
    """
    with engine.lock:
        engine.check_open()
        spec = spec_of(_require(engine.rules, rule_id))
    views, position = put(
        engine,
        [msgspec.structs.replace(spec, enabled=enabled)],
        terms._replace(only_known=True),
    )
    return views[0], position


def remove(engine: Engine, ids: Iterable[str], terms: Terms) -> int:
    """Remove rules that were added, all or none; returns what to wait for.

    Raises:
        UnknownRule: there is none of that id.
        RuleConflict: one is the configuration's, or changed since.
    """
    names = list(dict.fromkeys(ids))
    with engine.lock:
        engine.check_open()
        for name in names:
            _require(engine.rules, name)
            _check_terms(engine.rules, name, terms)
        position = _note(engine, [], names, terms.who)
    engine.rules.make_ready()
    return position


def prepare(engine: Engine, config: Config) -> Configured:
    """Read what a configuration says about rules, for `configure`.

    Raises:
        InvalidRule: one of them is not usable; the detail names it.
    """
    return read_configured(config, engine.rules.configured)


def configure(engine: Engine, configured: Configured) -> int:
    """Take over what a configuration says about rules; returns what to wait for.

    Raises:
        Overloaded: code `disk_full`; nothing was changed.
    """
    rules = engine.rules
    with engine.lock:
        engine.check_open()
        engine.admit(rules.stored_bytes)
        if configured.fingerprint != rules.fingerprint:
            rules.note_configured(configured, engine.clock.wall_ms())
            note_rules(engine)
        rules.configure(configured)
        position = engine.journal.position
    rules.make_ready()
    return position


def note_rules(engine: Engine) -> None:
    """Append all that is known of rules, if there ever was one (the lock is held)."""
    rules = engine.rules
    if not rules.version:
        return
    payload = rules.whole()
    segment, _ = engine.journal.place(len(payload))
    engine.append([fact_of(payload)])
    rules.segments = {segment}
    rules.stored_bytes = len(payload)


def _note(engine: Engine, fresh: list[Rule], removed: list[str], who: str) -> int:
    """Make the next version of the rules (the lock is held)."""
    rules = engine.rules
    if not fresh and not removed:
        return engine.journal.position
    _check_count(rules, [rule.id for rule in fresh], removed)
    version, told = rules.version + 1, (rules.version + 1, engine.clock.wall_ms(), who)
    views = {rule.id: view_of(rule, "added", version) for rule in fresh}
    changes = [
        _change(told, name, rules.added.get(name), views.get(name)) for name in (*views, *removed)
    ][-limits.RULE_CHANGES_MAX :]
    payload = encode(Step(version, list(views.values()), removed, changes))
    _check_room(rules, len(payload))
    engine.admit(len(payload))
    segment, _ = engine.journal.place(len(payload))
    position = engine.append([fact_of(payload)])
    if rules.segments is not None:
        rules.segments.add(segment)
    rules.stored_bytes += len(payload)
    rules.version = version
    rules.changes.extend(changes)
    rules.set_added(zip(views.values(), fresh, strict=True), removed)
    return position


def _change(
    told: tuple[int, int, str], name: str, before: RuleView | None, after: RuleView | None
) -> RuleChange:
    what: What = "changed"
    if before is None or after is None:
        what = "added" if before is None else "removed"
    elif spec_of(before) == msgspec.structs.replace(spec_of(after), enabled=before.enabled):
        what = "enabled" if after.enabled else "disabled"
    return RuleChange(*told, what, name, _text(before), _text(after))


def _text(view: RuleView | None) -> str | None:
    if view is None:
        return None
    text = f"WEIGHT {value_text(view.weight)} USE {value_text(view.device)} WHEN {view.when}"
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 3]}..."


def _is_same(rules: Rules, rule: Rule) -> bool:
    known = rules.added.get(rule.id)
    return known is not None and view_of(rule, "added", known.version) == known


def _require(rules: Rules, rule_id: str) -> RuleView:
    found = rules.require(rule_id)
    if found.source == "configuration":
        raise _read_only(rule_id)
    return found


def _check_terms(rules: Rules, rule_id: str, terms: Terms) -> None:
    known = rules.added.get(rule_id)
    if rule_id in rules.configured.rules:
        raise _read_only(rule_id)
    if terms.only_new and known is not None:
        raise RuleConflict(
            f"there is a rule {rule_id!r} already", "give it another id, or change that one"
        )
    if terms.only_known and known is None:
        raise UnknownRule(f"rule {rule_id!r:.80} was removed meanwhile", "add it again")
    if terms.version is not None and not _is_unchanged(rules, known, terms.version):
        what = f"rule {rule_id!r:.80} changed" if known else f"there is no rule {rule_id!r:.80}"
        now = f"with version {known.version}" if known else f"in version {rules.version}"
        raise RuleConflict(
            f"{what} {now}, you have seen version {terms.version}",
            "read it again, then change what you find",
            code="version_conflict",
        )


def _is_unchanged(rules: Rules, known: RuleView | None, version: int) -> bool:
    return known is not None and known.version <= version <= rules.version


def _read_only(rule_id: str) -> RuleConflict:
    return RuleConflict(
        f"rule {rule_id!r:.80} comes from the configuration",
        "change it there and reload the server (SIGHUP)",
        code="rule_read_only",
    )


def _check_ids(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.id in _RESERVED:
            raise InvalidRule(f"a rule cannot be named {rule.id!r}", "give it another id")
        if rule.id in seen:
            raise InvalidRule(f"there are two rules {rule.id!r}", "give one of them another id")
        seen.add(rule.id)


def _check_count(rules: Rules, fresh: Iterable[str], removed: Iterable[str]) -> None:
    names = (rules.added.keys() | fresh | rules.configured.rules.keys()) - set(removed)
    if len(names) > RULES_MAX:
        raise InvalidRule(
            f"there would be {len(names)} rules, the limit is {RULES_MAX}", "remove some first"
        )


def _check_room(rules: Rules, more_bytes: int) -> None:
    if rules.stored_bytes + more_bytes <= limits.ADDED_RULES_BYTES_MAX:
        return
    # Steps take more than what they come to: look how much that is before refusing.
    rules.stored_bytes = len(rules.whole())
    if rules.stored_bytes + more_bytes > limits.ADDED_RULES_BYTES_MAX:
        raise Overloaded(
            f"the rules would take more than {limits.ADDED_RULES_BYTES_MAX} bytes",
            "remove some first, or put those that never change into the configuration",
            code="rules_full",
        )
