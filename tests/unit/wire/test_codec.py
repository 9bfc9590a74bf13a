"""Between JSON and the broker's nouns nothing is lost, and nothing unchecked comes through."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbmq import EbbError, InvalidMessage, Message, limits
from ebbmq.errors import InvalidRequest
from ebbmq.model import NO_HEADERS, Lease, Peeked, Timing
from ebbmq.wire.http import codec, forms

publish = codec.decoder(forms.PublishForm)
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
messages = st.builds(
    Message,
    st.binary(max_size=200),
    importance=st.none() | st.integers(1, 10),
    ttl_ms=st.none() | st.integers(1, limits.DURATION_MS_MAX),
    decay_rate=st.none() | st.floats(0, 1),
    delay_ms=st.integers(0, limits.DURATION_MS_MAX),
    headers=st.none() | st.dictionaries(text, text, max_size=3),
    id=st.none() | text,
    key=st.none() | text,
    replicas=st.none() | st.integers(1, limits.REPLICAS_MAX),
    store=st.none() | text,
    durable=st.booleans(),
    type=st.sampled_from(["BYTE", "TEXT", "IMAGE"]),
)


@given(st.lists(messages, max_size=5))
def test_messages_arrive_as_they_were_sent(sent: list[Message]) -> None:
    asked = forms.PublishForm(messages=[codec.form_of(message) for message in sent])
    arrived = codec.messages_of(publish(codec.encode(asked)).messages)
    assert list(map(msgspec.structs.asdict, arrived)) == list(map(msgspec.structs.asdict, sent))


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300)
_fields = st.sampled_from([*Message.__struct_fields__, "body_b64", "text", "other"])


@given(st.dictionaries(_fields, _values | st.dictionaries(st.text(), _values, max_size=2)))
def test_what_is_decoded_could_have_been_made_by_hand(fields: dict[str, Any]) -> None:
    try:
        raw = json.dumps({"messages": [fields]}).encode()
        decoded = codec.messages_of(publish(raw).messages)
    except EbbError:
        return
    Message(**msgspec.structs.asdict(decoded[0]))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused_by_name(raw: bytes) -> None:
    for form in (forms.PublishForm, forms.LeaseRequest, forms.AckForm, forms.ExtendForm):
        with suppress(InvalidRequest, InvalidMessage):
            codec.decoder(form)(raw)


def test_a_body_over_the_limit_is_refused() -> None:
    form = forms.MessageForm(body_b64=bytes(limits.BODY_BYTES_MAX + 1))
    with pytest.raises(InvalidMessage, match="the limit is"):
        codec.messages_of([form])


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("BYTE", b"plain", {"body_b64": base64.b64encode(b"plain").decode()}),
        ("TEXT", "grüße".encode(), {"text": "grüße"}),
        ("TEXT", b"\xff", {"body_b64": "/w=="}),
    ],
)
def test_a_lease_and_a_peek_arrive_as_they_were_sent(
    kind: str, body: bytes, told: dict[str, str]
) -> None:
    history = (Timing("n", 1, 20, "failed"),)
    lease = Lease("1-1", body, {"a": "b"}, "00", 2, 1, 5, 4.5, 5, None, 0.5, 10, 20, history, kind)
    raw = codec.encode(codec.lease_form(lease))
    assert told.items() <= json.loads(raw).items()
    assert codec.lease_of(msgspec.json.decode(raw, type=forms.LeaseForm)) == lease
    peeked = Peeked("1-1", body, NO_HEADERS, "ready", 0, 0, 5, 4.5, 5, 9, 0.5, 10, None, (), kind)
    raw = codec.encode(codec.peek_form(peeked))
    assert told.items() <= json.loads(raw).items()
    assert codec.peeked_of(msgspec.json.decode(raw, type=forms.PeekForm)) == peeked
