"""Small file systems of our own, that can be full or lose their power."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH: what is not on the device is gone.
_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = 2


def need_root(*tools: str) -> None:
    """Skip, and say why, where file systems cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)


@contextlib.contextmanager
def tmpfs(mountpoint: Path, nbytes: int, *options: str) -> Iterator[Path]:
    """A file system in memory of a fixed size."""
    need_root("mount")
    mountpoint.mkdir()
    done = run("mount", "-t", "tmpfs", "-o", ",".join((f"size={nbytes}", *options)), "none",
               str(mountpoint))  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        yield mountpoint
    finally:
        run("umount", "-l", str(mountpoint))


def enlarge(mountpoint: Path, nbytes: int) -> None:
    """Give a tmpfs more space, as an operator would."""
    assert run("mount", "-o", f"remount,size={nbytes}", str(mountpoint)).returncode == 0


class PowerCut:
    """A loop-mounted ext4 whose power can be cut."""

    def __init__(self, root: Path) -> None:
        need_root("mkfs.ext4", "mount", "losetup")
        self.mountpoint = root / "mnt"
        self._image = root / "image"
        self.mountpoint.mkdir()
        with self._image.open("wb") as file:
            file.truncate(48 << 20)
        done = run("mkfs.ext4", "-q", str(self._image))
        assert done.returncode == 0, done.stderr
        self.mount()

    def mount(self) -> None:
        done = run("mount", "-o", "loop,noauto_da_alloc", str(self._image), str(self.mountpoint))
        if done.returncode != 0:
            pytest.skip(f"cannot mount an ext4 by loop: {done.stderr.strip()}")

    def cut(self) -> None:
        """From here on nothing reaches the device, and what did not reach it yet is gone."""
        fd = os.open(self.mountpoint, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """Mount what the device has."""
        done = run("umount", str(self.mountpoint))
        assert done.returncode == 0, done.stderr
        self.mount()

    def close(self) -> None:
        run("umount", "-l", str(self.mountpoint))
