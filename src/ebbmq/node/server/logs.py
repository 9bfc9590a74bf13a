"""The server's log: one event a line on standard error, for people or as JSON, without secrets.

Everything goes through standard logging, so that the engine, uvicorn and asyncio say what they have
to say in the same form. The line is searched for secrets after it is made: whatever brought one in,
a field, a message or a traceback, it does not leave.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from typing_extensions import override

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, Processor, WrappedLogger

    from ebbmq.node.config import LogConfig

#: Tokens of users, whatever follows `Bearer`, and the tokens of leases.
_SECRETS: Final = re.compile(r"ebb_[\w-]{16,}|(?<=\bBearer )[^\s\"',]+|\b[0-9a-f]{48}\b", re.I)
_HIDDEN: Final = "(hidden)"
#: Loggers of libraries, and the least they must have to say to be heard.
_LIBRARIES: Final = {
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "asyncio": logging.WARNING,
    "litestar": logging.WARNING,
}


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Have everything logged from here on written in the configured form; may be called again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(config))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = logging.getLevelNamesMapping()[config.level.upper()]
    root.setLevel(level)
    for name, least in _LIBRARIES.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(level, least))


def _formatter(config: LogConfig) -> logging.Formatter:
    rendering: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_as_json)]
        if config.format == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    return _Hiding(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _take_fields,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )


def _as_json(event: EventDict, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _take_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put the fields of the broker's own events beside each other instead of into one text."""
    record = event["_record"]
    event["logger"] = record.name
    told = getattr(record, "ebbmq", None)
    if told is not None:
        event["event"], fields = told
        event.update({f"{name}_" if name in event else name: told for name, told in fields.items()})
    return event


class _Hiding(structlog.stdlib.ProcessorFormatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))


def hide(text: str) -> str:
    """The text without the secrets that can be told by their look."""
    return _SECRETS.sub(_HIDDEN, text)
