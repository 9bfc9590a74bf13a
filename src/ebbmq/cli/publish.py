"""`ebbmq publish`: messages from the command line, lines of stdin, or files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ebbmq.cli.messages import MessageOptions, message_options, publish_all, show_receipts
from ebbmq.cli.session import Session, anywhere_options, pass_session

if TYPE_CHECKING:
    from typing import Unpack


@click.command(short_help="Publish messages to a queue.")
@click.argument("queue")
@message_options
@anywhere_options
@pass_session
def publish(session: Session, queue: str, **options: Unpack[MessageOptions]) -> None:
    """Publish messages to QUEUE and print their ids.

    Each TEXT is one message; - makes one message of each line of stdin.

    \b
    Examples:
      ebbmq publish orders 'pay invoice 17' --importance 9 --ttl 60s --decay-rate 0.5
      ebbmq publish orders --delay 5m --header tenant=acme 'remind me'
      ebbmq publish orders --type TEXT --replicas 2 --store ssd 'keep me well'
      seq 1000 | ebbmq publish orders -
    """
    with session.open() as broker:
        session.require_queue(broker, queue)
        receipts = publish_all(
            session,
            queue,
            options,
            lambda batch: {queue: broker.publish(queue, batch, confirm=options["confirm"])},
        ).get(queue, [])
    if session.as_json:
        session.show_json({"queue": queue, "confirm": options["confirm"], "receipts": receipts})
    else:
        show_receipts(session, queue, receipts, options["confirm"])
