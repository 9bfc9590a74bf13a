"""An object store on this machine: SeaweedFS with every part in one process, spoken to as S3."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.run import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUCKET: Final = "bench"
_KEY: Final = "bench"
_START_S: Final = 60
_AT_ONCE: Final = 4


class ObjectStore:
    """Where the store is, and how it is used."""

    def __init__(self, port: int) -> None:
        self.options = {
            "endpoint": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "access_key_id": _KEY,
            "secret_access_key": _KEY,
        }

    def keep(self, directory: Path) -> str:
        """Store all files of a directory under its name; returns the URL."""
        url = f"s3://{_BUCKET}/{directory.name}"
        opened, obstore = _opened(url, self.options)

        def put(path: Path) -> None:
            obstore.put(opened, str(path.relative_to(directory)), path)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(put, (path for path in directory.rglob("*") if path.is_file())))
        return url

    def is_ready(self) -> bool:
        """Whether it takes objects yet."""
        opened, obstore = _opened(f"s3://{_BUCKET}", self.options, {"max_retries": 0})
        try:
            obstore.put(opened, "ready", b"")
        except (obstore.exceptions.BaseError, OSError):
            return False
        return True


def _opened(url: str, options: dict[str, str], retries: Any = None) -> tuple[Any, Any]:
    import obstore  # noqa: PLC0415  # an extra
    import obstore.exceptions  # noqa: PLC0415
    from obstore import store as stores  # noqa: PLC0415

    connect: Any = stores.from_url
    client = {"allow_http": True}
    return connect(url, **options, client_options=client, retry_config=retries), obstore


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """A store that keeps what it has in a directory, until the block ends."""
    port = free_port()
    store = ObjectStore(port)
    credentials = [{"accessKey": _KEY, "secretKey": _KEY}]
    identity = {"name": _KEY, "credentials": credentials, "actions": ["Admin", "Read", "Write"]}
    settings = directory / "s3.json"
    settings.write_text(json.dumps({"identities": [identity]}))
    parts = ("master", "volume", "filer", "admin")
    ports = [f"-{part}.port{kind}={free_port()}" for part in parts for kind in ("", ".grpc")]
    command = (
        _weed(),
        "mini",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={settings}",
        f"-bucket={_BUCKET}",
        *ports,
        f"-s3.port={port}",
        f"-s3.port.grpc={free_port()}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        f"-metricsPort={free_port()}",
    )
    with (
        (directory / "weed.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=directory) as process,
    ):
        try:
            if not wait_until(store.is_ready, _START_S):
                raise TimeoutError(f"SeaweedFS did not start in {_START_S} s")
            yield store
        finally:
            process.kill()


def _weed() -> str:
    """The server, which comes with the extra of the tests."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("there is no weed: pip install 'ebbmq[test]'")
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
