"""The text log of the broker: structured, quiet, to standard error unless configured otherwise."""

from __future__ import annotations

import logging

import structlog

logging.getLogger("ebbmq").addHandler(logging.NullHandler())

log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("ebbmq"),
    wrapper_class=structlog.stdlib.BoundLogger,
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
)
