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
from raftmq.cli.output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from raftmq.storage.doctor import Diagnosis


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

    It describes each problem and how to fix it. It changes nothing and refuses a directory in use (exit code 4). Exit
    code 6 means that something is wrong, 0 that there are at most notes.
    """
    from raftmq.storage.doctor import DirectoryInUseError, NoDataDirectoryError, examine

    try:
        with progress() as on_file:
            diagnosis = examine(data_dir, on_file)
    except DirectoryInUseError as error:
        raise CommandError(str(error), ExitCode.REJECTED) from None
    except NoDataDirectoryError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    if output is Output.JSON:
        print_json(dataclasses.asdict(diagnosis) | {"is_healthy": diagnosis.is_healthy})
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_healthy:
        raise SystemExit(ExitCode.BAD_DATA)


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
