"""Rules as people and programs hand them over: plain data, the condition still a text."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ebbmq.policy.rules.faults import InvalidRule

Source = Literal["configuration", "added"]
What = Literal["added", "changed", "removed", "enabled", "disabled", "configured"]


_KINDS: Final[tuple[tuple[str, tuple[type, ...], str], ...]] = (
    ("id", (str,), "use a name such as W-001"),
    ("weight", (int, float), "use a number"),
    ("device", (str,), "use the name of a device"),
    ("when", (str,), "use a condition such as SIZE > 10"),
    ("enabled", (bool,), "use True or False"),
)


class RuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prefer `device`, by `weight`, for messages of which `when` is true."""

    id: str
    weight: float
    device: str
    when: str = "ALWAYS"
    enabled: bool = True

    def check(self) -> None:
        """Refuse what is not even of the right kind; what it says is checked where it is read.

        Raises:
            InvalidRule: a field is of another kind.
        """
        for name, kinds, action in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kinds) or (name == "weight" and isinstance(value, bool)):
                raise InvalidRule(f"{name} is {value!r:.80}", action, rule=f"rule {self.id!r:.80}")


class RuleView(msgspec.Struct, frozen=True):
    """A rule of a node: where it comes from, and the version of all rules that it changed with."""

    id: str
    weight: float
    device: str
    when: str
    enabled: bool
    source: Source
    version: int


class RulesView(msgspec.Struct, frozen=True):
    """Every rule of a node, by id; the version grows with each change of any of them."""

    version: int
    strategy: str
    rules: list[RuleView]
    #: By rule: messages whose device it chose as they came, since the broker was opened.
    placed: dict[str, int] = {}


class RuleChange(msgspec.Struct, frozen=True):
    """Who changed which rule, when (wall clock), and how it read before and after."""

    version: int
    at_ms: int
    who: str
    what: What
    rule: str
    before: str | None = None
    after: str | None = None
