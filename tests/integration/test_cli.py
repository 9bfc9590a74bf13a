"""The command line as a newcomer uses it: what works, what is said when it does not."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.cli.main import cli, main
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "ebbmq.cli"]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command in an empty working directory, where `./ebbmq-data` is the default."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def orders(run: Run) -> Run:
    """The same with a queue `orders` declared."""
    assert run("queues", "declare", "orders").code == 0
    return run


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))


@pytest.mark.parametrize("path", list(leaves(cli)), ids=" ".join)
def test_every_command_has_a_help_with_an_example(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.code == 0
    assert f"\n    {' '.join(('ebbmq', *path))}" in result.out or "| ebbmq" in result.out


def test_the_package_is_run_as_the_command_is() -> None:
    by_name = [sys.executable, "-m", "ebbmq", "--version"]
    done = subprocess.run(by_name, capture_output=True, check=True, text=True)
    assert done.stdout.startswith("ebbmq, version ")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert result.code == 0
    assert "ebbmq publish orders" in result.out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("peek", "ordesr"), 1, "unknown_queue"),
        (("peek", "orders", "--count", "many"), 2, "usage"),
        (("peek", "orders", "--no-such"), 2, "usage"),
        (("queues", "--config", "missing.toml"), 1, "invalid_spec"),
    ],
    ids=["refused", "not a number", "no such option", "no such file"],
)
def test_a_refusal_under_json_is_json(
    orders: Run, arguments: tuple[str, ...], exit_code: int, code: str
) -> None:
    told = orders(*arguments)
    said = orders(*arguments, "--json")
    assert (said.code, said.out) == (told.code, "") == (exit_code, "")
    refusal = json.loads(said.err)
    assert refusal["code"] == code
    assert told.err == f"error: {refusal['detail']}\nhint: {refusal['action']}\n"


class TestPublishAndConsume:
    def test_what_is_published_is_consumed_once(self, orders: Run) -> None:
        published = orders("publish", "orders", "pay invoice 17")
        assert published.code == 0
        consumed = orders("consume", "orders")
        assert consumed.out == "pay invoice 17\n"
        assert "1 message acked" in consumed.err
        again = orders("consume", "orders")
        assert (again.code, again.out) == (0, "")
        assert "nothing ready in orders" in again.err

    def test_each_text_is_a_message_and_the_ids_are_printed(self, orders: Run) -> None:
        result = orders("publish", "orders", "a", "b", "c")
        ids = result.out.split()
        assert len(set(ids)) == 3
        assert orders("consume", "orders", "--count", "0").out == "a\nb\nc\n"

    def test_a_dash_makes_a_message_of_each_line(self, orders: Run) -> None:
        lines = b"".join(b"%d\n" % n for n in range(2_500))
        result = orders("publish", "orders", "-", stdin=lines)
        assert "2,500 messages to orders" in result.err
        assert orders("consume", "orders", "--count", "0").out.encode() == lines

    def test_a_file_is_one_message_byte_by_byte(self, orders: Run, tmp_path: Path) -> None:
        body = bytes(range(256))
        (tmp_path / "blob").write_bytes(body)
        orders("publish", "orders", "--file", "blob", "--confirm", "written")
        (message,) = orders("peek", "orders", "--json").json
        assert "text" not in message
        assert base64.b64decode(message["body_b64"]) == body

    def test_the_most_important_comes_first(self, orders: Run) -> None:
        orders("publish", "orders", "low", "--importance", "2")
        orders("publish", "orders", "high", "--importance", "9")
        assert orders("consume", "orders").out == "high\n"

    def test_message_options_arrive(self, orders: Run) -> None:
        orders(
            *("publish", "orders", "x", "--importance", "9", "--ttl", "60s"),
            *("--decay-rate", "0.5", "--header", "tenant=acme", "--header", "trace=a=b"),
        )
        (message,) = orders("peek", "orders", "--json").json
        assert message["importance"] == 9
        assert message["ttl_ms"] == 60_000
        assert message["decay_rate"] == pytest.approx(0.5, abs=0.01)
        assert message["headers"] == {"tenant": "acme", "trace": "a=b"}

    def test_a_delayed_message_is_scheduled(self, orders: Run) -> None:
        orders("publish", "orders", "later", "--delay", "5m")
        assert orders("peek", "orders", "--json").json == []
        (message,) = orders("peek", "orders", "--state", "scheduled", "--json").json
        assert message["text"] == "later"
        assert "1 scheduled" in orders("consume", "orders").err

    def test_the_same_id_twice_is_stored_once(self, orders: Run) -> None:
        first = orders("publish", "orders", "x", "--id", "invoice-17", "--json").json
        second = orders("publish", "orders", "x", "--id", "invoice-17", "--json").json
        assert second["receipts"] == [{"id": first["receipts"][0]["id"], "duplicate": True}]
        assert len(orders("peek", "orders", "--json").json) == 1

    def test_peeking_takes_nothing(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        assert orders("consume", "orders", "--peek").out == "a\n"
        assert orders("consume", "orders", "--peek", "--count", "0").out == "a\nb\n"
        assert "a" in orders("peek", "orders").out
        assert orders("consume", "orders", "--count", "0").out == "a\nb\n"

    def test_json_of_consume_is_one_object_a_line(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        lines = orders("consume", "orders", "--count", "0", "--json").out.splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["a", "b"]

    def test_headers_are_an_object_in_json_whether_there_are_any_or_not(self, orders: Run) -> None:
        orders("publish", "orders", "a")
        orders("publish", "orders", "b", "--header", "of=x")
        assert [seen["headers"] for seen in orders("peek", "orders", "--json").json] == [
            {},
            {"of": "x"},
        ]
        lines = orders("consume", "orders", "--count", "0", "--json").out.splitlines()
        assert [json.loads(line)["headers"] for line in lines] == [{}, {"of": "x"}]

    def test_a_command_that_succeeds_acks(self, orders: Run, tmp_path: Path) -> None:
        orders("publish", "orders", "body", "--importance", "7")
        script = 'cat > seen; echo " $EBBMQ_QUEUE $EBBMQ_IMPORTANCE $EBBMQ_ATTEMPT" >> seen'
        result = orders("consume", "orders", "--exec", f"sh -c '{script}'")
        assert result.code == 0
        assert (tmp_path / "seen").read_text() == "body orders 7 1\n"
        assert orders("queues", "--json").json[0]["depth"]["ready"] == 0

    def test_a_command_that_fails_makes_it_retry(self, orders: Run) -> None:
        orders("publish", "orders", "body")
        result = orders("consume", "orders", "--exec", "false")
        assert "1 to be retried" in result.err
        depth = orders("queues", "--json").json[0]["depth"]
        assert depth["ready"] + depth["scheduled"] == 1

    def test_a_command_that_fails_for_the_last_time_says_where_it_goes(self, run: Run) -> None:
        for queue, told in (("a", "it goes to a.dead"), ("b", "it is removed")):
            dead = ["--set", "dead_queue=a.dead"] if queue == "a" else []
            run("queues", "declare", queue, "--set", "max_attempts=1", *dead)
            run("publish", queue, "body")
            result = run("consume", queue, "--exec", "false")
            assert told in result.err
            assert "1 failed for the last time" in result.err
            assert "retried" not in result.err

    def test_a_command_that_takes_longer_than_the_lease_keeps_it(self, run: Run) -> None:
        run("queues", "declare", "slow", "--set", "lease_timeout_ms=300ms")
        run("publish", "slow", "body")
        result = run("consume", "slow", "--exec", "sleep 1")
        assert "1 message acked; slow is now: empty" in result.err

    def test_a_command_that_does_not_exist_is_said_and_gives_the_message_back(
        self, orders: Run
    ) -> None:
        orders("publish", "orders", "body")
        result = orders("consume", "orders", "--exec", "no-such-command")
        assert result.code == 1
        assert "error: cannot run no-such-command" in result.err
        assert orders("consume", "orders").out == "body\n"

    def test_following_goes_on_until_interrupted(self, orders: Run, tmp_path: Path) -> None:
        orders("publish", "orders", "a", "b")
        with subprocess.Popen(
            [*COMMAND, "consume", "orders", "--follow"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert [process.stdout.readline(), process.stdout.readline()] == [b"a\n", b"b\n"]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert b"2 messages acked" in err


class TestQueues:
    def test_a_plain_queue_is_listed_with_its_numbers(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        (stats,) = orders("queues", "--json").json
        assert stats["queue"] == "orders"
        assert stats["depth"]["ready"] == 2
        shown = orders("queues").out
        assert "QUEUE" in shown
        assert "orders" in shown

    def test_presets_and_fields(self, run: Run) -> None:
        run(
            "queues",
            "declare",
            "d",
            "--preset",
            "deadline",
            "--ttl",
            "30s",
            "--set",
            "fair_share=9",
        )
        run("queues", "declare", "f", "--preset", "fresh-first", "--set", "retention_ms=7d")
        deadline = run("queues", "show", "d", "--json").json["spec"]
        assert (deadline["decay_rate"], deadline["default_ttl_ms"]) == (1.0, 30_000)
        assert deadline["fair_share"] == 9
        fresh = run("queues", "show", "f", "--json").json["spec"]
        assert (fresh["band_width"], fresh["retention_ms"]) == (0.0, 7 * 86_400_000)

    def test_a_list_is_given_with_commas_or_as_json(self, run: Run) -> None:
        for name, tiers in (("a", "log,archive"), ("b", '["log", "archive"]')):
            run("queues", "declare", name, "--set", f"tiers={tiers}")
            assert run("queues", "show", name, "--json").json["spec"]["tiers"] == ["log", "archive"]

    def test_show_says_what_is_not_usual(self, run: Run) -> None:
        run("queues", "declare", "q", "--set", "max_attempts=3", "--set", "dead_queue=none")
        result = run("queues", "show", "q")
        assert result.code == 0
        assert "max_attempts=3" in result.out

    def test_purge_is_on_the_record(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        result = orders("queues", "purge", "orders", "--json")
        assert result.json == {"queue": "orders", "outcome": "purged", "messages": 2}
        reasons = [r["reason"] for r in orders("removals", "orders", "--json").json]
        assert reasons == ["purged", "purged"]

    def test_a_deleted_queue_is_gone(self, orders: Run) -> None:
        orders("queues", "declare", "other")
        assert orders("queues", "delete", "orders", "--yes").code == 0
        assert [stats["queue"] for stats in orders("queues", "--json").json] == ["other"]

    def test_messages_of_a_deleted_queue_are_on_the_record(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        orders("queues", "delete", "orders", "--yes")
        shown = orders("removals", "orders", "--reason", "deleted", "--json").json
        assert [removal["reason"] for removal in shown] == ["deleted", "deleted"]
        why = orders("why", shown[0]["id"], "--json").json
        assert (why["queue"], why["reason"]) == ("orders", "deleted")
        assert orders("removals", "ordres").code == 1

    def test_a_paused_queue_takes_but_does_not_deliver(self, orders: Run) -> None:
        orders("queues", "pause", "orders")
        orders("publish", "orders", "a")
        taken = orders("consume", "orders")
        assert taken.out == ""
        assert "paused" in taken.err
        assert "queues resume orders" in taken.err
        assert "paused" in orders("queues").out
        orders("queues", "resume", "orders")
        assert orders("consume", "orders").out == "a\n"

    def test_dead_messages_are_redriven(self, run: Run) -> None:
        run("queues", "declare", "q.dead")
        run("queues", "declare", "q", "--set", "max_attempts=1", "--set", "dead_queue=q.dead")
        run("publish", "q", "poison")
        run("consume", "q", "--exec", "false")
        assert [m["text"] for m in run("peek", "q.dead", "--json").json] == ["poison"]
        result = run("queues", "redrive", "q.dead", "--json")
        assert result.json == {"queue": "q.dead", "outcome": "redriven", "messages": 1}
        assert run("consume", "q").out == "poison\n"

    def test_a_redrive_tells_how_many_stay(self, run: Run) -> None:
        run("queues", "declare", "q", "--set", "max_attempts=1", "--set", "dead_queue=q.dead")
        run("publish", "q", "poison")
        run("consume", "q", "--exec", "false")
        run("publish", "q.dead", "from nowhere")
        result = run("queues", "redrive", "q.dead")
        assert result.code == 0
        assert "1 message" in result.out
        assert "q.dead still has 1 message" in result.err
        assert "--to" in result.err

    def test_ages_are_of_queue_time_whatever_the_calendar_says(
        self, run: Run, tmp_path: Path
    ) -> None:
        _ahead_of_time(tmp_path / "ebbmq-data")
        assert re.search(r" 2h( |$)", run("peek", "q").out, re.MULTILINE)


def _ahead_of_time(data: Path) -> None:
    """A store whose one message is two hours old, by a clock that was a year ahead."""
    clock = ManualClock(time.time_ns() // 1_000_000 + 365 * 86_400_000)
    with Broker.open(data, clock=clock) as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", Message(b"m"))
        clock.advance(2 * 3_600_000)


class TestTopics:
    def test_one_publish_reaches_every_subscribed_queue(self, run: Run) -> None:
        for queue in ("mail", "audit"):
            run("queues", "declare", queue)
        run("topics", "declare", "news", "--max-age", "7d")
        for queue in ("mail", "audit"):
            assert run("topics", "subscribe", "news", queue).code == 0
        (topic,) = run("topics", "--json").json
        assert topic["topic"] == "news"
        assert sorted(topic["queues"]) == ["audit", "mail"]
        assert "news" in run("topics").out
        assert run("topics", "publish", "news", "all is well").code == 0
        assert run("consume", "mail").out == run("consume", "audit").out == "all is well\n"

    def test_a_queue_that_was_unsubscribed_gets_no_more(self, run: Run) -> None:
        for queue in ("audit", "mail"):
            run("queues", "declare", queue)
        run("topics", "declare", "news")
        for queue in ("audit", "mail"):
            run("topics", "subscribe", "news", queue)
        assert run("topics", "unsubscribe", "news", "mail").code == 0
        (topic,) = run("topics", "--json").json
        assert topic["queues"] == ["audit"]
        assert "mail" not in run("topics", "publish", "news", "x").out

    def test_a_deleted_topic_is_gone_and_its_queues_keep_what_they_got(self, run: Run) -> None:
        run("queues", "declare", "mail")
        run("topics", "declare", "news")
        run("topics", "subscribe", "news", "mail")
        run("topics", "publish", "news", "kept")
        assert run("topics", "delete", "news").code == 0
        assert run("topics", "--json").json == []
        assert "kept" in run("peek", "mail").out

    def test_an_unknown_topic_names_the_nearest(self, run: Run) -> None:
        run("topics", "declare", "news")
        result = run("topics", "publish", "newz", "x")
        assert result.code == 1
        assert "did you mean 'news'?" in result.err


class TestRemovalsAndWhy:
    def test_why_says_where_a_message_is_and_why_it_left(self, orders: Run) -> None:
        id_ = orders("publish", "orders", "a").out.strip()
        here = orders("why", id_, "--json").json
        assert (here["queue"], here["state"]) == ("orders", "ready")
        orders("queues", "purge", "orders")
        gone = orders("why", id_)
        assert gone.code == 0
        assert "purged" in gone.out

    def test_an_expired_message_is_on_the_record(self, orders: Run) -> None:
        orders("publish", "orders", "a", "--ttl", "1ms")
        deadline = time.monotonic() + 20
        while not orders("removals", "orders", "--reason", "expired", "--json").json:
            assert time.monotonic() < deadline
        shown = orders("removals", "orders", "--since", "1h")
        assert "1 removal: 1 expired" in shown.err
        assert orders("removals", "orders", "--reason", "stale", "--json").json == []

    def test_an_id_nobody_knows(self, orders: Run) -> None:
        for id_ in ("7-7", "nonsense"):
            result = orders("why", id_)
            assert result.code == 1
            assert "error: " in result.err


class TestBackupRestoreDoctor:
    def test_a_backup_restored_holds_the_same_messages(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        assert orders("backup", "copy").code == 0
        orders("consume", "orders", "--count", "0")
        restored = orders("restore", "copy", "--data", "second", "--json").json
        assert restored["messages"] == 2
        assert orders("consume", "orders", "--count", "0", "--data", "second").out == "a\nb\n"

    def test_restore_never_overwrites(self, orders: Run) -> None:
        orders("backup", "copy")
        result = orders("restore", "copy")
        assert result.code == 1
        assert "error: ebbmq-data is not empty" in result.err

    def test_a_damaged_backup_is_restored_as_far_as_it_can_be_and_said_so(
        self, orders: Run, tmp_path: Path
    ) -> None:
        orders("publish", "orders", "the first message", "the second message")
        orders("backup", "copy")
        flip(tmp_path / "copy", b"the first message")
        result = orders("restore", "copy", "--data", "again", "--json")
        assert (result.code, result.json["clean"], result.json["bodies"]) == (1, False, 1)
        assert orders("consume", "orders", "--data", "again").out == "the second message\n"

    def test_restore_refuses_what_is_no_backup(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
        result = run("restore", "photos", "--data", "new")
        assert result.code == 1
        assert "photos is not a backup" in result.err
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]

    def test_doctor_finds_nothing_wrong_with_a_good_directory(self, orders: Run) -> None:
        orders("publish", "orders", "a", "b")
        result = orders("doctor")
        assert result.code == 0
        assert "ebbmq-data is clean: 2 messages" in result.out
        assert orders("doctor", "--accept-clock", "--json").json["clean"] is True

    def test_doctor_tells_of_a_clock_in_doubt_until_it_is_accepted(
        self, run: Run, tmp_path: Path
    ) -> None:
        _ahead_of_time(tmp_path / "ebbmq-data")
        result = run("doctor")
        assert result.code == 0
        assert "behind where it was" in result.out
        assert "--accept-clock" in result.out
        assert "behind" in run("doctor", "--json").json["clock_doubt"]
        assert "behind" not in run("doctor", "--accept-clock").out
        assert run("doctor", "--json").json["clock_doubt"] is None

    def test_doctor_finds_a_flipped_bit(self, orders: Run, tmp_path: Path) -> None:
        body = b"a body that is easily found in a file"
        orders("publish", "orders", body.decode(), "and another")
        flip(tmp_path / "ebbmq-data", body)
        result = orders("doctor")
        assert result.code == 1
        assert "damaged" in result.out
        assert orders("doctor", "--json").json["problems"]

    def test_doctor_cannot_use_what_is_not_a_data_directory(self, run: Run, tmp_path: Path) -> None:
        assert run("doctor", "--data", "nowhere").code == 2
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
        assert run("doctor", "--data", "photos").code == 2


def flip(directory: Path, body: bytes) -> None:
    """Change one bit of a stored body."""
    for path in directory.rglob("*"):
        if path.is_file() and body in (data := path.read_bytes()):
            at = data.index(body)
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
    raise AssertionError("the body is in no file")


MISTAKES = {
    "misspelt command": (("pubish", "orders", "x"), 2, "no such command 'pubish'"),
    "misspelt queue": (("publish", "ordrs", "x"), 1, "did you mean 'orders'?"),
    "unknown queue": (("publish", "zebra", "x"), 1, "ebbmq queues declare zebra"),
    "unknown queue to consume": (("consume", "zebra"), 1, "no queue 'zebra'"),
    "unknown queue to peek": (("peek", "zebra"), 1, "no queue 'zebra'"),
    "unknown queue to show": (("queues", "show", "zebra"), 1, "no queue 'zebra'"),
    "nothing to publish": (("publish", "orders"), 2, "nothing to publish"),
    "importance 11": (("publish", "orders", "x", "--importance", "11"), 1, "1 (least) to 10"),
    "importance high": (("publish", "orders", "x", "--importance", "high"), 2, "--importance"),
    "ttl without unit": (("publish", "orders", "x", "--ttl", "60"), 2, "500ms, 30s, 5m, 2h, 7d"),
    "negative ttl": (("publish", "orders", "x", "--ttl", "-1s"), 2, "is not a duration"),
    "zero ttl": (("publish", "orders", "x", "--ttl", "0s"), 1, "ttl_ms is 0"),
    "rate 2": (("publish", "orders", "x", "--decay-rate", "2"), 1, "decay_rate is 2.0"),
    "rate nan": (("publish", "orders", "x", "--decay-rate", "nan"), 1, "decay_rate is nan"),
    "header without =": (("publish", "orders", "x", "--header", "a"), 2, "name=value"),
    "one id for two": (("publish", "orders", "x", "y", "--id", "1"), 2, "--id names one message"),
    "missing file": (("publish", "orders", "--file", "none"), 2, "no such file"),
    "unknown level": (("publish", "orders", "x", "--confirm", "sometimes"), 2, "synced"),
    "unknown field": (("queues", "declare", "q", "--set", "max_atempts=3"), 2, "'max_attempts'"),
    "field not a number": (("queues", "declare", "q", "--set", "max_attempts=x"), 2, "usual"),
    "adapt is no switch": (
        ("queues", "declare", "q", "--set", "adapt=true"),
        2,
        """write JSON, such as '{"raise_above_ms": 1000, "lower_below_ms": 500}'""",
    ),
    "field without a usual value": (
        ("queues", "declare", "q", "--set", "max_replicas=x"),
        2,
        "a usual value is none",
    ),
    "field no JSON": (("queues", "declare", "q", "--set", "tiers=[log"), 2, "that is no JSON"),
    "field out of range": (("queues", "declare", "q", "--set", "max_attempts=-1"), 1, "65535"),
    "deadline without ttl": (("queues", "declare", "q", "--preset", "deadline"), 2, "--ttl"),
    "own dead queue": (("queues", "declare", "q", "--set", "dead_queue=q"), 1, "dead queue"),
    "unknown preset": (("queues", "declare", "q", "--preset", "lifo"), 2, "fresh-first"),
    "unknown reason": (("removals", "orders", "--reason", "bored"), 2, "stale"),
    "peek and exec": (("consume", "orders", "--peek", "--exec", "cat"), 2, "--peek only looks"),
    "open quote": (("consume", "orders", "--exec", "sh 'x"), 2, "quotation"),
    "backup onto itself": (("backup", "ebbmq-data"), 1, "is not empty"),
    "restore of nothing": (("restore", "nowhere"), 2, "does not exist"),
    "demo into a used directory": (("demo", "--data", "ebbmq-data"), 1, "is not empty"),
}


@pytest.mark.parametrize(("arguments", "code", "text"), list(MISTAKES.values()), ids=list(MISTAKES))
def test_a_mistake_is_named_with_what_to_do(
    orders: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = orders(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert "\nhint: " in result.err
    assert text.lower() in result.err.lower()


@pytest.mark.parametrize(
    "arguments",
    [("queues",), ("topics",), ("publish", "q", "x"), ("consume", "q"), ("why", "1-1")],
    ids=" ".join,
)
def test_a_directory_that_is_not_there_is_not_made_by_looking(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments, "--data", "my data")
    assert result.code == 1
    assert "ebbmq queues declare NAME --data 'my data'" in result.err
    assert not (tmp_path / "my data").exists()


def test_data_and_json_are_taken_in_any_place(run: Run) -> None:
    run("--data", "d", "queues", "declare", "orders")
    forms = [
        ("--data", "d", "--json", "queues"),
        ("queues", "--data", "d", "--json"),
        ("queues", "--data", "d", "show", "orders", "--json"),
    ]
    for form in forms:
        assert run(*form).json


def test_a_directory_open_elsewhere_is_refused(orders: Run, tmp_path: Path) -> None:
    with Broker.open(tmp_path / "ebbmq-data"):
        result = subprocess.run(
            [*COMMAND, "queues"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert result.returncode == 3
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert orders("queues").code == 0


def test_a_pipe_that_closes_early_is_no_disaster(orders: Run, tmp_path: Path) -> None:
    orders("publish", "orders", "-", stdin=b"x" * 1_000 + b"\n" + b"y" * 1_000 + b"\n")
    piped = subprocess.run(
        f"{sys.executable} -m ebbmq.cli consume orders --count 0 | head -c 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert piped.stdout == b"x"
    assert b"Traceback" not in piped.stderr
    assert orders("doctor").code == 0


def test_a_file_that_is_too_large_is_refused_by_its_name(run: Run, tmp_path: Path) -> None:
    run("queues", "declare", "q")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(70_000_000)
    result = run("publish", "q", "--file", "large")
    assert result.code == 1
    assert "large is larger than a body may be: 67,108,864 bytes" in result.err


def test_the_demo_says_where_it_keeps_its_data(run: Run) -> None:
    assert "a temporary one unless given" in " ".join(run("demo", "--help").out.split())


def test_the_demo_tells_its_story_and_accounts_for_every_message(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--seconds", "3", "--json", "--picture", "story.png")
    assert result.code == 0, result.err
    story = result.json
    for queue in story["queues"].values():
        left = queue["acked"] + sum(queue["removed"].values()) + queue["waiting"]
        assert queue["published"] == left > 0
    assert (tmp_path / "story.png").read_bytes().startswith(b"\x89PNG")
    fifo, decaying = story["queues"]["fifo"], story["queues"]["decaying"]
    assert decaying["important"]["share"] > fifo["important"]["share"]
