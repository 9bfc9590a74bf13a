"""`ebbmq peek`: look at messages without taking them."""

from __future__ import annotations

from typing import Final, Literal, get_args

import click

from ebbmq.cli import messages
from ebbmq.cli.session import Session, anywhere_options, pass_session

State = Literal["ready", "leased", "scheduled", "replicating", "dying"]
STATES: Final[tuple[State, ...]] = get_args(State)


@click.command(short_help="Look at messages without taking them.")
@click.argument("queue")
@click.option(
    "--state", type=click.Choice(STATES), default="ready", show_default=True, help="Which messages."
)
@click.option(
    "--count", type=click.IntRange(min=1), default=10, show_default=True, help="How many at most."
)
@click.option("--counted", is_flag=True, help="A look is an access, as the decay score counts it.")
@anywhere_options
@pass_session
def peek(session: Session, queue: str, state: State, count: int, *, counted: bool) -> None:
    """Show messages of QUEUE in the order they would be delivered; nothing changes by looking.

    \b
    Examples:
      ebbmq peek orders
      ebbmq peek orders --state scheduled --count 100 --json
    """
    with session.open() as broker:
        session.require_queue(broker, queue)
        found = broker.peek(queue, count, state=state, counted=counted)
        stats = broker.stats(queue)
    if session.as_json:
        session.show_json([messages.as_json(message) for message in found])
    elif found:
        messages.show_messages(session, found, stats["now_ms"])
    elsewhere = ", ".join(
        f"{n:,} {name}" for name, n in stats["depth"].items() if n and name != state
    )
    if not found and not session.as_json:
        session.note(f"nothing {state} in {queue}" + (f" ({elsewhere})" if elsewhere else ""))
