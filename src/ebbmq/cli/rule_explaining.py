"""`ebbmq rules explain`: which device a message gets, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from ebbmq.cli.rule_files import RULES_FILE, read_all
from ebbmq.cli.session import Session, anywhere_options, pass_session
from ebbmq.cli.values import pair
from ebbmq.policy.placement import Terms
from ebbmq.policy.rules.choose import Chooser, Combine, Kind, Strategy
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.explain import explain as explain_choice
from ebbmq.policy.rules.faults import meant
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet
from ebbmq.policy.status import STATUS_BEST, STATUS_WORST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ebbmq.policy.rules.explain import ExplainedRule, Explanation
    from ebbmq.policy.rules.rule import Rule

#: Options about devices that a store or a server has measured, or is set to.
_OF_A_FILE = ("volatile", "down", "strategy", "combine")


@click.command(short_help="Say which device a message gets, and why.")
@click.argument("file", type=RULES_FILE, required=False)
@click.option("--size", type=click.FloatRange(min=0), default=1.0, show_default=True, help="KiB.")
@click.option("--type", "type_", default="BYTE", show_default=True, help="What the body is.")
@click.option("--header", "headers", multiple=True, type=pair, help="A header of the message.")
@click.option("--set", "properties", multiple=True, type=pair, help="A keyword, such as QUEUE=q.")
@click.option("--status", "statuses", multiple=True, type=pair, help="A device's, such as HDD=-10.")
@click.option("--volatile", multiple=True, metavar="NAME", default=["MEMORY"], show_default=True)
@click.option("--down", multiple=True, metavar="NAME", help="A device that cannot be used.")
@click.option("--default", metavar="NAME", help="The device where no rule is true.")
@click.option("--replicas", type=click.IntRange(1, 16), default=1, show_default=True)
@click.option("--durable/--not-durable", default=True, show_default=True)
@click.option("--strategy", type=click.Choice(get_args(Kind)), default="first_match")
@click.option("--combine", type=click.Choice(get_args(Combine)), default="mean")
@anywhere_options
@pass_session
def explain(session: Session, /, file: Path | None, **options: Any) -> None:
    """Explain which device a message gets, and why each other one does not.

    Without FILE, by the rules and devices of the data directory or the server, as they are now,
    and on the terms of the queue that --set QUEUE= names.
    With FILE, by the rules in it; devices are those the rules name, all with status 0 unless
    --status says otherwise.

    \b
    Examples:
      ebbmq rules explain --size 35 --type TEXT --status HDD=-10 --url http://127.0.0.1:8080
      ebbmq rules explain storage.rules --size 35 --type TEXT --status HDD=-10
      ebbmq rules explain storage.rules --set CLIENT_ID=privileged --strategy aggregate --json
    """
    told = _of_store(session, options) if file is None else _of_file(file, options)
    if session.as_json:
        session.show_json(told)
    else:
        _show_explanation(session, told)


def _of_store(session: Session, options: dict[str, Any]) -> Explanation:
    context = click.get_current_context()
    for name in _OF_A_FILE:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is for rules in a file: name one")
    statuses = {name: _status(name, text) for name, text in options["statuses"]}
    message = _message(options)
    with session.open() as broker:
        _note_queue(session, message.queue, [spec.name for spec in broker.queues()])
        return broker.explain_rules(
            message,
            durable=options["durable"],
            replicas=options["replicas"],
            default=options["default"],
            statuses=statuses,
        )


def _note_queue(session: Session, queue: str | None, there: Sequence[str]) -> None:
    """Say that a queue is not there, whose terms would count: a slip, or one yet to be declared."""
    if queue and queue not in there:
        near = meant(queue, there)
        session.note(
            f"attention: there is no queue {queue!r}, so none of its terms count"
            + (f"; did you mean {near!r}?" if near else "")
        )


def _of_file(file: Path, options: dict[str, Any]) -> Explanation:
    rules = read_all(file)
    strategy = Strategy(kind=options["strategy"], combine=options["combine"])
    return explain_choice(
        Chooser(RuleSet.of(rules), strategy).view(_states(rules, options)),
        _message(options),
        terms=Terms(default=options["default"]),
        durable=options["durable"],
        replicas=options["replicas"],
    )


def _states(rules: Sequence[Rule], options: dict[str, Any]) -> dict[str, DeviceState]:
    statuses = dict(options["statuses"])
    named = {name for rule in rules for name in rule.devices()}
    named |= {*statuses, *filter(None, [options["default"]])}
    return {
        name: DeviceState(
            status=_status(name, statuses.get(name, "0")),
            durable=name not in options["volatile"],
            usable=name not in options["down"],
        )
        for name in sorted(named)
    }


def _status(name: str, text: str) -> float:
    return _number(f"status of {name}", text, STATUS_WORST, STATUS_BEST)


def _message(options: dict[str, Any]) -> Properties:
    fields: dict[str, Any] = {}
    for name, value in options["properties"]:
        keyword = KEYWORDS.get(name.upper())
        if keyword is None or keyword.needs:
            near = meant(name, [each for each, known in KEYWORDS.items() if not known.needs])
            raise click.BadParameter(
                f"{name!r} is no keyword of a message" + (f"; did you mean {near}?" if near else "")
            )
        number = keyword.kind == "number"
        fields[keyword.attribute] = _number(name, value, -1e308, 1e308) if number else value
    return Properties(
        **{
            "size": options["size"],
            "type": options["type_"],
            "headers": dict(options["headers"]),
            **fields,
        }
    )


def _number(what: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise click.BadParameter(f"{what} is {text!r}; use a number from {low:g} to {high:g}")
    return number


def _show_explanation(session: Session, told: Explanation) -> None:
    session.say(f"{', '.join(told.chosen) or 'no device'}, by {told.strategy}")
    session.show_table(
        ("DEVICE", ">STATUS", ">SCORE", "WHY"),
        (
            (
                each.name,
                f"{each.status:g}",
                "-" if each.score is None else f"{each.score:g}",
                each.why,
            )
            for each in told.devices
        ),
    )
    session.show_table(
        ("RULE", "TRUE", ">WEIGHT", ">ADJUSTED", "DEVICE", "WHEN"),
        (
            (
                each.id,
                _truth(each),
                f"{each.weight:g}",
                f"{each.adjusted:g}",
                each.device,
                each.when,
            )
            for each in told.rules
        ),
    )


def _truth(rule: ExplainedRule) -> str:
    if not rule.enabled:
        return "off"
    if rule.degree is not None:
        return f"{rule.degree:.2f}"
    return "yes" if rule.matched else "no"
