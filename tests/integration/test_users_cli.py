"""`ebbmq users`: the token is shown once, everything else can be listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ebbmq.cli.main import main
from ebbmq.node.server.access import Access

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Run = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["users", *arguments, "--data", str(tmp_path / "data")])
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def test_the_token_that_is_printed_is_valid_and_not_shown_again(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("add", "shop", "--publish", "orders.*", "--publish", "topic:news")
    assert status == 0
    token = out.strip()
    caller = Access(tmp_path / "data").caller(f"Bearer {token}".encode(), None)
    assert (caller.name, caller.user.publish) == ("shop", ("orders.*", "topic:news"))
    for arguments in ((), ("list",), ("list", "--json")):
        status, out, err = run(*arguments)
        assert status == 0
        assert "orders.*" in out
        assert token not in out + err


def test_with_json_everything_is_json(run: Run) -> None:
    added = json.loads(run("add", "shop", "--manage", "*", "--json")[1])
    assert added.pop("token").startswith("ebb_")
    rights = {"publish": [], "consume": [], "manage": ["*"], "privileged": []}
    assert added == {"name": "shop", **rights}
    assert json.loads(run("list", "--json")[1]) == [added]
    removed = json.loads(run("remove", "shop", "--json")[1])
    assert removed == {"name": "shop", "outcome": "removed", "left": 0}
    assert json.loads(run("--json")[1]) == []


def test_removing_the_last_user_says_who_is_let_in_then(run: Run) -> None:
    run("add", "shop", "--consume", "*")
    status, out, err = run("remove", "shop")
    assert (status, out) == (0, "shop is removed, 0 users left\n")
    assert "everybody on its own machine" in err


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("add", "shop"), "without any scope"),
        (("add", " ", "--publish", "*"), "not usable"),
        (("add", "shop", "--publish", ""), "not usable"),
        (("remove", "nobody"), "no user 'nobody'"),
    ],
)
def test_a_mistake_is_told_with_a_hint(run: Run, arguments: tuple[str, ...], detail: str) -> None:
    status, _, err = run(*arguments)
    assert status == 1
    assert detail in err
    assert "hint:" in err
