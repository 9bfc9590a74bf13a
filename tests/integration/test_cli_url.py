"""The command line on a server: the same commands, the same output, errors one can act on."""

from __future__ import annotations

import io
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ebbmq import Broker, Client, Message
from ebbmq.cli.main import main
from tests.serving import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = itertools.count()
CERTIFICATES = Path(__file__).parents[1] / "certificates"
COMMAND = [sys.executable, "-m", "ebbmq.cli"]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs one command in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def run(command: Run, server: Running) -> Run:
    """The same on the server."""
    return lambda *arguments, **more: command(*arguments, "--url", server.url, **more)


@pytest.fixture
def queue(run: Run) -> str:
    name = f"orders-{next(NUMBERS)}"
    assert run("queues", "declare", name).code == 0
    return name


def anonymous(text: str) -> str:
    """Output without what differs: ids, instants, the place, the bytes an id takes, widths."""
    text = re.sub(r"http://127\.0\.0\.1:\d+|ebbmq-data", "PLACE", text)
    text = re.sub(r" --(url|data) PLACE", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "WHEN", text)
    text = re.sub(r"\b[0-9a-f]+-[0-9a-f]+\b", "ID", text)
    text = re.sub(
        r'"(\w+_at_ms|at_ms|token|deadline_ms|id|segment|oldest_age_ms|now_ms|bytes)": ?[^,\n]+',
        "",
        text,
    )
    text = re.sub(r"\b[\d.]+(ms|s)\b", "TIME", text)
    text = re.sub(r"\b\d\.\d\b", "RATE", text)
    text = re.sub(r"\b\d+ B\b", "BYTES", text)
    return re.sub(r" +", " ", text)


STORY: tuple[tuple[str, ...], ...] = (
    ("queues", "declare", "a", "--set", "dead_queue=a.dead", "--set", "max_attempts=1"),
    ("queues", "declare", "a", "--set", "dead_queue=a.dead", "--set", "max_attempts=1"),
    ("publish", "a", "one", "two", "--importance", "9", "--header", "tenant=acme"),
    ("publish", "a", "--id", "mine", "three", "--json"),
    ("publish", "a", "--id", "mine", "three", "--json"),
    ("publish", "nowhere", "x"),
    ("publish", "a", "x", "--importance", "99"),
    ("peek", "a"),
    ("peek", "a", "--state", "scheduled"),
    ("consume", "a", "--peek", "--count", "0"),
    ("consume", "a"),
    ("consume", "a", "--exec", "false"),
    ("queues", "redrive", "a.dead"),
    ("queues", "show", "a.dead"),
    ("queues", "pause", "a"),
    ("consume", "a"),
    ("queues", "resume", "a"),
    ("queues", "purge", "a", "--yes"),
    ("removals", "a"),
    ("removals", "a", "--json"),
    ("removals", "a", "--reason", "stale"),
    ("why", "no id"),
    ("topics",),
    ("topics", "declare", "news", "--max-age", "7d"),
    ("topics", "subscribe", "news", "a"),
    ("topics", "subscribe", "new", "a"),
    ("topics", "publish", "news", "all is well"),
    ("topics",),
    ("topics", "--json"),
    ("consume", "a", "--json"),
    ("topics", "unsubscribe", "news", "a"),
    ("topics", "unsubscribe", "news", "a", "--json"),
    ("topics", "delete", "new"),
    ("topics", "delete", "news"),
    ("topics", "delete", "news"),
    ("topics", "declare", "more"),
    ("topics", "delete", "more", "--json"),
    ("topics", "--json"),
    ("queues", "delete", "a", "--yes"),
    ("queues", "delete", "a", "--yes", "--json"),
)


def test_a_story_reads_the_same_on_a_directory_and_on_a_server(
    command: Run, tmp_path: Path
) -> None:
    with Running(tmp_path / "served") as server:
        for words in STORY:
            here = command(*words)
            there = command(*words, "--url", server.url)
            assert there.code == here.code, words
            assert anonymous(there.out) == anonymous(here.out), words
            assert anonymous(there.err) == anonymous(here.err), words


def test_the_server_may_be_named_before_the_command(
    command: Run, server: Running, queue: str
) -> None:
    assert queue in command("--url", server.url, "queues").out
    assert queue in command("--url", server.url.removeprefix("http://"), "--json", "queues").out


def test_lines_of_stdin_and_files_are_published_byte_by_byte(
    run: Run, server: Running, queue: str, tmp_path: Path
) -> None:
    lines = b"".join(b"%d\n" % n for n in range(2_500))
    assert "2,500 messages" in run("publish", queue, "-", stdin=lines).err
    (tmp_path / "blob").write_bytes(bytes(range(256)))
    assert run("publish", queue, "--file", "blob").code == 0
    assert run("consume", queue, "--count", "2500").out.encode() == lines
    with Client(server.url) as client:
        (message,) = client.lease(queue)
        assert message.body == bytes(range(256))


def test_why_tells_where_a_message_is(run: Run, queue: str) -> None:
    identity = run("publish", queue, "x").out.strip()
    assert run("why", identity, "--json").json["state"] == "ready"


def test_a_backup_is_made_where_the_server_is(run: Run, queue: str, tmp_path: Path) -> None:
    run("publish", queue, "kept")
    result = run("backup", str(tmp_path / "copy"))
    assert result.code == 0
    assert "server's machine" in result.out
    with Broker.open(tmp_path / "copy") as broker:
        assert [message.body for message in broker.peek(queue)] == [b"kept"]
    assert "full path" in run("backup", "copy").err


