"""docs/queues.md tells of every verb and every field, with the defaults and headers there are."""

import re
from pathlib import Path

import msgspec
import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.node import moving
from ebbmq.node.plan_verbs import PlanVerbs
from ebbmq.node.rule_verbs import RuleVerbs

PAGE = (Path(__file__).parents[3] / "docs" / "queues.md").read_text()
NAMED = set(re.findall(r"`(\w+)[`(]", PAGE))
#: Verbs of other pages.
ELSEWHERE = {name for verbs in (RuleVerbs, PlanVerbs) for name in vars(verbs)} | {
    "admit_device", "close", "devices", "evict_device", "feed", "open", "probe_device",
}  # fmt: skip


def public(noun: type) -> set[str]:
    return {name for name in vars(noun) if not name.startswith("_")}


def test_every_verb_is_told() -> None:
    assert public(Broker) - ELSEWHERE - NAMED == set()


@pytest.mark.parametrize("noun", [Message, QueueSpec])
def test_every_field_is_told(noun: type[msgspec.Struct]) -> None:
    assert set(noun.__struct_fields__) - NAMED - {"name"} == set()


def test_every_header_of_a_dead_message_is_told() -> None:
    assert set(re.findall(r"x-ebbmq-[\w-]+", PAGE)) == set(moving.ADDED)


@pytest.mark.parametrize(
    ("field", "shown"), re.findall(r"^\| `(\w+)` \| (`?[\w,.]+`?(?: MiB)?) \|", PAGE, re.MULTILINE)
)
def test_the_defaults_are_those_of_a_queue(field: str, shown: str) -> None:
    default = getattr(QueueSpec("q"), field)
    if shown == "none":
        assert default is None
    elif shown.endswith(" MiB"):
        assert default == int(shown.removesuffix(" MiB")) << 20
    else:
        assert str(default) == shown.strip("`").replace(",", "")


def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    first, *_, last = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done: list[bytes] = []
    exec(first.replace('"data"', "data"), {"data": tmp_path / "data", "work": done.append})
    assert done == [b"17"]
    exec(f"from ebbmq import Broker, Message, QueueSpec\n{last}", {"tmp_path": tmp_path / "test"})
