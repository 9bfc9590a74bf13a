"""What a question is given: scratch space, its scale, a clock, and somewhere to tell progress."""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALIBRATION_STEPS: Final = 1_000
CALIBRATION_ROUNDS: Final = 200
MIB: Final = 1024 * 1024
Measured = TypeVar("Measured")


class Run:
    """One run of one question in a process of its own."""

    def __init__(
        self, directory: Path, *, quick: bool, tell: Callable[[str, int, int], None]
    ) -> None:
        self.directory = directory
        self.quick = quick
        self._tell = tell
        self._told_at = 0.0

    def scale(self, full: int, quick: int) -> int:
        """The size to measure at: the stated one, or a small one that only shows it works."""
        return quick if self.quick else full

    def fresh(self, name: str) -> Path:
        """An empty directory, whatever an earlier round left there."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def progress(self, label: str, done: int, total: int) -> None:
        """Say how far it is; at most ten times a second, so that telling is not measured."""
        now = time.monotonic()
        if done >= total or now - self._told_at > 0.1:
            self._told_at = now
            self._tell(label, done, total)

    def steps(self, label: str, total: int, step: int) -> Iterator[int]:
        """Sizes of at most `step` that add up to `total`, telling progress in between."""
        done = 0
        while done < total:
            size = min(step, total - done)
            yield size
            done += size
            self.progress(label, done, total)


def calibrate_us() -> float:
    """Microseconds for 1,000 steps of plain integer arithmetic: this machine, right now."""
    return median_us(_calibration_loop, CALIBRATION_ROUNDS)


def _calibration_loop() -> None:
    value = 1
    for _ in range(CALIBRATION_STEPS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFF_FFFF


def median_us(call: Callable[[], object], rounds: int) -> float:
    """The median time of one call in microseconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1_000


def rss_bytes() -> int:
    """Resident memory of this process once its garbage is collected."""
    gc.collect()
    return _status_bytes("VmRSS")


def apart(work: Callable[[], Measured]) -> Measured:
    """Do it in a process of its own, where memory that others let go of is not used again.

    This process must not have done anything that matters yet.
    """
    receiver, sender = Pipe(duplex=False)
    process = get_context("fork").Process(target=lambda: sender.send(work()))
    process.start()
    sender.close()
    try:
        measured: Measured = receiver.recv()
    finally:
        process.join()
    return measured


def forget_peak() -> None:
    """Have `peak_bytes` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most resident memory of this process at any time since `forget_peak`."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{field} is missing from /proc/self/status")


def disk_bytes(directory: Path) -> int:
    """Bytes the files below a directory occupy, as the file system counts them."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Look every 50 ms until the condition holds; False when it did not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