def test_following_goes_on_until_it_is_told_to_stop(server: Running, queue: str) -> None:
    following = subprocess.Popen(
        [*COMMAND, "consume", queue, "--follow", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with Client(server.url) as client, following:
        assert following.stdout is not None
        for body in (b"first", b"second"):
            client.publish(queue, [Message(body)])
            assert following.stdout.readline() == body + b"\n"
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=60)
        assert following.returncode == 0
        assert b"2 messages acked" in err
        assert client.stats(queue)["totals"]["acked"] == 2


class TestRefusals:
    @pytest.mark.parametrize("words", [("queues",), ("publish", "q", "x"), ("why", "1-1")])
    def test_a_directory_and_a_server_exclude_each_other(
        self, command: Run, server: Running, words: tuple[str, ...]
    ) -> None:
        result = command(*words, "--data", "d", "--url", server.url)
        assert result.code == 2
        assert "--data and --url" in result.err
        assert not Path("d").exists()

    @pytest.mark.parametrize("words", [("doctor",), ("restore", "."), ("users", "list")])
    def test_what_needs_the_directory_says_so(
        self, command: Run, server: Running, words: tuple[str, ...]
    ) -> None:
        result = command("--url", server.url, *words)
        assert result.code == 2
        assert "--data" in result.err

    def test_nobody_there_is_told_at_once(self, command: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = command("queues", "--url", url)
        assert (result.code, result.out) == (4, "")
        assert f"no answer from {url}: connection refused" in result.err
        assert "ebbmq serve" in result.err

    @pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:b@c"])
    def test_what_is_no_url_is_told(self, command: Run, url: str) -> None:
        result = command("queues", "--url", url)
        assert result.code == 1
        assert "hint:" in result.err

    def test_a_directory_that_is_served_names_the_way_out(
        self, command: Run, server: Running
    ) -> None:
        result = command("queues", "--data", str(server.data))
        assert result.code == 3
        assert "--url http://" in result.err

    def test_a_server_without_tls_is_told_from_one_with(
        self, command: Run, server: Running
    ) -> None:
        result = command("queues", "--url", server.url.replace("http:", "https:"))
        assert result.code == 4
        assert "http://" in result.err


class TestTokens:
    @pytest.fixture
    def secured(self, command: Run, tmp_path: Path) -> Iterator[tuple[Running, Path]]:
        """A server with TLS and one user, and the file with the user's token."""
        data = tmp_path / "secured"
        added = command("users", "add", "anna", "--manage", "*", "--data", str(data), "--json")
        token = tmp_path / "token"
        token.touch(0o600)
        token.write_text(added.json["token"] + "\n")
        options = ("--tls-certificate", "first.pem", "--tls-key", "first.key")
        paths = [str(CERTIFICATES / o) if o.startswith("first") else o for o in options]
        with Running(data, *paths) as server:
            yield server, token

    def test_a_token_and_a_certificate_let_one_in(
        self, command: Run, secured: tuple[Running, Path]
    ) -> None:
        server, token = secured
        ca = str(CERTIFICATES / "first.pem")
        flags = ("--url", server.url, "--token-file", str(token), "--ca-file", ca)
        assert command("queues", "declare", "q", *flags).code == 0
        assert "q" in command("queues", *flags).out
        forbidden = command("publish", "q", "x", *flags)
        assert forbidden.code == 1
        assert "publish" in forbidden.err
        hint = command("publish", "p", "x", *flags).err
        assert f"ebbmq queues declare p --url {server.url} --token-file {token}" in hint

    def test_without_them_one_is_told_what_is_missing(
        self, command: Run, secured: tuple[Running, Path], tmp_path: Path
    ) -> None:
        server, token = secured
        ca = ("--ca-file", str(CERTIFICATES / "first.pem"))
        other = ("--ca-file", str(CERTIFICATES / "second.pem"))
        secret = token.read_text().strip()
        for flags, code, words in (
            (ca, 1, "--token-file"),
            (("--token-file", str(token)), 4, "--ca-file"),
            ((*other, "--token-file", str(token)), 4, "certificate"),
            ((*ca, "--token-file", str(tmp_path / "none")), 1, "cannot read the token"),
        ):
            result = command("queues", "--url", server.url, *flags)
            assert result.code == code, flags
            assert words in result.err, flags
            assert secret not in result.err
        plain = command("queues", "--url", server.url.replace("https:", "http:"))
        assert plain.code == 4

    def test_a_token_others_can_read_is_pointed_out(
        self, run: Run, tmp_path: Path, queue: str
    ) -> None:
        path = tmp_path / "open"
        path.write_text("anything")
        path.chmod(0o644)
        result = run("queues", "--token-file", str(path))
        assert result.code == 1
        assert "chmod 600" in result.err
        assert "anything" not in result.err

    def test_a_token_without_a_server_is_wrong_usage(self, command: Run) -> None:
        result = command("queues", "--token-file", "x")
        assert result.code == 2
        assert "--url" in result.err


def test_a_wait_for_messages_works_on_a_server(run: Run, server: Running, queue: str) -> None:
    with Client(server.url) as client:
        publisher = threading.Timer(0.2, lambda: client.publish(queue, [Message(b"late")]))
        publisher.start()
        assert run("consume", queue, "--wait", "60s").out == "late\n"
        publisher.join()
