"""Run the jobs from the command line: ``python -m raftmq.spark JOB …``, or ``spark-submit`` with this file.

::

    python -m raftmq.spark archive --bootstrap-servers localhost:9400 --topics flights --to /data/flights --master 'local[4]'
    python -m raftmq.spark compact --archive /data/flights
    python -m raftmq.spark replay --bootstrap-servers localhost:9400 --archive /data/flights --checkpoint /data/replay
    python -m raftmq.spark audit --bootstrap-servers localhost:9400 --topics flights --duplicates-by header:id
    python -m raftmq.spark mirror --from localhost:9400 --to localhost:9500 --topics flights --checkpoint /data/mirror
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from raftmq.errors import RaftMQError
from raftmq.spark.jobs.running import EXIT_STOPPED, Stop, explain, names_of, open_session, say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.adaptive.enabled": "true"}
REPLAY_TASKS = 8
KEEP_HOURS = 168
LATEST_OFFSET: Final = re.compile(r":\s*-1\s*[,}]")
"""The latest offset of a partition, in offsets as JSON."""
SOURCE_OPTIONS = (
    "bootstrap.servers",
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "includeHeaders",
)
"""Options of the source that archive, audit and mirror set themselves."""
AUDIT_OPTIONS = (
    *SOURCE_OPTIONS,
    *(f"{side}{what}" for side in ("starting", "ending") for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")),
    "columns",
)
REPLAY_OPTIONS = ("bootstrap.servers", "orderColumn", "timestampColumn", "writerName", "writerEpoch", "topic")
SERVERS = "HOST:PORT[,HOST:PORT…]"
REMEMBERS = "folder where the job stores its progress"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and return its exit code.

    Codes are the ``raftmq`` command's: 0 success, 2 a bad argument, 3 no broker was reached, 6 an audit found violations. 130 means
    that the job was stopped on request.
    """
    found = parser().parse_args(arguments)
    stop = Stop()
    spark = None
    try:
        if found.job == "batches":
            code = _batches(found)
        else:
            spark = open_session(f"raftmq {found.job}", found.master, SESSION_SETTINGS | dict(found.conf))
            stop.listen()
            code = _run(spark, found, stop)
    except Exception as error:  # noqa: BLE001 - the root of the program
        if stop.is_cancelled(error):
            code = EXIT_STOPPED
        else:
            code, sentence = explain(error)
            if not isinstance(error, RaftMQError):  # a RaftMQ error needs no traceback
                traceback.print_exception(error, file=sys.stderr)
            say("failed", message=sentence)
    finally:
        if spark is not None:
            spark.stop()
    say("ended", job=found.job, exit_code=code)
    return code


def _batches(found: argparse.Namespace) -> int:
    from raftmq.spark.jobs.batches import batches

    return batches(found.bootstrap_servers, found.topic, found.abandon)


