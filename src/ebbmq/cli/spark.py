"""What commands on Spark share: the options that say where it runs, and whether it is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from ebbmq.cli.values import pair
from ebbmq.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq_spark.lake import Lake
    from ebbmq_spark.session import Settings

F = TypeVar("F", bound="Callable[..., Any]")


def spark_options(command: F) -> F:
    """`--master`, `--memory` and `--conf`: this machine unless given."""
    command = click.option(
        "--conf",
        multiple=True,
        type=pair,
        help="A setting by Spark's own name, as spark.executor.memory=2g; as often as needed.",
    )(command)
    command = click.option(
        "--memory", default="1g", show_default=True, help="Of Spark on this machine."
    )(command)
    return click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs: local[*], spark://HOST:PORT, or sc://HOST:PORT of Spark Connect.",
    )(command)


def lake_option(command: F) -> F:
    """`--lake` and `--lake-option`, which every command on a lake takes."""
    command = lake_settings_option(command)
    return click.option(
        "--lake",
        required=True,
        metavar="DIR|URL",
        help="Where brokers keep their feed: a directory, or s3://bucket/prefix, gs://, az://.",
    )(command)


def lake_settings_option(command: F) -> F:
    """`--lake-option`, what an object store asks for."""
    return click.option(
        "--lake-option",
        "lake_options",
        multiple=True,
        type=pair,
        help="Of a store, as obstore names it: endpoint=..; else its usual variables count.",
    )(command)


def open_lake(options: dict[str, Any]) -> Lake:
    """The lake that `lake_option` took in.

    Raises:
        ClientError: there is no such kind of lake, or what it needs is not installed.
    """
    from ebbmq_spark import lake  # noqa: PLC0415  # of its own package

    return lake.open_lake(options["lake"], dict(options["lake_options"]))


def require_spark(doing: str) -> None:
    """See that the extra is installed.

    Args:
        doing: what runs on Spark, as the beginning of a sentence.

    Raises:
        ClientError: it is not.
    """
    try:
        import ebbmq_spark.schemas  # noqa: F401, PLC0415  # an optional dependency
    except ModuleNotFoundError as error:
        package = (error.name or "a package of it").partition(".")[0]
        raise ClientError(
            f"{doing} runs on Spark, and {package} is not installed",
            "pip install 'ebbmq[spark]'; Spark also needs Java 17 or newer",
            code="spark_missing",
        ) from error


def spark_settings(options: dict[str, Any]) -> Settings:
    """How to run Spark, by what `spark_options` took in."""
    from ebbmq_spark.session import Settings  # noqa: PLC0415

    more = dict(options["conf"])
    return Settings(master=options["master"], memory=options["memory"], more=more)
