"""The refusal of a rule: which rule, at which column, and what was probably meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ebbmq.errors import InvalidSpec
from ebbmq.spelling import get_close_matches

if TYPE_CHECKING:
    from collections.abc import Iterable


class InvalidRule(InvalidSpec):
    """A rule cannot be used; `column` counts from 1 in `text`, 0 where no column is to blame."""

    code: ClassVar[str] = "invalid_rule"

    def __init__(
        self, problem: str, action: str, *, rule: str = "", text: str = "", column: int = 0
    ) -> None:
        named = f"{rule}: " if rule else ""
        where = f"column {column}: " if column else ""
        super().__init__(f"{named}{where}{problem}", action)
        self.problem = problem
        self.rule = rule
        self.text = text
        self.column = column

    def picture(self) -> str:
        """The text with a caret under the column, for a terminal; empty without a column."""
        return f"{self.text}\n{' ' * (self.column - 1)}^" if self.column else ""

    def of(self, rule: str) -> InvalidRule:
        """The same refusal, naming the rule it is about."""
        return InvalidRule(self.problem, self.action, rule=rule, text=self.text, column=self.column)


def meant(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, whatever its case; None if none is near."""
    by_upper = {each.upper(): each for each in known}
    near = get_close_matches(word.upper(), by_upper, n=1, cutoff=0.6)
    return by_upper[near[0]] if near else None
