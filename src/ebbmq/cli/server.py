"""A server named on the command line: its URL, and what it takes to be let in."""

from __future__ import annotations

import shlex
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import ebbmq
from ebbmq.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ebbmq.client.client import Client


@dataclass
class Server:
    """What `--url`, `--token-file` and `--ca-file` said; nothing comes from the environment."""

    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None

    def connect(self, note: Callable[[str], None]) -> Client:
        """A client of the server; what should be looked at is told.

        Raises:
            ClientError: the token cannot be read, or what a client needs is not installed.
            InvalidSpec: the URL or the certificate cannot be used.
        """
        assert self.url is not None
        url = self.url if "://" in self.url else f"http://{self.url}"
        try:
            client: type[Client] = ebbmq.Client
        except ImportError as error:
            raise ClientError(
                "this installation cannot call a server",
                "pip install 'ebbmq[client]'",
                code="not_installed",
            ) from error
        return client(url, token=self._token(note), ca_file=self.ca_file)

    def check_unused(self) -> None:
        """Refuse options that only go with a server.

        Raises:
            click.UsageError: one of them was given.
        """
        if self.token_file is not None or self.ca_file is not None:
            raise click.UsageError("--token-file and --ca-file go with --url: name the server")

    def flags(self) -> str:
        """The options as a hint must repeat them."""
        told = (("url", self.url), ("token-file", self.token_file), ("ca-file", self.ca_file))
        return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in told if value)

    def _token(self, note: Callable[[str], None]) -> str | None:
        path = self.token_file
        if path is None:
            return None
        try:
            if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                note(f"attention: others can read the token in {path}; chmod 600 {path}")
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ClientError(
                f"cannot read the token in {path}: {why}",
                "name the file that holds what `ebbmq users add` printed",
                code="token_file",
            ) from error
        return token
