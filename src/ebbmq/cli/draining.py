"""How far the draining of a device is, shown while the call that asked for it waits."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from ebbmq.cli.session import Session, Verbs

_LOOK_EVERY_S: Final = 0.25


@contextlib.contextmanager
def watched(session: Session, broker: Verbs, name: str) -> Iterator[None]:
    """Show how many messages are still only on a device, where somebody watches."""
    if not session.err.is_terminal:
        yield
        return
    done = threading.Event()
    with session.progress() as bar, contextlib.ExitStack() as opened:
        # A client makes one call after the other; a broker is asked from any thread.
        server = session.server.url is not None
        other = opened.enter_context(session.open()) if server else broker
        watching = threading.Thread(target=_watch, args=(other, name, bar, done))
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()


def _watch(broker: Verbs, name: str, bar: Progress, done: threading.Event) -> None:
    task = bar.add_task(f"evicting {name}", total=None)
    most = 0
    while not done.wait(_LOOK_EVERY_S):
        with contextlib.suppress(EbbError):
            for device in broker.devices():
                if device.name == name and device.standing == "draining":
                    most = max(most, device.undrained)
                    bar.update(
                        task,
                        description=f"draining {name}",
                        completed=most - device.undrained,
                        total=most,
                    )
