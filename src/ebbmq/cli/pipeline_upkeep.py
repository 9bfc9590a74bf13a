"""`ebbmq pipeline upkeep`: packs of an archive written anew, its checksums verified, on Spark."""

from __future__ import annotations

from typing import Any

import click

from ebbmq.cli import archives
from ebbmq.cli.session import Session, anywhere_options, pass_session
from ebbmq.cli.spark import require_spark, spark_options, spark_settings


@click.command(short_help="Write thin packs of an archive anew, verify checksums.")
@archives.archive_options
@click.option("--look-only", is_flag=True, help="Write nothing: count, and verify if asked.")
@spark_options
@anywhere_options
@pass_session
def upkeep(session: Session, /, **options: Any) -> None:
    """Look after the packs of an archive, on Spark, beside brokers that go on reading them.

    Packs with many dead messages, and small ones, are written anew. The broker takes the new ones,
    without messages that left or moved meanwhile, and only then deletes the old ones. It is told
    over --url, or opened with --data; else it finds them itself if the device has
    upkeep = "pipeline". Exit code 1 if something is damaged.

    \b
    Examples:
      ebbmq pipeline upkeep --config ebbmq.toml --device archive --url http://127.0.0.1:8080
      ebbmq pipeline upkeep --archive file:///srv/archive --look-only --verify
      ebbmq pipeline upkeep --config ebbmq.toml --device archive --data /var/lib/ebbmq --keep 90d
    """
    place = archives.place_of(session, options)
    require_spark("upkeep")
    from ebbmq_spark.session import spark_session  # noqa: PLC0415  # an extra
    from ebbmq_spark.upkeep.job import upkeep  # noqa: PLC0415

    place.require()
    asked = archives.asked_of(options)
    with session.progress(counted=False) as bar:
        task = bar.add_task("starting Spark", total=None)
        with spark_session(spark_settings(options), "ebbmq pipeline upkeep") as spark:
            told = upkeep(spark, place, asked, lambda stage, _: bar.update(task, description=stage))
    applied = archives.apply(session, options, told)
    if session.as_json:
        session.show_json({"run": told, "applied": applied})
    else:
        archives.show(session, told, applied)
    if told.damage:
        raise SystemExit(1)
