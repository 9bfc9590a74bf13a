"""The rules and the devices as they are asked now.

Who has just refused a copy is left out, and who is being drained.

Everything here is called with the engine's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ebbmq.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Collection

    from ebbmq.model import QueueSpec
    from ebbmq.node.engine import Engine
    from ebbmq.policy.rules.choose import View
    from ebbmq.policy.rules.properties import States

_REFUSED_MS: Final = 1_000


class Viewing:
    """What is asked of the rules now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Devices that have just refused a copy, and until when nothing new is asked of them.
        self._refused: dict[str, int] = {}
        self._states: tuple[States, frozenset[str], States] | None = None

    def view(self) -> View:
        """The rules and the devices as they are now."""
        devices = self._engine.devices
        assert devices is not None
        states, draining = devices.states, devices.draining
        if not self._refused and not draining:
            return self._engine.rules.view(states)
        now_ms = self._engine.clock.elapsed_ms()
        if any(end <= now_ms for end in self._refused.values()):
            self._refused = {name: end for name, end in self._refused.items() if end > now_ms}
            self._states = None
        known = self._states
        if known is None or known[0] is not states or known[1] is not draining:
            unwanted = draining.union(self._refused)
            asked = {
                name: replace(state, usable=state.usable and name not in unwanted)
                for name, state in states.items()
            }
            known = self._states = states, draining, asked
        return self._engine.rules.view(known[2])

    def check(self, spec: QueueSpec) -> None:
        """Refuse a publish to a queue whose `min_copies` cannot be had now.

        Raises:
            Overloaded: code `too_few_devices`.
        """
        if spec.min_copies <= 1:
            return
        count = self.domains()
        if count < spec.min_copies:
            raise Overloaded(
                f"queue {spec.name!r} needs {spec.min_copies} copies, and devices of only "
                f"{count} failure domain{'s' if count > 1 else ''} can be used",
                "see `ebbmq devices`, add a device, or lower min_copies",
                code="too_few_devices",
            )

    def domains(self, *, without: Collection[str] = ()) -> int:
        """Of how many failure domains devices can be used, beside some of them."""
        if self._engine.devices is None:
            return 1
        states = self.view().states
        usable = [name for name in states if states[name].usable and name not in without]
        return len({states[name].failure_domain or name for name in usable})

    def refuse_for_now(self, device: str) -> None:
        """Ask nothing new of a device for a while: it has just refused a copy."""
        self._refused[device] = self._engine.clock.elapsed_ms() + _REFUSED_MS
        self._states = None
