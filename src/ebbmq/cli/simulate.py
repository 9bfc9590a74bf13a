"""`ebbmq simulate`: try policies on traffic before a queue gets one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from ebbmq.cli.session import Session, common_options, pass_session
from ebbmq.cli.spark import (
    lake_settings_option,
    open_lake,
    require_spark,
    spark_options,
    spark_settings,
)
from ebbmq.cli.values import duration_ms, money, pair, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbmq_spark.simulation.outcome import Outcome
    from ebbmq_spark.simulation.study import QueueStudy, Study
    from ebbmq_spark.simulation.sweep import Sweep

PATTERNS: Final = ("bursts", "diurnal", "overload")
PICTURE: Final = Path("ebbmq-simulate.png")
BEST: Final = Path("ebbmq-best.toml")
#: Policies in the table, beside the references, the best and named ones; --json has all of them.
SHOWN: Final = 8
SHARES: Final = (
    "worth_on_time", "on_time_share", "important_on_time", "let_go_share", "stale_share",
)  # fmt: skip
COLUMNS: Final = (
    "", "POLICY", ">WORTH", ">ON TIME", ">8-10", ">LET GO", ">WAIT P50", ">P99", ">PEAK",
    ">MB DAYS", ">COST",
)  # fmt: skip
_PARTS: Final = 16


@click.command(short_help="Try policies on traffic, on Spark.")
@click.option(
    "--policies",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A TOML file of policies and values to combine; the usual ones unless given.",
)
@click.option("--trace", help="A Parquet file or directory of recorded traffic.")
@click.option(
    "--lake",
    metavar="DIR|URL",
    help="Where nodes keep their feed, a directory or s3://bucket/prefix: the traffic they had.",
)
@lake_settings_option
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Simulate this one; as often as needed. All of them unless given.",
)
@click.option("--generate", "pattern", type=click.Choice(PATTERNS), help="Made-up traffic instead.")
@click.option(
    "--messages",
    type=click.IntRange(1, 2_000_000),
    default=200_000,
    show_default=True,
    help="How many to generate.",
)
@click.option(
    "--useful",
    "useful_ms",
    type=duration_ms,
    help="How long a message is useful, where the trace does not say.",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    type=pair,
    help="What a GiB of a tier costs for a month, as ssd=0.1; as often as needed.",
)
@click.option(
    "--resolution",
    "resolution_ms",
    type=duration_ms,
    help="1ms is exact and slow; a 25th of the useful time at most unless given.",
)
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), default=PICTURE, show_default=True
)
@spark_options
@common_options
@pass_session
def simulate(session: Session, /, **options: Any) -> None:
    """Replay traffic against many policies at once and say what each of them comes to.

    Every policy runs the broker's own queue on a virtual clock, with the consumers and working
    times of the trace. Shown are the importance done on time, what was let go, how long messages
    waited and what the backlog took; the best policy of each queue is written to
    ebbmq-best.toml.

    \b
    Examples:
      ebbmq simulate --generate overload
      ebbmq simulate --lake /var/lib/ebbmq/lake --useful 60s
      ebbmq simulate --trace monday.parquet --policies sweep.toml --useful 60s
      ebbmq simulate --generate bursts --messages 50000 --json
    """
    if sum(options[name] is not None for name in ("trace", "lake", "pattern")) != 1:
        raise click.UsageError("name the traffic once: --lake DIR, --trace FILE or --generate NAME")
    require_spark("simulating")
    from ebbmq_spark.session import spark_session  # noqa: PLC0415  # an extra
    from ebbmq_spark.simulation.study import study_lake, study_trace  # noqa: PLC0415

    sweep = _sweep(options)
    trace = _trace(session, options, sweep)
    # A trace is cut by queue, of which there are few: Spark's own 200 parts are mostly empty tasks.
    settings = msgspec.structs.replace(spark_settings(options), shuffle_partitions=_PARTS)
    asked = {
        "queues": options["queues"],
        "prices": {tier: money(amount) for tier, amount in options["prices"]},
        "resolution_ms": options["resolution_ms"],
    }
    with session.progress() as bar:
        task = bar.add_task("starting Spark", total=None)
        with spark_session(settings, "ebbmq simulate") as spark:
            bar.update(task, description="simulating")
            run = study_trace if options["lake"] is None else study_lake
            study = run(spark, trace, sweep, **asked)
    _tell_what_is_not_in_it(session, study)
    _finish(session, study.studies, sweep, options)


def _sweep(options: dict[str, Any]) -> Sweep:
    from ebbmq_spark.simulation.sweep import Sweep, read_sweep  # noqa: PLC0415

    path: Path | None = options["policies"]
    sweep = Sweep() if path is None else read_sweep(path.read_bytes(), str(path))
    if options["useful_ms"] is None:
        return sweep
    traffic = msgspec.structs.replace(sweep.traffic, useful_ms=options["useful_ms"])
    return msgspec.structs.replace(sweep, traffic=traffic)


def _trace(session: Session, options: dict[str, Any], sweep: Sweep) -> Any:
    """The traffic: the path of a trace, a lake, or what is generated."""
    if options["trace"] is not None:
        return options["trace"]
    if options["lake"] is not None:
        lake = open_lake(options)
        lake.require()
        return lake
    from ebbmq_spark.simulation.generate import SHAPES, generate  # noqa: PLC0415

    pattern, count = options["pattern"], options["messages"]
    session.note(f"{pattern}: {show_count(count, 'message')}, {SHAPES[pattern].says}")
    return generate(pattern, count, consumers=sweep.traffic.consumers or 0)


def _tell_what_is_not_in_it(session: Session, study: Study) -> None:
    for each in study.refused:
        session.note(f"attention: {each.detail}; {each.action}")
    for node, count in study.missing.items():
        session.note(f"attention: the lake lacks {show_count(count, 'event')} of node {node}")
    if study.left_out:
        they = "it" if len(study.left_out) == 1 else "them"
        named = ", ".join(study.left_out)
        session.note(f"attention: left out, as no message of {they} was ever done: {named}")
    for queue in study.astray:
        session.note(
            f"attention: [queues.{queue}] counts for nothing: there is no such queue in the traffic"
        )


def _finish(
    session: Session, studies: Sequence[QueueStudy], sweep: Sweep, options: dict[str, Any]
) -> None:
    from ebbmq_spark.simulation import picture  # noqa: PLC0415
    from ebbmq_spark.simulation.study import best_toml  # noqa: PLC0415

    BEST.write_text(best_toml(studies, _heading(studies, options)), encoding="utf-8")
    picture.draw(studies, sweep.goal, options["picture"])
    if session.as_json:
        session.show_json(
            {
                "queues": {each.queue: _as_json(each) for each in studies},
                "best": str(BEST),
                "picture": str(options["picture"]),
            }
        )
        return
    for each in studies:
        _show(session, each, sweep)
    session.say(f"The best as TOML: {BEST}")
    session.say(f"The picture: {options['picture']}")


def _heading(studies: Sequence[QueueStudy], options: dict[str, Any]) -> str:
    tried = max(len(each.outcomes) for each in studies)
    messages = sum(each.outcomes[0].messages for each in studies)
    traffic = options["trace"] or options["lake"] or f"generated traffic ({options['pattern']})"
    return f"ebbmq simulate: {tried} policies, {show_count(messages, 'message')} of {traffic}"


def _as_json(study: QueueStudy) -> dict[str, object]:
    return {
        "best": study.choice.best.policy,
        "differ": study.choice.differ,
        "front": [each.policy for each in study.choice.front],
        "policies": [
            {
                **msgspec.to_builtins(each),
                **{name: getattr(each, name) for name in SHARES},
                "spec": study.fields[each.policy],
            }
            for each in study.outcomes
        ],
    }


def _show(session: Session, study: QueueStudy, sweep: Sweep) -> None:
    best = study.choice.best
    shown = study.shown(SHOWN, sweep.policies)
    session.say(
        f"queue {study.queue}: {show_count(best.messages, 'message')}, "
        f"{len(study.outcomes)} policies, "
        f"time goes on in steps of {show_duration(best.resolution_ms)} (--resolution)"
    )
    session.show_table(COLUMNS, (_cells(each, study) for each in shown))
    if len(shown) < len(study.outcomes):
        session.say(f"and {len(study.outcomes) - len(shown)} more, which --json has, too")
    if not study.choice.differ and len(study.outcomes) > 1:
        session.note(
            "attention: no policy differs from another by more than 1 %; "
            f"for this traffic {best.policy} is as good as any: leave queue {study.queue} as it is"
        )


def _cells(outcome: Outcome, study: QueueStudy) -> tuple[object, ...]:
    mark = (
        "best" if outcome is study.choice.best else "front" if outcome in study.choice.front else ""
    )
    return (
        mark,
        outcome.policy,
        f"{outcome.worth_on_time:.1%}",
        f"{outcome.on_time_share:.1%}",
        "-" if outcome.important_on_time is None else f"{outcome.important_on_time:.1%}",
        f"{outcome.let_go_share:.1%}",
        show_duration(outcome.wait_p50_ms),
        show_duration(outcome.wait_p99_ms),
        f"{outcome.peak_messages:,}",
        f"{outcome.byte_days / 1e6:,.3g}",
        "-" if outcome.cost is None else f"{outcome.cost:,.3g}",
    )
