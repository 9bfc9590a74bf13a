"""The text log of the broker: one line an event, `event key=value ..`, through standard logging."""

from __future__ import annotations

import logging

_logger = logging.getLogger("ebbmq")
_logger.addHandler(logging.NullHandler())


class Log:
    """Writes events with their fields to the logger `ebbmq`; silent until that is configured."""

    def info(self, event: str, **fields: object) -> None:
        """Something worth knowing happened."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something a person should look at when there is time."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something a person should look at now."""
        self._write(logging.ERROR, event, fields)

    def defect(self, event: str, error: BaseException, **fields: object) -> None:
        """Something happened that nobody foresaw: told with where it did."""
        self._write(logging.ERROR, event, {"error": repr(error), **fields}, error)

    def always(self, event: str, **fields: object) -> None:
        """Something that is told whatever the level is, as information."""
        record = _logger.makeRecord(
            _logger.name, logging.INFO, "", 0, "%s %s", (event, _told(fields)), None
        )
        record.ebbmq = (event, fields)
        _logger.handle(record)

    @staticmethod
    def _write(
        level: int, event: str, fields: dict[str, object], error: BaseException | None = None
    ) -> None:
        if _logger.isEnabledFor(level):
            # A formatter that writes fields, such as the server's, finds them as they are.
            extra = {"ebbmq": (event, fields)}
            _logger.log(level, "%s %s", event, _told(fields), extra=extra, exc_info=error)


def _told(fields: dict[str, object]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in fields.items())


log = Log()
