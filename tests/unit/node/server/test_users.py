"""The users of a data directory: what is kept, who may read it, and two who change it at once."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import pytest

from ebbmq.errors import ClientError, InvalidSpec, StorageFailed
from ebbmq.node.server.users import Users

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_holds_the_hash_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    token = Users(tmp_path / "data").add("shop", {"publish": ("orders.*",)})
    path = tmp_path / "data" / "users.json"
    assert token not in path.read_text()
    assert hashlib.sha256(token.encode()).hexdigest() in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_token_is_another_one_of_256_bits(tmp_path: Path) -> None:
    tokens = {Users(tmp_path).add(f"u{n}", {"publish": ("*",)}) for n in range(20)}
    assert len(tokens) == 20
    assert all(len(token.removeprefix("ebb_")) >= 43 for token in tokens)


def test_the_version_changes_with_every_change(tmp_path: Path) -> None:
    users = Users(tmp_path)
    seen = [users.version()]
    for number in range(5):
        users.add("shop", {"publish": ("*",)})
        seen.append(users.version())
        users.remove("shop")
        seen.append(users.version())
        assert seen[-1] != seen[-2] != seen[-3], number


def test_users_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def add(number: int) -> None:
        for each in range(5):
            Users(tmp_path).add(f"{number}.{each}", {"consume": ("*",)})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Users(tmp_path).read()) == 20


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 256, "\x00"])
def test_a_name_that_cannot_be_shown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSpec):
        Users(tmp_path).add(name, {"publish": ("*",)})


@pytest.mark.parametrize("patterns", [{}, {"publish": ()}, {"publish": ("",)}, {"manage": ("\t",)}])
def test_a_user_without_a_usable_pattern_is_refused(
    tmp_path: Path, patterns: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(InvalidSpec):
        Users(tmp_path).add("shop", patterns)
    assert Users(tmp_path).read() == {}


def test_a_name_is_given_once(tmp_path: Path) -> None:
    Users(tmp_path).add("shop", {"publish": ("*",)})
    with pytest.raises(ClientError) as refused:
        Users(tmp_path).add("shop", {"consume": ("*",)})
    assert refused.value.code == "user_exists"


def test_removing_who_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as refused:
        Users(tmp_path).remove("shop")
    assert refused.value.code == "unknown_user"


def test_a_damaged_file_is_neither_believed_nor_overwritten(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("{")
    with pytest.raises(StorageFailed, match=r"users\.json is not valid"):
        Users(tmp_path).add("shop", {"publish": ("*",)})
    assert (tmp_path / "users.json").read_text() == "{"
