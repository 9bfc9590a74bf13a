"""`ebbmq users`: who may use a server, and for which queues."""

from __future__ import annotations

import click

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.values import show_count
from ebbmq.node.server.users import RIGHTS, Right, User, Users


@click.group(invoke_without_command=True, short_help="Say who may use the server.")
@common_options
@click.pass_context
def users(ctx: click.Context) -> None:
    """List the users of a data directory and what they may do.

    A server that runs on the directory follows every change at once. Without users it lets in
    everybody on its own machine, and nobody else.

    \b
    Examples:
      ebbmq users add shop --publish 'orders.*'
      ebbmq users add ops --manage '*' --publish '*' --consume '*'
      ebbmq users remove shop
    """
    if ctx.invoked_subcommand is None:
        _show_users(ctx.ensure_object(Session))


@users.command("list", short_help="List the users.")
@common_options
@pass_session
def list_users(session: Session) -> None:
    """List the users and the queue patterns they hold each scope for; tokens are not shown.

    \b
    Example:
      ebbmq users list --json
    """
    _show_users(session)


def _show_users(session: Session) -> None:
    known = Users(session.data).read()
    if session.as_json:
        session.show_json([{"name": name, **_scopes(user)} for name, user in known.items()])
    elif known:
        session.show_table(
            ("USER", *(scope.upper() for scope in RIGHTS)),
            (
                (name, *(", ".join(patterns) or "-" for patterns in _scopes(user).values()))
                for name, user in known.items()
            ),
        )
    else:
        session.note(
            f"no users in {session.data}: a server on it lets in this machine only; "
            "ebbmq users add NAME --publish '*' adds one"
        )


def _scopes(user: User) -> dict[str, tuple[str, ...]]:
    return {scope: getattr(user, scope) for scope in RIGHTS}


@users.command(short_help="Add a user and print the token.")
@click.argument("name")
@click.option("--publish", multiple=True, metavar="PATTERN", help="Queues to publish to.")
@click.option("--consume", multiple=True, metavar="PATTERN", help="Queues to lease from and peek.")
@click.option("--manage", multiple=True, metavar="PATTERN", help="Queues to declare and change.")
@click.option(
    "--privileged",
    multiple=True,
    metavar="PATTERN",
    help="Queues of which it is also given what privileged clients published.",
)
@common_options
@pass_session
def add(
    session: Session,
    name: str,
    publish: tuple[str, ...],
    consume: tuple[str, ...],
    manage: tuple[str, ...],
    privileged: tuple[str, ...],
) -> None:
    """Add the user NAME and print the token, this once: only its hash is kept.

    A PATTERN is a queue's name or a pattern such as 'orders.*'; 'topic:news' means a topic, and '*'
    alone every queue, every topic and the server as a whole. Options may be repeated.

    \b
    Example:
      ebbmq users add shop --publish 'orders.*' --publish topic:news --consume replies
    """
    store = Users(session.data)
    rights: dict[Right, tuple[str, ...]] = {
        "publish": publish,
        "consume": consume,
        "manage": manage,
        "privileged": privileged,
    }
    token = store.add(name, rights)
    if session.as_json:
        session.show_json({"name": name, "token": token, **_scopes(store.read()[name])})
        return
    session.note(f"the token of {name}; keep it now, it is not shown again:")
    session.say(token)


@users.command(short_help="Remove a user; the token stops at once.")
@click.argument("name")
@common_options
@pass_session
def remove(session: Session, name: str) -> None:
    """Remove the user NAME: the token is refused from this moment on.

    \b
    Example:
      ebbmq users remove shop
    """
    left = Users(session.data).remove(name)
    if session.as_json:
        session.show_json({"name": name, "outcome": "removed", "left": left})
        return
    session.say(f"{name} is removed, {show_count(left, 'user')} left")
    if not left:
        session.note("without users a server lets in everybody on its own machine, nobody else")
