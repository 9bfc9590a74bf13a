"""A lake or an archive where it was made, or the same in an object store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from ebbmq_spark.places import Place, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.servers import Weed

    #: Keeps a directory.
    Keeping = Callable[[Path], "Kept"]


#: What signed URLs have in them, by kind of store.
SIGNATURES = ("X-Amz-Signature", "X-Amz-Credential", "sig=", "X-Goog-Signature")


class Kept:
    """A directory as it is."""

    is_remote = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = Place(str(directory))

    @property
    def options(self) -> dict[str, str]:
        """What `format("ebbmq")` is told of the place beside its address."""
        return {f"store.{name}": value for name, value in self.place.store.items()}

    def keep(self) -> None:
        """Have what became of the directory since."""


class KeptInStore(Kept):
    """All files of a directory, under a prefix of their own in a store."""

    is_remote = True

    def __init__(self, directory: Path, url: str, options: dict[str, str]) -> None:
        super().__init__(directory)
        self.place = Place(f"{url}/{uuid.uuid4().hex}", options)
        self.store: Any = Store(self.place)
        self.keep()

    def keep(self) -> None:
        """Have what became of the directory since, and nothing else."""
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        there = {str(path.relative_to(self.directory)): path.read_bytes() for path in files}
        for listed in self.store.list(""):
            if listed.path not in there:
                self.store.delete([listed.path])
            elif self.store.read(listed.path) == there[listed.path]:
                del there[listed.path]
        for name, data in there.items():
            self.store.write(name, data)


def options_of(weed: Weed) -> dict[str, str]:
    """How the S3 service is used."""
    return {
        "endpoint": weed.endpoint, "region": "us-east-1",
        "access_key_id": weed.access_key, "secret_access_key": weed.secret_key,
    }  # fmt: skip


def keeping(request: pytest.FixtureRequest) -> Keeping:
    """What keeps directories, by the parameter of a fixture."""
    if request.param == "directory":
        return Kept
    weed: Weed = request.getfixturevalue("weed")
    url, options = f"s3://{weed.bucket}/kept", options_of(weed)
    return lambda directory: KeptInStore(directory, url, options)
