"""``raftmq doctor``: examine the files of a stopped broker."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.exit_codes import CommandError, ExitCode, reported_question
from raftmq.cli.output import Output, OutputOption, counted, print_json
from raftmq.cli.times import format_time

if TYPE_CHECKING:
    from raftmq.storage.doctor import Diagnosis, Finding


@reported_question
def doctor(
    data_dir: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", readable=False, help="The data directory of a stopped broker.", show_default=False
        ),
    ],
    output: OutputOption = Output.TEXT,
) -> None:
    """Examine the data directory of a stopped broker: checksums, gaps in offsets, and agreement of files and registry.

    It describes each problem and how to fix it, and notes partitions that were recovered after a lost majority. It changes nothing and refuses a directory in use (exit code 4). Exit
    code 6 means that something is wrong, 0 that there are at most notes.
    """
    from raftmq.storage.doctor import NoDataDirectoryError, examine
    from raftmq.storage.errors import DirectoryInUseError

    try:
        with progress() as on_file:
            diagnosis = examine(data_dir, on_file)
    except DirectoryInUseError as error:
        raise CommandError(str(error), ExitCode.REJECTED) from None
    except NoDataDirectoryError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    if diagnosis.is_healthy:
        findings = (*diagnosis.findings, *recovery_findings(data_dir))
        diagnosis = dataclasses.replace(diagnosis, findings=findings)
    if output is Output.JSON:
        print_json(dataclasses.asdict(diagnosis) | {"is_healthy": diagnosis.is_healthy})
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_healthy:
        raise SystemExit(ExitCode.BAD_DATA)


def recovery_findings(data_dir: Path) -> list[Finding]:
    """Return a note for each recovery of a lost majority that the broker's metadata knows: the records that may be missing."""
    from raftmq.broker.cluster.stored_recoveries import stored_recoveries
    from raftmq.storage.doctor import Finding, Severity

    file, found = stored_recoveries(data_dir)
    notes = []
    for topic, one in found:
        lost = one.known_end_offset - one.log_end_offset
        known = (
            f", and {counted(lost, 'record')} up to offset {one.known_end_offset} are known to be lost" if lost else ""
        )
        problem = (
            f"partition {topic}/{one.partition} was recovered from its replica on broker {one.node_id} on "
            f"{format_time(one.recovered_at_ms)}: records from offset {one.log_end_offset} on that were acknowledged before may be missing{known}"
        )
        notes.append(Finding(Severity.NOTE, str(file.relative_to(data_dir)), problem))
    return notes


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print a diagnosis for people: the directory's broker, the amount of data read, and each finding with its advice."""
    broker = (
        f"broker {diagnosis.broker_id} of cluster {diagnosis.cluster_id}"
        if diagnosis.cluster_id
        else "a broker that belongs to no cluster"
    )
    print(f"{diagnosis.data_dir}: {broker}")
    print(
        f"read {diagnosis.replica_count} replicas, {diagnosis.row_count:,} rows, {diagnosis.byte_count / 1e6:,.1f} MB"
    )
    for finding in diagnosis.findings:
        print(f"\n{finding.severity.value}: {finding.subject}: {finding.problem}")
        if finding.advice:
            print(f"  what to do: {finding.advice}")
    print(f"\n{verdict(diagnosis)}")


def verdict(diagnosis: Diagnosis) -> str:
    """Return the last line of the output."""
    counts = {kind: sum(f.severity.value == kind for f in diagnosis.findings) for kind in ("damage", "warning")}
    if diagnosis.is_healthy:
        return "no problems found"
    return f"something is wrong: damage {counts['damage']}, warnings {counts['warning']}"


@contextmanager
def progress() -> Iterator[Callable[[Path, int, int], None]]:
    """Show a progress bar over the files if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda path, number, count: bar.update(
            task, description=f"reading {path.name}", completed=number - 1, total=count
        )
