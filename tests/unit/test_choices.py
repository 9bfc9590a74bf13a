"""A refusal names the words that would have been taken."""

from __future__ import annotations

import pytest

from ebbmq import choices
from ebbmq.errors import InvalidMessage, InvalidSpec
from ebbmq.node import config
from ebbmq.wire.http import codec
from ebbmq.wire.http.forms import PublishForm


def test_a_request_with_an_unknown_level_is_told_the_levels() -> None:
    with pytest.raises(InvalidMessage) as refused:
        codec.decoder(PublishForm)(b'{"messages": [], "confirm": "sync"}')
    assert refused.value.action == "use one of memory, written, synced"


def test_a_setting_in_a_section_is_told_its_words() -> None:
    with pytest.raises(InvalidSpec) as refused:
        config.load({"log": {"level": "loud"}})
    assert refused.value.action == "use one of debug, info, warning, error"


@pytest.mark.parametrize("path", ["node", "http.port", "nothing", "log.nothing", "log", ""])
def test_a_field_that_takes_anything_keeps_its_hint(path: str) -> None:
    assert choices.hint(config.Config, path, "as it was") == "as it was"
