"""`ebbmq rules`: which device a message is kept on; list, add, change and explain storage rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ebbmq.cli.rule_explaining import explain
from ebbmq.cli.rule_files import RULES_FILE, check, read_all
from ebbmq.cli.session import Session, anywhere_options, pass_session
from ebbmq.cli.values import show_count, show_instant
from ebbmq.policy.rules.rule import read_rule
from ebbmq.policy.rules.spec import RuleSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ebbmq.policy.rules.rule import Rule
    from ebbmq.policy.rules.spec import RulesView, RuleView


@click.group(invoke_without_command=True, short_help="List, change and explain storage rules.")
@anywhere_options
@click.pass_context
def rules(ctx: click.Context) -> None:
    """List the storage rules: which device a message is kept on.

    \b
    Examples:
      ebbmq rules --url http://127.0.0.1:8080
      ebbmq rules add 'W-001: WEIGHT 31 USE hdd WHEN SIZE > 100'
      ebbmq rules apply storage.rules --url http://127.0.0.1:8080
      ebbmq rules explain --size 35 --type TEXT
      ebbmq rules check storage.rules
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Session))


@rules.command("list", short_help="Every rule, with its version.")
@anywhere_options
@pass_session
def list_rules(session: Session) -> None:
    """List every rule of the data directory or the server.

    \b
    Example:
      ebbmq rules list --url http://127.0.0.1:8080
    """
    _list(session)


def _list(session: Session) -> None:
    with session.open() as broker:
        found = broker.rules()
    if session.as_json:
        session.show_json(found)
    elif found.rules:
        session.say(f"version {found.version}, {found.strategy}")
        _show(session, found.rules)
    else:
        session.note(f"no rules in {session.place}; ebbmq rules add makes one")


def _show(session: Session, views: Iterable[RuleView]) -> None:
    session.show_table(
        ("RULE", ">WEIGHT", "DEVICE", "", "FROM", ">VERSION", "WHEN"),
        (
            (
                view.id,
                f"{view.weight:g}",
                view.device,
                "" if view.enabled else "off",
                view.source,
                view.version,
                view.when,
            )
            for view in views
        ),
    )


@rules.command(short_help="Add a rule.")
@click.argument("text")
@click.option(
    "--id", "rule_id", metavar="ID", help="The rule's id, if TEXT does not begin with it."
)
@click.option("--disabled", is_flag=True, help="It is there, but does not count yet.")
@click.option("--replace", is_flag=True, help="Change the rule of that id, if there is one.")
@anywhere_options
@pass_session
def add(session: Session, text: str, rule_id: str | None, *, disabled: bool, replace: bool) -> None:
    """Add the rule TEXT; it counts for what is published from now on.

    \b
    Examples:
      ebbmq rules add 'W-001: WEIGHT 31 USE hdd WHEN SIZE > 100 AND TYPE == TEXT'
      ebbmq rules add 'WEIGHT 60 USE hdd' --id W-002 --replace
    """
    spec = _spec(read_rule(text, rule_id), enabled=not disabled)
    with session.open(create=True) as broker:
        view = broker.put_rule(spec, new=not replace)
    _tell(session, view, f"rule {view.id} counts in {session.place}, version {view.version}")


