"""Azurite, an emulator of Azure Blob Storage, from npm as `package-lock.json` here pins it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import socket
import sys
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import Server, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where `make test` puts it, if there is npm.
COMMAND = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"
#: Every Azurite has this one; it is in its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"


class Azurite(Server):
    """One container, in memory."""

    container = "archive"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def command(self) -> Sequence[str]:
        here = ("--blobHost", "127.0.0.1", "--blobPort", str(self.port))
        quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        return (str(COMMAND), *here, *quiet, "--inMemoryPersistence")

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 2).close()
        except OSError:
            return False
        return self._make_container() in (201, 409)

    def _make_container(self) -> int:
        """Ask for it as the service wants to be asked: nothing that is installed does that."""
        date = formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        asked = "".join(f"{name}:{value}\n" for name, value in headers.items())
        path = f"/{ACCOUNT}/{self.container}"
        text = "PUT" + "\n" * 12 + f"{asked}/{ACCOUNT}{path}\nrestype:container"
        signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
        headers["Content-Length"] = "0"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("PUT", f"{path}?restype=container", headers=headers)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()
