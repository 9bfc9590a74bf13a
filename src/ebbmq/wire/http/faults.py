"""Errors on the wire: which status an error has, and which error an answer means."""

from __future__ import annotations

from typing import Final

import msgspec

from ebbmq import errors
from ebbmq.errors import EbbError
from ebbmq.wire.http.forms import FaultForm

#: The most specific class of an error decides; a code narrower than its class may differ.
_STATUS: Final[dict[type[EbbError], int]] = {
    errors.UnknownQueue: 404,
    errors.UnknownDevice: 404,
    errors.DeviceInUse: 409,
    errors.UnknownPath: 404,
    errors.InvalidMessage: 400,
    errors.InvalidSpec: 400,
    errors.InvalidRequest: 400,
    errors.LeaseLost: 409,
    errors.UnknownRule: 404,
    errors.UnknownRun: 404,
    errors.QueueDiffers: 409,
    errors.RuleConflict: 409,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.TooSlow: 408,
    errors.TooLarge: 413,
    errors.QueueFull: 429,
    errors.Overloaded: 429,
    errors.ClientError: 400,
    errors.Draining: 503,
    errors.StorageFailed: 503,
    errors.DamagedRecord: 503,
    errors.DirectoryInUse: 503,
    errors.ClosedBroker: 503,
    errors.InternalError: 500,
    errors.Unreachable: 502,
    EbbError: 500,
}
_STATUS_OF_CODE: Final = {
    "confirm_timeout": 504,
    "copy_timeout": 504,
    "version_conflict": 412,
    "method_not_allowed": 405,
    "headers_too_large": 431,
    "too_many_connections": 503,
}
#: Seconds after which trying again may help.
_RETRY_AFTER_S: Final = {408: 1, 429: 1, 503: 5}

_CLASSES: Final[dict[str, type[EbbError]]] = {
    **{
        cls.code: cls
        for cls in _STATUS
        if cls not in {EbbError, errors.ClientError, errors.LeaseLost}
    },
    "confirm_timeout": errors.Overloaded,
    "copy_timeout": errors.Overloaded,
    "disk_full": errors.Overloaded,
    "not_drained": errors.DeviceInUse,
    "cache_full": errors.Overloaded,
    "rules_full": errors.Overloaded,
    "rule_read_only": errors.RuleConflict,
    "version_conflict": errors.RuleConflict,
    "invalid_rule": errors.InvalidSpec,
    "too_many_connections": errors.Overloaded,
    "partition_faulty": errors.StorageFailed,
    "method_not_allowed": errors.UnknownPath,
    "headers_too_large": errors.TooLarge,
}
#: What an answer means whose code is not known, such as one of a proxy.
_CLASS_OF_STATUS: Final[dict[int, type[EbbError]]] = {
    400: errors.InvalidRequest,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.UnknownPath,
    405: errors.UnknownPath,
    408: errors.TooSlow,
    413: errors.TooLarge,
    429: errors.Overloaded,
    431: errors.TooLarge,
    500: errors.InternalError,
    502: errors.Unreachable,
    503: errors.Unreachable,
    504: errors.Unreachable,
}

_decode = msgspec.json.Decoder(FaultForm).decode


def status_of(error: EbbError) -> int:
    """The status an error is answered with."""
    narrowed = _STATUS_OF_CODE.get(error.code)
    if narrowed is not None:
        return narrowed
    return next(_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)


def retry_after_s(status: int) -> int | None:
    """Seconds to say in Retry-After; None: trying the same again does not help."""
    return _RETRY_AFTER_S.get(status)


def form_of(error: EbbError) -> FaultForm:
    """What a client is told about an error."""
    return FaultForm(error.code, error.detail, error.action)


def error_of(status: int, body: bytes) -> EbbError:
    """The error an answer means, as the embedded broker would have raised it."""
    try:
        fault = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        cls = _CLASS_OF_STATUS.get(status, errors.InternalError)
        return cls(
            f"the answer has status {status} and is not EbbMQ's",
            "check the URL, and what stands between this client and the server",
        )
    cls = _CLASSES.get(fault.code) or _CLASS_OF_STATUS.get(status, errors.InternalError)
    return cls(fault.detail, fault.action, code=None if fault.code == cls.code else fault.code)
