"""What Spark has noted of a batch, flushed to the device before the sink relies on it.

Spark writes its checkpoint and flushes nothing. What the sink has on record outlives a power cut of
the driver's machine, and what Spark noted last may not: then Spark gives the number of a batch that
is on record to other rows, and these would be taken for played, skipped, and acked. So the offset
of a batch is on the device before the batch is on record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ebbmq.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILE: Final = "file:"


def flush(checkpoint: str | None, batch: int, sync: Callable[[int], None] = os.fsync) -> None:
    """Flush what a checkpoint says of a batch, if it is a directory of this machine.

    Raises:
        StorageFailed: the device does not say that it has it.
    """
    if checkpoint is None:
        return
    root = _directory(checkpoint)
    if not (root / "offsets" / str(batch)).is_file():
        return
    for path in _noted(root, batch):
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageFailed(
                f"{path} of the checkpoint cannot be flushed: {error.strerror}",
                "see to the disk it is on; the batch is played again when the query starts again",
            ) from error


def _directory(checkpoint: str) -> Path:
    """As Hadoop reads it: nothing in it is quoted."""
    if not checkpoint.startswith(_FILE):
        return Path(checkpoint)
    return Path("/" + checkpoint.removeprefix(_FILE).lstrip("/"))


def _noted(root: Path, batch: int) -> Iterator[Path]:
    """Files before the directories that name them."""
    offsets = root / "offsets"
    for path in (root / "metadata", offsets / f".{batch}.crc", offsets / str(batch)):
        if path.is_file():
            yield path
    yield from (offsets, root)
