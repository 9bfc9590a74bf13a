"""How a command fails: `error:` says what, `hint:` says what to do, the exit code says whose fault.

0 done · 1 the request is refused · 2 the command line is wrong · 3 the storage is · 4 the server
does not answer, or is stopping · 130 interrupted.

Under `--json` it is the same on stderr as one line for programs: code, detail and action, as the
server words its refusals.
"""

from __future__ import annotations

from typing import Final

import click
import msgspec

from ebbmq.errors import ClientError, Draining, EbbError, StorageFailed, Unreachable

REFUSED: Final = 1
USAGE: Final = 2
STORAGE: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130
CHECK_THE_DISK: Final = (
    "check that the path exists, that you may read and write it, and that the disk has room"
)


def report(error: Exception, *, as_json: bool = False) -> int:
    """Tell what went wrong, on stderr; returns the exit code."""
    match error:
        case click.Abort():
            code, name, detail, hint = INTERRUPTED, "interrupted", "interrupted", ""
        case click.ClickException():
            detail, hint = _sentence(error.format_message()), _usage_hint(error)
            code, name = USAGE, "usage"
        case EbbError():
            code, name, detail, hint = _code(error), error.code, error.detail, error.action
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            detail, hint = f"{where}{error.strerror or error}", CHECK_THE_DISK
            code, name = STORAGE, StorageFailed.code
        case _:
            raise error
    if as_json:
        said = {"code": name, "detail": detail, "action": hint}
        click.echo(msgspec.json.encode(said, enc_hook=str), err=True)
        return code
    click.echo(f"{click.style('error:', fg='red', bold=True)} {detail}", err=True)
    if hint:
        click.echo(f"{click.style('hint:', bold=True)} {hint}", err=True)
    return code


def _code(error: EbbError) -> int:
    if isinstance(error, ClientError):
        return REFUSED
    return UNREACHABLE if isinstance(error, Unreachable | Draining) else STORAGE


def _sentence(text: str) -> str:
    text = text.removesuffix(".")
    return text[:1].lower() + text[1:]


def _usage_hint(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"{error.ctx.command_path} --help shows how it is used, with an example"
