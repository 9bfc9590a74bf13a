"""`ebbmq rules`: read a file of storage rules, say what is wrong, and why a device is chosen."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.values import pair, show_count
from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.choose import Chooser, Combine, Kind, Strategy
from ebbmq.policy.rules.conditions import KEYWORDS
from ebbmq.policy.rules.explain import explain as explain_choice
from ebbmq.policy.rules.faults import InvalidRule, meant
from ebbmq.policy.rules.file import Problem, ReadFile, doubts, read_lines, read_tables
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq.policy.rules.rule import RuleSet, check_devices
from ebbmq.policy.status import STATUS_BEST, STATUS_WORST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.policy.rules.explain import ExplainedRule, Explanation
    from ebbmq.policy.rules.rule import Rule

RULES_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.group(short_help="Check and explain storage rules.")
@common_options
def rules() -> None:
    """Work with storage rules: which device a message is kept on.

    \b
    Examples:
      ebbmq rules check storage.rules
      ebbmq rules explain storage.rules --size 35 --type TEXT --status HDD=-10
    """


@rules.command(short_help="Say what is wrong in a file of rules.")
@click.argument("file", type=RULES_FILE)
@click.option("--device", "devices", multiple=True, metavar="NAME", help="A device that exists.")
@common_options
@pass_session
def check(session: Session, file: Path, devices: Sequence[str]) -> None:
    """Read the rules in FILE: one a line, or [[rules]] of a TOML file.

    Every slip is told, with its column and what was probably meant; the exit code is 1 if there is
    one. With --device, rules for other devices are refused.

    \b
    Example:
      ebbmq rules check storage.rules --device HDD --device MEMORY
    """
    read = _read(file)
    problems = [*read.problems, *(Problem("", error) for error in _unknown(read.rules, devices))]
    warnings = list(doubts(read.rules))
    if session.as_json:
        session.show_json(
            {
                "rules": [_as_json(rule) for rule in read.rules],
                "problems": [_problem_as_json(problem) for problem in problems],
                "warnings": warnings,
            }
        )
    else:
        for problem in problems:
            _show_problem(session, file, problem)
        for warning in warnings:
            session.note(f"attention: {warning}")
        used = sorted({rule.device for rule in read.rules})
        session.say(f"{show_count(len(read.rules), 'rule')} for {', '.join(used) or 'no device'}")
    if problems:
        raise InvalidSpec(
            f"{show_count(len(problems), 'problem')} in {file}", "correct what is marked above"
        )


@rules.command(short_help="Say which device a message gets, and why.")
@click.argument("file", type=RULES_FILE)
@click.option("--size", type=click.FloatRange(min=0), default=1.0, show_default=True, help="KiB.")
@click.option("--type", "type_", default="BYTE", show_default=True, help="What the body is.")
@click.option("--header", "headers", multiple=True, type=pair, help="A header of the message.")
@click.option("--set", "properties", multiple=True, type=pair, help="A keyword, such as QUEUE=q.")
@click.option("--status", "statuses", multiple=True, type=pair, help="A device's, such as HDD=-10.")
@click.option("--volatile", multiple=True, metavar="NAME", default=["MEMORY"], show_default=True)
@click.option("--down", multiple=True, metavar="NAME", help="A device that cannot be used.")
@click.option("--default", metavar="NAME", help="The queue's default device.")
@click.option("--replicas", type=click.IntRange(1, 16), default=1, show_default=True)
@click.option("--durable/--not-durable", default=True, show_default=True)
@click.option("--strategy", type=click.Choice(get_args(Kind)), default="first_match")
@click.option("--combine", type=click.Choice(get_args(Combine)), default="mean")
@common_options
@pass_session
def explain(session: Session, /, file: Path, **options: Any) -> None:
    """Explain which device a message gets by the rules in FILE, and why each other one does not.

    Devices are those the rules name, all with status 0 unless --status says otherwise.

    \b
    Examples:
      ebbmq rules explain storage.rules --size 35 --type TEXT --status HDD=-10
      ebbmq rules explain storage.rules --set CLIENT_ID=privileged --strategy aggregate --json
    """
    read = _read(file)
    if read.problems:
        raise read.problems[0].error.of(read.problems[0].place)
    states = _states(read.rules, options)
    strategy = Strategy(kind=options["strategy"], combine=options["combine"])
    told = explain_choice(
        Chooser(RuleSet.of(read.rules), strategy).view(states),
        _message(options),
        durable=options["durable"],
        replicas=options["replicas"],
        default=options["default"],
    )
    if session.as_json:
        session.show_json(told)
    else:
        _show_explanation(session, told)


def _states(read: Sequence[Rule], options: dict[str, Any]) -> dict[str, DeviceState]:
    statuses = dict(options["statuses"])
    named = {name for rule in read for name in rule.devices()}
    named |= {*statuses, *filter(None, [options["default"]])}
    return {
        name: DeviceState(
            status=_number(f"status of {name}", statuses.get(name, "0"), STATUS_WORST, STATUS_BEST),
            durable=name not in options["volatile"],
            usable=name not in options["down"],
        )
        for name in sorted(named)
    }


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


def _unknown(read: Sequence[Rule], devices: Sequence[str]) -> list[InvalidRule]:
    found = []
    for rule in read if devices else ():
        try:
            check_devices([rule], devices)
        except InvalidRule as error:
            found.append(error)
    return found


def _show_problem(session: Session, file: Path, problem: Problem) -> None:
    place = f"{file}: {problem.place}" if problem.place else str(file)
    session.say(f"{place}: {problem.error.detail}")
    for line in problem.error.picture().splitlines():
        session.say(f"  {line}")
    session.say(f"  {problem.error.action}")


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


def _as_json(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "weight": rule.weight,
        "device": rule.device,
        "when": rule.condition_text,
        "enabled": rule.enabled,
    }


def _problem_as_json(problem: Problem) -> dict[str, object]:
    error = problem.error
    return {
        "place": problem.place,
        "column": error.column,
        "code": error.code,
        "detail": error.detail,
        "action": error.action,
    }


def _read(file: Path) -> ReadFile:
    try:
        text = file.read_text()
        if file.suffix != ".toml":
            return read_lines(text)
        tables = tomllib.loads(text).get("rules", [])
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"{file} is not text: {error}", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec(f"{file} is not TOML: {error}", "correct that line") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidSpec(f"rules in {file} is not a list of tables", "write [[rules]] before each")
    return read_tables(tables)
