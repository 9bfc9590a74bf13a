"""An error that crossed the wire is the error that was raised."""

from __future__ import annotations

import pytest

from ebbmq import errors
from ebbmq.errors import EbbError
from ebbmq.wire.http import codec, faults


def every_error() -> list[type[EbbError]]:
    found, todo = [], [EbbError]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.__module__ == "ebbmq.errors":
            found.append(cls)
    return found


@pytest.mark.parametrize("cls", every_error())
def test_every_error_has_a_status(cls: type[EbbError]) -> None:
    error = cls(["t"]) if cls is errors.LeaseLost else cls("detail", "action")  # type: ignore[arg-type]
    assert 400 <= faults.status_of(error) < 600


@pytest.mark.parametrize(
    "cls",
    [cls for cls in every_error() if cls not in {EbbError, errors.ClientError, errors.LeaseLost}],
)
def test_an_error_arrives_as_it_was_raised(cls: type[EbbError]) -> None:
    sent = cls("what happened", "what to do")
    got = faults.error_of(faults.status_of(sent), codec.encode(faults.form_of(sent)))
    assert (type(got), got.code, got.detail, got.action) == (
        cls,
        sent.code,
        "what happened",
        "what to do",
    )


@pytest.mark.parametrize(
    ("code", "cls", "status"),
    [
        ("confirm_timeout", errors.Overloaded, 504),
        ("disk_full", errors.Overloaded, 429),
        ("cache_full", errors.Overloaded, 429),
        ("partition_faulty", errors.StorageFailed, 503),
        ("headers_too_large", errors.TooLarge, 431),
        ("method_not_allowed", errors.UnknownPath, 405),
    ],
)
def test_a_narrower_code_keeps_its_class(code: str, cls: type[EbbError], status: int) -> None:
    sent = cls("x", "y", code=code)
    assert faults.status_of(sent) == status
    got = faults.error_of(status, codec.encode(faults.form_of(sent)))
    assert (type(got), got.code) == (cls, code)


@pytest.mark.parametrize("status", [400, 401, 404, 418, 429, 500, 502, 503, 599])
@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b'{"code": "what", "detail": ""}'])
def test_an_answer_that_is_not_ours_is_an_error_all_the_same(status: int, body: bytes) -> None:
    assert isinstance(faults.error_of(status, body), EbbError)
