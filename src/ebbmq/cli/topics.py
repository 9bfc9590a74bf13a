"""`ebbmq topics`: one publish for every queue subscribed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from ebbmq.cli.messages import MessageOptions, message_options, publish_all, show_receipts
from ebbmq.cli.queues import parse_field
from ebbmq.cli.session import Session, anywhere_options, did_you_mean, pass_session
from ebbmq.cli.values import duration_ms, pair, show_duration
from ebbmq.errors import UnknownQueue
from ebbmq.model import Scored, TopicSpec

if TYPE_CHECKING:
    from typing import Unpack

    from ebbmq.cli.session import Verbs


@click.group(invoke_without_command=True, short_help="Publish once to many queues.")
@anywhere_options
@click.pass_context
def topics(ctx: click.Context) -> None:
    """List the topics and the queues subscribed to each.

    \b
    Example:
      ebbmq topics declare news && ebbmq topics subscribe news mail
      ebbmq topics publish news 'all is well'
    """
    session = ctx.ensure_object(Session)
    if ctx.invoked_subcommand is not None:
        return
    with session.open() as broker:
        known = broker.topics()
    if session.as_json:
        session.show_json(known)
    elif known:
        session.show_table(
            ("TOPIC", ">MAX AGE", "QUEUES"),
            (
                (each["topic"], show_duration(each["max_age_ms"]), ", ".join(each["queues"]) or "-")
                for each in known
            ),
        )
    else:
        session.note(f"no topics in {session.place}; ebbmq topics declare NAME makes one")


def _require_topic(session: Session, broker: Verbs, name: str) -> None:
    known = [topic["topic"] for topic in broker.topics()]
    if name not in known:
        raise UnknownQueue(
            f"no topic {name!r} in {session.place}",
            f"{did_you_mean(name, known)}to make it: "
            f"ebbmq topics declare {shlex.quote(name)}{session.flags()}",
        )


@topics.command(short_help="Make a topic.")
@click.argument("name")
@click.option("--max-age", "max_age_ms", type=duration_ms, help="How long a message is kept.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    type=pair,
    metavar="FIELD=VALUE",
    help="A parameter of the decay score of what is published to it; repeat for more.",
)
@click.option("--change", is_flag=True, help="Have one that is there be like this.")
@anywhere_options
@pass_session
def declare(
    session: Session,
    name: str,
    max_age_ms: int | None,
    changes: tuple[tuple[str, str], ...],
    change: bool,
) -> None:
    """Make the topic NAME; declaring the same again changes nothing.

    \b
    Example:
      ebbmq topics declare news --max-age 7d --set score_per_day=1 --set score_high=30
    """
    fields = dict(parse_field(*each, kind=Scored) for each in changes)
    spec = TopicSpec(name, max_age_ms=max_age_ms, **fields)
    with session.open(create=True) as broker:
        broker.declare_topic(spec, change=change)
    if session.as_json:
        session.show_json(spec)
    else:
        session.say(f"topic {name} is declared in {session.place}")


@topics.command(short_help="Deliver a topic's messages to a queue.")
@click.argument("topic")
@click.argument("queue")
@anywhere_options
@pass_session
def subscribe(session: Session, topic: str, queue: str) -> None:
    """From now on, deliver what is published to TOPIC to QUEUE as well.

    \b
    Example:
      ebbmq topics subscribe news mail
    """
    with session.open() as broker:
        _require_topic(session, broker, topic)
        session.require_queue(broker, queue)
        broker.subscribe(topic, queue)
    if session.as_json:
        session.show_json({"topic": topic, "queue": queue, "outcome": "subscribed"})
    else:
        session.say(f"{queue} gets what is published to {topic}")


@topics.command(short_help="Deliver a topic's messages to a queue no longer.")
@click.argument("topic")
@click.argument("queue")
@anywhere_options
@pass_session
def unsubscribe(session: Session, topic: str, queue: str) -> None:
    """From now on, deliver nothing of TOPIC to QUEUE; what it has, it keeps.

    \b
    Example:
      ebbmq topics unsubscribe news mail
    """
    with session.open() as broker:
        _require_topic(session, broker, topic)
        session.require_queue(broker, queue)
        broker.unsubscribe(topic, queue)
    if session.as_json:
        session.show_json({"topic": topic, "queue": queue, "outcome": "unsubscribed"})
    else:
        session.say(f"{queue} no longer gets what is published to {topic}")


@topics.command(short_help="Delete a topic.")
@click.argument("name")
@anywhere_options
@pass_session
def delete(session: Session, name: str) -> None:
    """Delete the topic NAME; its queues keep what they got from it.

    \b
    Example:
      ebbmq topics delete news
    """
    with session.open() as broker:
        _require_topic(session, broker, name)
        broker.delete_topic(name)
    if session.as_json:
        session.show_json({"topic": name, "outcome": "deleted"})
    else:
        session.say(f"topic {name} is deleted; its queues keep what they got from it")


@topics.command(short_help="Publish messages to every queue of a topic.")
@click.argument("topic")
@message_options
@anywhere_options
@pass_session
def publish(session: Session, topic: str, **options: Unpack[MessageOptions]) -> None:
    """Publish messages to every queue subscribed to TOPIC; the body is stored once.

    \b
    Example:
      ebbmq topics publish news 'all is well' --importance 7
    """
    with session.open() as broker:
        _require_topic(session, broker, topic)
        receipts = publish_all(
            session,
            topic,
            options,
            lambda batch: broker.publish_topic(topic, batch, confirm=options["confirm"]),
        )
    if session.as_json:
        session.show_json({"topic": topic, "confirm": options["confirm"], "receipts": receipts})
    elif receipts:
        for queue, of_queue in receipts.items():
            show_receipts(session, queue, of_queue, options["confirm"])
    else:
        session.note(f"no queue is subscribed to {topic}: nothing is stored")
