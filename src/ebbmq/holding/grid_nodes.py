"""Connections to the primaries of a Valkey or Redis: one server, or a cluster found by asking it.

A call sends what each primary is to do in one write, then reads the answers: one round trip to all
of them together. The wait for the disk travels behind the writes on the same connection, because it
covers only what that connection wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import valkey
from valkey import exceptions as refusals
from valkey.cluster import ClusterNode, ValkeyCluster
from valkey.connection import parse_url

from ebbmq.errors import InvalidSpec, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: valkey-py has no types for what is used of it here.
Client = Any

_MOVES_MAX: Final = 3
#: A replica that is asked tells what it has synced so far, else only once a second.
_REPLICA_WAIT_MS: Final = 2
_NOT_FOR_THE_CLUSTER: Final = ("host", "port", "db", "path")


class Command(NamedTuple):
    """What to do with one key."""

    key: str
    words: tuple[Any, ...]


class Sync(NamedTuple):
    """How far writes must have come: the disk of the primary, and of so many replicas."""

    replicas: int
    timeout_ms: int


class Nodes:
    """The primaries; connected by the first call, and anew after a failure."""

    def __init__(self, url: str, *, timeout_ms: int) -> None:
        """Name the server, or any node of the cluster.

        Raises:
            InvalidSpec: the address cannot be read.
        """
        try:
            self._options = dict(parse_url(url))
        except ValueError as error:
            raise InvalidSpec(
                "the address of a grid cannot be read", "use valkey://host:port or valkeys://.."
            ) from error
        self._options.update(
            # A wait for disks must be able to end by itself first.
            socket_timeout=timeout_ms / 1_000 + 1,
            socket_connect_timeout=timeout_ms / 1_000,
        )
        host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
        self.where = f"Valkey at {self._options.get('path', f'{host}:{port}')}"
        # Any node known to a cluster can tell the others, also when the first one is gone.
        self._known: list[tuple[str, int]] = [(str(host), int(str(port)))]
        self._single: Client | None = None
        self._cluster: Client | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are connections."""
        return self._single is not None

    def open(self) -> None:
        """Connect, and find the cluster if the server is of one."""
        last: Exception | None = None
        for host, port in list(self._known):
            try:
                self._connect(host, port)
            except (refusals.ValkeyError, OSError) as error:
                self.close()
                last = error
            else:
                return
        assert last is not None
        raise self.failed("connecting", last) from last

    def run(self, commands: Sequence[Command], sync: Sync | None = None) -> list[Any]:
        """Carry out commands, each on the primary of its key; refusals stand among the answers.

        Raises:
            StorageFailed: a server does not answer, or has not synced in time.
        """
        answers: list[Any] = [None] * len(commands)
        open_numbers = list(range(len(commands)))
        for _ in range(_MOVES_MAX):
            self._exchange(commands, open_numbers, sync, answers)
            open_numbers = [
                number
                for number in open_numbers
                if isinstance(answers[number], refusals.MovedError | refusals.TryAgainError)
            ]
            if not open_numbers:
                break
            self._look_again()
        for number in open_numbers:
            raise self.failed("following moved keys", answers[number])
        for answer in answers:
            if isinstance(answer, _OUTAGES):
                raise self.failed("asking", answer)
        return answers

    def on_each(self, *commands: tuple[Any, ...]) -> list[list[Any]]:
        """The answers of every primary to the same commands."""
        return self._talk({client: list(commands) for client in self.primaries()})

    def primaries(self) -> list[Client]:
        """A client of each primary."""
        if not self.is_open:
            self.open()
        if self._cluster is None:
            assert self._single is not None
            return [self._single]
        return [self._cluster.get_valkey_connection(n) for n in self._cluster.get_primaries()]

    def close(self) -> None:
        """Let go of all connections."""
        for client in (self._single, self._cluster):
            if client is not None:
                client.close()
        self._single = self._cluster = None

    def failed(self, doing: str, error: Exception) -> StorageFailed:
        """Name what failed where; never with a password."""
        unreachable = isinstance(error, (*_OUTAGES, OSError, refusals.ConnectionError))
        return StorageFailed(
            f"{doing} ({self.where}) failed: {str(error) or type(error).__name__}",
            "see that the server runs, can be reached, and has finished loading",
            code="device_unreachable" if unreachable else None,
        )

    def _connect(self, host: str, port: int) -> None:
        options = {**self._options, "host": host, "port": port}
        if "path" in self._options:
            del options["host"], options["port"]
        connections: Any = valkey.ConnectionPool(**options)
        self._single = single = valkey.Valkey.from_pool(connections)
        found: Any = single.info("cluster")
        if not found.get("cluster_enabled"):
            return
        shared = {k: v for k, v in self._options.items() if k not in _NOT_FOR_THE_CLUSTER}
        if shared.pop("connection_class", None) is not None:
            shared["ssl"] = True
        connect: Any = ValkeyCluster
        node: Any = ClusterNode
        self._cluster = connect(startup_nodes=[node(host, port)], **shared)
        known = [(str(node.host), int(node.port)) for node in self._cluster.get_nodes()]
        self._known = [(host, port), *(node for node in known if node != (host, port))]

    def _exchange(
        self,
        commands: Sequence[Command],
        numbers: Iterable[int],
        sync: Sync | None,
        answers: list[Any],
    ) -> None:
        parts: dict[Client, list[int]] = {}
        for number in numbers:
            parts.setdefault(self._client_of(commands[number].key), []).append(number)
        words = {
            client: [commands[number].words for number in part] for client, part in parts.items()
        }
        for part, reply in zip(parts.values(), self._talk(words, sync), strict=True):
            for number, answer in zip(part, reply, strict=True):
                answers[number] = answer

    def _talk(
        self, words: dict[Client, list[tuple[Any, ...]]], sync: Sync | None = None
    ) -> list[list[Any]]:
        """Send to all, then read from all; a connection with an answer unread is not used again."""
        connections: list[tuple[Any, Any, int]] = []
        replies: list[list[Any]] = []
        try:
            for client, commands in words.items():
                pool = client.connection_pool
                connection = pool.get_connection("EVAL")
                connections.append((pool, connection, len(commands)))
                wait = () if sync is None else (("WAITAOF", 1, 0, sync.timeout_ms),)
                connection.send_packed_command(connection.pack_commands([*commands, *wait]))
            for _, connection, count in connections:
                replies.append([_answer(connection) for _ in range(count)])
                if sync is not None:
                    self._settle(connection, sync)
        except (refusals.ValkeyError, OSError, StorageFailed) as error:
            for _, connection, _ in connections:
                connection.disconnect()
            self.close()
            if isinstance(error, StorageFailed):
                raise
            raise self.failed("asking", error) from error
        finally:
            for pool, connection, _ in connections:
                pool.release(connection)
        return replies

    def _client_of(self, key: str) -> Client:
        if not self.is_open:
            self.open()
        if self._cluster is None:
            assert self._single is not None
            return self._single
        try:
            node = self._cluster.get_node_from_key(key)
        except refusals.ValkeyError as error:
            self.close()
            raise self.failed("finding the primary of a key", error) from error
        return self._cluster.get_valkey_connection(node)

    def _look_again(self) -> None:
        if self._cluster is not None:
            try:
                self._cluster.nodes_manager.initialize()
            except refusals.ValkeyError as error:
                self.close()
                raise self.failed("looking for the primaries", error) from error

    def _settle(self, connection: Any, sync: Sync) -> None:
        """Read what the disk of the primary says, then ask those of its replicas until they agree.

        Raises:
            StorageFailed: not in time.
        """
        answer = _answer(connection)
        waited_ms, wait_ms = 0, _REPLICA_WAIT_MS
        while not isinstance(answer, Exception):
            local, replicas = answer
            if local >= 1 and replicas >= sync.replicas:
                return
            if local < 1 or waited_ms >= sync.timeout_ms:
                raise StorageFailed(
                    f"{self.where} has not synced within {sync.timeout_ms} ms: its own disk "
                    f"{local} of 1, replicas {replicas} of {sync.replicas}",
                    "see that the disks keep up and that the replicas run with appendonly yes",
                )
            connection.send_command("WAITAOF", 1, sync.replicas, wait_ms)
            answer = _answer(connection)
            waited_ms, wait_ms = waited_ms + wait_ms, 2 * wait_ms
        raise self.failed("waiting for its disk", answer)


#: Refusals that say that the server cannot serve at all just now.
_OUTAGES: Final = (
    refusals.ConnectionError,
    refusals.TimeoutError,
    refusals.ClusterDownError,
    refusals.MasterDownError,
    refusals.ReadOnlyError,
    refusals.AskError,
)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except refusals.ResponseError as error:
        return error
