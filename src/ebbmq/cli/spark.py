"""What commands on Spark share: the options that say where it runs, and whether it is here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ebbmq.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq_spark.session import Settings

F = TypeVar("F", bound="Callable[..., Any]")


def spark_options(command: F) -> F:
    """`--master` and `--memory`: this machine unless given."""
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
    """`--lake DIR`, which every command on a lake needs."""
    return click.option(
        "--lake",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="The directory in which brokers keep their feed.",
    )(command)


def require_spark(doing: str) -> None:
    """See that the extra is installed.

    Args:
        doing: what runs on Spark, as the beginning of a sentence.

    Raises:
        ClientError: it is not.
    """
    try:
        import ebbmq_spark.lake  # noqa: F401, PLC0415  # an optional dependency
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

    return Settings(master=options["master"], memory=options["memory"])