def _run(spark: SparkSession, found: argparse.Namespace, stop: Stop) -> int:
    # imported here, so that a job loads only its own modules, and --help nothing of Spark
    match found.job:
        case "archive":
            from raftmq.spark.jobs.archive import ArchiveSettings, archive, default_checkpoint

            checkpoint = found.checkpoint or default_checkpoint(spark, found.to)
            settings = ArchiveSettings(
                servers=found.bootstrap_servers,
                topics=names_of(found.topics),
                source=dict(found.option),
                archive=found.to,
                checkpoint=checkpoint,
                trigger_seconds=found.continuous,
            )
            return archive(spark, settings, stop)
        case "compact":
            from raftmq.spark.jobs.compact import HOUR_MS, compact

            return compact(spark, found.archive, stop, found.small_mib << 20, kept_ms=found.keep_hours * HOUR_MS)
        case "replay":
            from raftmq.spark.jobs.replay import ReplaySettings, replay

            sink = {"bootstrap.servers": found.bootstrap_servers} | dict(found.option)
            back = ReplaySettings(
                sink, found.archive, found.checkpoint, found.topic, not found.by_key, tasks=found.tasks
            )
            return replay(spark, back, stop)
        case "audit":
            from raftmq.spark.jobs.audit import AuditSettings, audit

            wanted = AuditSettings(
                servers=found.bootstrap_servers,
                topics=names_of(found.topics),
                source=dict(found.option),
                duplicates_by=found.duplicates_by,
                order_by=found.order_by,
                checkpoint=found.checkpoint,
                accepts_recoveries=found.accept_recoveries,
            )
            return audit(spark, wanted, stop)
        case _:
            from raftmq.spark.jobs.mirror import MirrorSettings, mirror

            return mirror(
                spark,
                MirrorSettings(
                    source_servers=found.source,
                    target_servers=found.to,
                    topics=names_of(found.topics),
                    prefix=found.prefix,
                    source=dict(found.option),
                    checkpoint=found.checkpoint,
                    trigger_seconds=found.continuous,
                ),
                stop,
            )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = argparse.ArgumentParser(prog="python -m raftmq.spark", description="Jobs over RaftMQ topics, run by Spark.")
    jobs = whole.add_subparsers(dest="job", required=True)

    archive = _job(jobs, "archive", "store topics as a Delta table, each record once")
    _servers(archive)
    _topics(archive)
    archive.add_argument(
        "--to", required=True, metavar="FOLDER", help="folder of the archive, on any file system of Spark"
    )
    archive.add_argument(
        "--checkpoint", metavar="FOLDER", help="checkpoint folder (default: _checkpoint/ in the archive)"
    )
    _continuous(archive)

    compact = _job(jobs, "compact", "merge an archive's small files")
    _archive(compact)
    compact.add_argument(
        "--small-mib", type=_count, default=128, metavar="MIB", help="merge smaller entries (default: 128)"
    )
    compact.add_argument(
        "--keep-hours",
        type=_count,
        default=KEEP_HOURS,
        metavar="HOURS",
        help=f"keep merged files this long for readers that still use them (default: {KEEP_HOURS})",
    )

    replay = _job(jobs, "replay", "write an archive back to topics")
    _servers(replay)
    _archive(replay)
    replay.add_argument("--checkpoint", required=True, metavar="FOLDER", help=REMEMBERS)
    replay.add_argument(
        "--topic", metavar="NAME", help="existing topic for all records (default: their original topics)"
    )
    replay.add_argument(
        "--by-key",
        action="store_true",
        help="choose partitions by key (default: keep partitions; the topic must have at least as many)",
    )
    replay.add_argument(
        "--tasks",
        type=_count,
        default=REPLAY_TASKS,
        metavar="N",
        help=f"number of Spark tasks (default: {REPLAY_TASKS})",
    )

    audit = _job(jobs, "audit", "check topics; exit code 6 on violations")
    _servers(audit)
    _topics(audit)
    audit.add_argument("--duplicates-by", metavar="WHAT", help="key, value or header:NAME, which must be unique")
    audit.add_argument("--order-by", metavar="WHAT", help="timestamp or header:NAME, which must not fall within a key")
    audit.add_argument("--checkpoint", metavar="FOLDER", help="folder to resume from the last audit without violations")
    audit.add_argument(
        "--accept-recoveries",
        action="store_true",
        help="report records lost in a recovery of a partition, but do not count them as violations",
    )

    mirror = _job(jobs, "mirror", "copy topics to another cluster, each record once")
    mirror.add_argument("--from", required=True, dest="source", metavar=SERVERS, help="brokers to read from")
    mirror.add_argument("--to", required=True, metavar=SERVERS, help="brokers to write to")
    _topics(mirror)
    mirror.add_argument("--prefix", default="", metavar="TEXT", help="prefix of the topics' names on the target")
    mirror.add_argument("--checkpoint", required=True, metavar="FOLDER", help=REMEMBERS)
    _continuous(mirror)

    batches = _job(
        jobs, "batches", "list the open batches of a topic that is written with atomicBatches; needs no Spark"
    )
    _servers(batches)
    batches.add_argument("--topic", required=True, metavar="NAME", help="existing topic")
    batches.add_argument(
        "--abandon",
        metavar="WRITER",
        help="make the rows visible that this writer's open batch has written; only if its query is dead: the batch of a running one is then"
        " read in parts",
    )

    for job in (archive, compact, replay, audit, mirror):
        job.add_argument("--master", metavar="URL", help="Spark master (default: spark-submit's, or local[*])")
        job.add_argument(
            "--conf",
            action="append",
            type=_pair,
            default=[],
            metavar="KEY=VALUE",
            help="Spark setting; repeatable",
        )
    for job, side, kind in (
        (archive, "source", _archive_option),
        (replay, "sink", _option(REPLAY_OPTIONS)),
        (audit, "source", _option(AUDIT_OPTIONS)),
        (mirror, "source", _option(SOURCE_OPTIONS)),
    ):
        job.add_argument(
            "--option",
            action="append",
            type=kind,
            default=[],
            metavar="KEY=VALUE",
            help=f"option of the RaftMQ {side} in Spark; repeatable",
        )
    return whole


def _job(jobs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, says: str) -> argparse.ArgumentParser:
    return jobs.add_parser(name, help=says, description=f"{name.capitalize()}: {says}.")


def _servers(job: argparse.ArgumentParser) -> None:
    job.add_argument("--bootstrap-servers", required=True, metavar=SERVERS, help="one or more brokers of the cluster")


def _topics(job: argparse.ArgumentParser) -> None:
    job.add_argument("--topics", required=True, metavar="NAME[,NAME…]", help="existing topics")


def _archive(job: argparse.ArgumentParser) -> None:
    job.add_argument("--archive", required=True, metavar="FOLDER", help="folder of the archive")


def _continuous(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "--continuous",
        type=_seconds,
        metavar="SECONDS",
        help="run until stopped, with a batch every SECONDS (default: process existing records, then end)",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"0 or more seconds, not {text!r}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"KEY=VALUE, not {text!r}")
    return key, value


def _archive_option(text: str) -> tuple[str, str]:
    """Read an option of the source of an archive, which begins with a record that is known: `latest` moves until the first batch."""
    key, value = _option(SOURCE_OPTIONS)(text)
    wanted = value.strip().lower()
    has_latest = wanted == "latest" or LATEST_OFFSET.search(value) is not None
    if (key.lower() == "startingoffsets" and has_latest) or (
        key.lower() == "startingoffsetsbytimestampstrategy" and wanted == "latest"
    ):
        raise argparse.ArgumentTypeError(
            f"{key}={value} would leave records out of the archive: name offsets, or startingTimestamp"
        )
    return key, value


def _option(own: Sequence[str]) -> Callable[[str], tuple[str, str]]:
    lowered = {name.lower() for name in own}

    def option(text: str) -> tuple[str, str]:
        key, value = _pair(text)
        if key.lower() in lowered:
            raise argparse.ArgumentTypeError(f"{key} is set by the job itself: leave it out")
        return key, value

    return option


if __name__ == "__main__":
    raise SystemExit(main())
