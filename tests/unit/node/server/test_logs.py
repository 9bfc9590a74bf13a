"""The server's log: one event a line, for people or for programs, without secrets."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from ebbmq.node.config import LogConfig
from ebbmq.node.log import log
from ebbmq.node.server import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "ebb_" + "Ab3-_" * 8
LEASE_TOKEN = "0123456789abcdef" * 3


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_an_event_is_one_json_object_with_its_fields() -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(format="json"), stream)
    log.warning("clock_doubt", detail="it jumped", days=8)
    told = json.loads(stream.getvalue())
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "clock_doubt",
        "level": "warning",
        "logger": "ebbmq",
        "detail": "it jumped",
        "days": 8,
    }


def test_a_field_never_hides_what_the_log_says_itself() -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(format="json"), stream)
    log.info("declared", level="synced", timestamp=1)
    told = json.loads(stream.getvalue())
    assert (told["level"], told["level_"], told["timestamp_"]) == ("info", "synced", 1)


def test_an_event_is_readable_on_a_console() -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(), stream)
    log.info("ready", addresses=["http://127.0.0.1:1"])
    assert "ready" in stream.getvalue()
    assert "addresses=['http://127.0.0.1:1']" in stream.getvalue()


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(level="warning"), stream)
    log.info("nobody asked")
    assert stream.getvalue() == ""
    log.error("but this")
    assert "but this" in stream.getvalue()


def test_uvicorn_speaks_through_the_same_log_and_only_when_it_matters() -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(format="json"), stream)
    logging.getLogger("uvicorn.error").info("Shutting down")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert json.loads(stream.getvalue())["event"] == "Invalid HTTP request received."


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("secret", [TOKEN, LEASE_TOKEN, LEASE_TOKEN.upper()])
def test_a_secret_is_in_no_line_wherever_it_stood(form: str, secret: str) -> None:
    stream = io.StringIO()
    logs.configure(LogConfig(format=form), stream)
    log.error("refused", token=secret, headers=[(b"authorization", f"Bearer {secret}".encode())])
    logging.getLogger("uvicorn.error").warning("header %s", f"Bearer {secret}")
    try:
        int(f"what is {secret}?")
    except ValueError:
        logging.getLogger("ebbmq").exception("failed with %s", secret)
    assert "Traceback" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_whatever_stands_after_bearer_is_hidden() -> None:
    assert logs.hide("Authorization: Bearer s3cr3t, next") == "Authorization: Bearer (hidden), next"


def test_message_ids_and_paths_are_not_hidden() -> None:
    line = "id=1-2f path=/v1/queues/ebb_flow/messages segment=young-0000000001.seg"
    assert logs.hide(line) == line
