"""A command that is interrupted where Python drops what is raised, after it wrote its plan.

python -m tests.pipeline.dropping_driver pipeline plan --lake ..
"""

from __future__ import annotations

import signal
import sys
import weakref

from ebbmq.cli.main import main


class Let:
    """What is let go of while a signal comes."""


def let_go() -> None:
    """Have Ctrl-C come in a weakref callback, as py4j has one for each object of Java."""
    let = Let()
    held = weakref.ref(let, lambda _: signal.raise_signal(signal.SIGINT))
    del let
    assert held() is None
    sys.stdout.write("let go\n")


class Watch:
    """Lets go when Python looks at what Spark wrote, before anything of it is named."""

    is_done = False

    def __call__(self, event: str, told: tuple[object, ...]) -> None:
        """Hear of what Python does."""
        if self.is_done or event not in ("os.listdir", "os.scandir"):
            return
        if "/plans/run=" in str(told[0]):
            self.is_done = True
            let_go()


if __name__ == "__main__":
    sys.addaudithook(Watch())
    main()
