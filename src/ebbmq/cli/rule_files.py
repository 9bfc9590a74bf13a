"""`ebbmq rules check`: read a file of storage rules and say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.values import show_count
from ebbmq.errors import InvalidSpec
from ebbmq.policy.rules.faults import InvalidRule
from ebbmq.policy.rules.file import Problem, ReadFile, read_lines
from ebbmq.policy.rules.rule import check_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq.policy.rules.rule import Rule

RULES_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(short_help="Say what is wrong in a file of rules.")
@click.argument("file", type=RULES_FILE)
@click.option("--device", "devices", multiple=True, metavar="NAME", help="A device that exists.")
@common_options
@pass_session
def check(session: Session, file: Path, devices: Sequence[str]) -> None:
    """Read the rules in FILE, one a line.

    Every slip is told, with its column and what was probably meant; the exit code is 1 if there is
    one. With --device, rules for other devices are refused.

    \b
    Example:
      ebbmq rules check storage.rules --device HDD --device MEMORY
    """
    found = read(file)
    problems = [*found.problems, *(Problem("", error) for error in _unknown(found.rules, devices))]
    if session.as_json:
        session.show_json(
            {
                "rules": [_as_json(rule) for rule in found.rules],
                "problems": [_problem_as_json(problem) for problem in problems],
            }
        )
    else:
        for problem in problems:
            _show_problem(session, file, problem)
        used = sorted({rule.device for rule in found.rules})
        session.say(f"{show_count(len(found.rules), 'rule')} for {', '.join(used) or 'no device'}")
    if problems:
        raise InvalidSpec(
            f"{show_count(len(problems), 'problem')} in {file}", "correct what is marked above"
        )


def _unknown(rules: Sequence[Rule], devices: Sequence[str]) -> list[InvalidRule]:
    found = []
    for rule in rules if devices else ():
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


def read(file: Path) -> ReadFile:
    """What a file says.

    Raises:
        InvalidSpec: it is not text.
    """
    try:
        return read_lines(file.read_text())
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"{file} is not text: {error}", "save it as UTF-8") from error


def read_all(file: Path) -> tuple[Rule, ...]:
    """The rules of a file without slips.

    Raises:
        InvalidRule: the first slip, with its place.
    """
    found = read(file)
    if found.problems:
        raise found.problems[0].error.of(found.problems[0].place)
    return found.rules
