"""What can be said in `.option(..)`: checked before anything is done, errors name the option.

Spark hands options over as texts under names without case. None of what is made of them shows a
secret when it is printed.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ebbmq import limits
from ebbmq.errors import InvalidSpec
from ebbmq.model import LEVELS
from ebbmq_spark.places import Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbmq.model import Level

#: Options that begin with this go to the object store: `store.endpoint`, `store.access_key_id`.
STORE: Final = "store."
#: What Spark itself puts among the options.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
#: What Spark adds when it makes a table of its catalog.
_CATALOGED: Final = "provider"
_STATES: Final = ("ready", "leased", "scheduled", "replicating", "dying")


class Option(NamedTuple):
    """An option: where it counts, and what it means."""

    name: str
    used_by: str
    meaning: str


OPTIONS: Final = (
    Option("table", "read", "`queue`, `archive`, or a table of a lake: `events`, `catalog`, .."),
    Option("columns", "read", "the columns to read, with commas between them; all by default"),
    Option("url", "queue", "the server, such as `http://127.0.0.1:8080`"),
    Option("queue", "queue", "the queue's name"),
    Option("token", "queue", "what `ebbmq users add` printed, if the server has users"),
    Option("tokenFile", "queue", "a file that holds the token, on the driver and on executors"),
    Option("caFile", "queue", "the PEM certificate an https server's was signed with"),
    Option("timeoutMs", "queue", "how long a request may take with all its tries: 60000"),
    Option("state", "queue, batch", "which messages to look at: `ready`"),
    Option("rowsPerPartition", "queue", "how many messages a task reads: 25000"),
    Option("maxMessages", "stream", "messages leased for one micro-batch, at most: 100000"),
    Option("leaseTimeoutMs", "stream", "how long a lease lasts unless it is extended: 60000"),
    Option("waitMs", "stream", "how long to wait for a first message: 500"),
    Option("path", "lake, archive", "a directory, or the URL of an object store"),
    Option("store.*", "lake, archive", "what obstore takes for that URL, such as `store.endpoint`"),
    Option("idColumn", "write", "the column that tells messages apart: published twice, kept once"),
    Option("atLeastOnce", "write", "`true` to go without `idColumn`"),
    Option("sinkId", "writeStream", "whose committed batches are remembered: the query's id"),
    Option("confirm", "write", "`synced`, `written` or `memory`: `synced`"),
    Option("bodyColumn", "write", "the column of the body: `body`"),
    Option("headersColumn", "write", "a map of texts to texts: `headers`"),
    Option("importanceColumn", "write", "`importance`"),
    Option("ttlColumn", "write", "`ttl_ms`"),
    Option("decayRateColumn", "write", "`decay_rate`"),
    Option("delayColumn", "write", "`delay_ms`"),
    Option("keyColumn", "write", "`key`"),
    Option("typeColumn", "write", "`type`"),
    Option("storeColumn", "write", "`store`"),
    Option("replicasColumn", "write", "`replicas`"),
    Option("durableColumn", "write", "`durable`"),
)
_NAMES: Final = {option.name.lower(): option.name for option in OPTIONS}


def check_names(given: Mapping[str, str]) -> None:
    """Refuse an option that is not known.

    Raises:
        InvalidSpec: there is one; it names the nearest known one. Or a table of Spark's catalog is
            to be made: queries on it would come without its options.
    """
    if _CATALOGED in given:
        raise InvalidSpec(
            "Spark does not hand the options of a table in its catalog on to sources in Python",
            "use CREATE TEMPORARY VIEW .. USING ebbmq OPTIONS (..)",
        )
    for name in given:
        lower = name.lower()
        if lower in _NAMES or lower in _SPARKS or lower.startswith(STORE):
            continue
        near = difflib.get_close_matches(lower, _NAMES, 1, 0.6)
        hint = f"did you mean {_NAMES[near[0]]}?" if near else "see docs/connector.md"
        raise InvalidSpec(f"option {name!r:.80} is not known", hint)


def text(given: Mapping[str, str], name: str, default: str | None = None) -> str:
    """An option as it is.

    Raises:
        InvalidSpec: it is not given, and there is no default.
    """
    found = given.get(name.lower(), default)
    if not found:
        meaning = next(option.meaning for option in OPTIONS if option.name == name)
        raise InvalidSpec(f"option {name} is missing", f"give it: {meaning}")
    return found


def whole(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """An option as a whole number.

    Raises:
        InvalidSpec: it is none, or out of bounds.
    """
    told = given.get(name.lower())
    if told is None:
        return default
    if not told.isascii() or not told.isdecimal() or not low <= int(told) <= high:
        raise InvalidSpec(
            f"option {name} is {told!r:.80}", f"use a whole number from {low} to {high}"
        )
    return int(told)


def choice(given: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str:
    """An option that is one of a few words.

    Raises:
        InvalidSpec: it is another one.
    """
    told = given.get(name.lower(), default).lower()
    if told not in words:
        raise InvalidSpec(f"option {name} is {told!r:.80}", f"use one of {', '.join(words)}")
    return told


@dataclass(frozen=True, slots=True)
class Server:
    """Where a broker is and who asks."""

    url: str
    token: str | None = field(repr=False)
    ca_file: str | None
    timeout_ms: int


def server_of(given: Mapping[str, str]) -> Server:
    """The server that options name.

    Raises:
        InvalidSpec: there is none, or its token is given twice or cannot be read.
    """
    token, path = given.get("token"), given.get("tokenfile")
    if token and path:
        raise InvalidSpec("options token and tokenFile are both given", "give one of them")
    if path:
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            raise InvalidSpec(
                f"option tokenFile is {path}, which cannot be read: {error.strerror}",
                "give a file that is there on the driver and on every executor",
            ) from error
    return Server(
        text(given, "url"),
        token or None,
        given.get("cafile"),
        whole(given, "timeoutMs", 60_000, 1, limits.DURATION_MS_MAX),
    )


@dataclass(frozen=True, slots=True)
class QueueReading:
    """A queue to look at."""

    server: Server
    queue: str
    state: str
    rows_per_partition: int


def queue_reading(given: Mapping[str, str]) -> QueueReading:
    """What to look at, by options."""
    return QueueReading(
        server_of(given),
        text(given, "queue"),
        choice(given, "state", "ready", _STATES),
        whole(given, "rowsPerPartition", 25_000, 1, limits.LEASE_COUNT_MAX),
    )


@dataclass(frozen=True, slots=True)
class Leasing:
    """A queue to lease from."""

    server: Server
    queue: str
    messages_max: int
    lease_timeout_ms: int
    wait_ms: int
    rows_per_partition: int


def leasing(given: Mapping[str, str]) -> Leasing:
    """What to lease, by options."""
    return Leasing(
        server_of(given),
        text(given, "queue"),
        whole(given, "maxMessages", limits.LEASE_COUNT_MAX, 1, limits.LEASE_COUNT_MAX),
        whole(given, "leaseTimeoutMs", 60_000, 1_000, limits.DURATION_MS_MAX),
        whole(given, "waitMs", 500, 0, 60_000),
        whole(given, "rowsPerPartition", 25_000, 1, limits.LEASE_COUNT_MAX),
    )


def place_of(given: Mapping[str, str]) -> Place:
    """Where files are, by options."""
    store = {
        name.lower().removeprefix(STORE): value
        for name, value in given.items()
        if name.lower().startswith(STORE)
    }
    return Place(text(given, "path"), store)


@dataclass(frozen=True, slots=True)
class Publishing:
    """A queue to publish to."""

    server: Server
    queue: str
    id_column: str | None
    confirm: Level
    #: The column of each field of a message, by the field's name.
    columns: dict[str, str]
    sink_id: str | None
    #: Where Spark notes what it has done, as far as it was told to by an option.
    checkpoint: str | None


#: Which option names the column of a field; without it the column is called as the field is.
FIELDS: Final = {
    "body": "bodyColumn",
    "headers": "headersColumn",
    "importance": "importanceColumn",
    "ttl_ms": "ttlColumn",
    "decay_rate": "decayRateColumn",
    "delay_ms": "delayColumn",
    "key": "keyColumn",
    "type": "typeColumn",
    "store": "storeColumn",
    "replicas": "replicasColumn",
    "durable": "durableColumn",
}


def publishing(given: Mapping[str, str]) -> Publishing:
    """What to publish and how, by options.

    Raises:
        InvalidSpec: something is missing; also whether messages may be published twice.
    """
    check_names(given)
    id_column = given.get("idcolumn") or None
    twice = choice(given, "atLeastOnce", "false", ("true", "false")) == "true"
    if id_column is None and not twice:
        raise InvalidSpec(
            "option idColumn is missing: a task or a batch that is tried again would publish "
            "its messages twice",
            "name the column that tells messages apart, or accept that with atLeastOnce=true",
        )
    confirm = choice(given, "confirm", "synced", LEVELS)
    return Publishing(
        server_of(given),
        text(given, "queue"),
        id_column,
        confirm,  # type: ignore[arg-type]  # it is one of LEVELS
        {name: given.get(option.lower()) or name for name, option in FIELDS.items()},
        given.get("sinkid") or None,
        given.get("checkpointlocation") or None,
    )