@rules.command(short_help="Remove rules.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@anywhere_options
@pass_session
def remove(session: Session, ids: Sequence[str]) -> None:
    """Remove rules that were added; what is stored stays where it is.

    \b
    Example:
      ebbmq rules remove W-001 W-002
    """
    with session.open() as broker:
        for rule_id in ids:
            broker.remove_rule(rule_id)
    if session.as_json:
        session.show_json({"removed": list(ids)})
    else:
        session.say(f"{show_count(len(ids), 'rule')} removed from {session.place}")


@rules.command(short_help="Have a rule count again.")
@click.argument("rule_id", metavar="ID")
@anywhere_options
@pass_session
def enable(session: Session, rule_id: str) -> None:
    """Switch the rule ID on.

    \b
    Example:
      ebbmq rules enable W-001
    """
    with session.open() as broker:
        view = broker.enable_rule(rule_id)
    _tell(session, view, f"rule {rule_id} counts again")


@rules.command(short_help="Switch a rule off; it stays on the list.")
@click.argument("rule_id", metavar="ID")
@anywhere_options
@pass_session
def disable(session: Session, rule_id: str) -> None:
    """Switch the rule ID off; it stays on the list.

    \b
    Example:
      ebbmq rules disable W-001
    """
    with session.open() as broker:
        view = broker.enable_rule(rule_id, enabled=False)
    _tell(session, view, f"rule {rule_id} does not count any more")


@rules.command(short_help="Have all rules of a file; move what is stored.")
@click.argument("file", type=RULES_FILE, required=False)
@click.option("--remove-others", is_flag=True, help="Remove added rules that are not in the file.")
@click.option("--existing", is_flag=True, help="Also move what is stored to where rules want it.")
@anywhere_options
@pass_session
def apply(session: Session, file: Path | None, *, remove_others: bool, existing: bool) -> None:
    """Add or change all rules of FILE at once; with a slip in it, none.

    Rules count for what is published from then on. With --existing, with or without FILE, they are
    asked again for every message that is stored; moving goes on in the background.

    \b
    Examples:
      ebbmq rules apply storage.rules
      ebbmq rules apply storage.rules --remove-others --url http://127.0.0.1:8080
      ebbmq rules apply --existing --url http://127.0.0.1:8080
    """
    if file is None and (remove_others or not existing):
        raise click.UsageError("name a file of rules, or say --existing")
    specs = None if file is None else [_spec(r, enabled=r.enabled) for r in read_all(file)]
    told: dict[str, object] = {}
    with session.open(create=specs is not None) as broker:
        if specs is not None:
            before = broker.rules()
            after = broker.put_rules(specs, others="remove" if remove_others else "keep")
            told = {"version": after.version, **_difference(before, after)}
            session.say(
                f"{show_count(len(specs), 'rule')} of {file} in {session.place}: "
                + ", ".join(f"{name} {value}" for name, value in told.items())
            )
        if existing:
            with session.progress() as bar:
                task = bar.add_task("asking the rules", total=None)
                moving = broker.apply_rules(
                    lambda done, total: bar.update(task, completed=done, total=total)
                )
            told["moving"] = moving
            session.say(f"{show_count(moving, 'message')} to be moved")
    if session.as_json:
        session.show_json(told)


@rules.command(short_help="Who changed which rule.")
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True)
@anywhere_options
@pass_session
def audit(session: Session, count: int) -> None:
    """Show the last changes of rules: who, when, and how the rule read before and after.

    \b
    Example:
      ebbmq rules audit --count 100
    """
    with session.open() as broker:
        changes = broker.rule_changes()[-count:]
    if session.as_json:
        session.show_json(changes)
        return
    session.show_table(
        (">VERSION", "WHEN", "WHO", "WHAT", "RULE", "NOW", "BEFORE"),
        (
            (
                change.version,
                show_instant(change.at_ms),
                change.who,
                change.what,
                change.rule or "-",
                change.after or "-",
                change.before or "-",
            )
            for change in changes
        ),
    )


for command in (check, explain):
    rules.add_command(command)


def _spec(rule: Rule, *, enabled: bool) -> RuleSpec:
    return RuleSpec(rule.id, rule.weight, rule.device, rule.condition_text, enabled)


def _tell(session: Session, view: RuleView, text: str) -> None:
    if session.as_json:
        session.show_json(view)
    else:
        session.say(text)


def _difference(before: RulesView, after: RulesView) -> dict[str, int]:
    old = {view.id: view for view in before.rules}
    new = {view.id: view for view in after.rules}
    return {
        "added": len(new.keys() - old.keys()),
        "changed": sum(new[name] != old[name] for name in old.keys() & new.keys()),
        "removed": len(old.keys() - new.keys()),
    }
