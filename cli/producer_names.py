"""``raftmq cluster forget-names``: remove names of producers that nobody uses."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange, format_duration
from raftmq.cli.exit_codes import reported
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, YesOption, confirm
from raftmq.cli.output import Output, OutputOption, counted, print_json
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

_SHOWN_MAX = 10
"""Names shown to people; JSON has up to 1,000."""


@reported
def forget_names(
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin with this text.")] = "",
    unused_for: Annotated[
        float,
        typer.Option(
            "--unused-for",
            parser=DurationRange(0, 14 * DAY_SECONDS),
            metavar="DURATION",
            help="Only names that nobody has used for so long.",
        ),
    ] = Duration(DAY_SECONDS),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove names of producers that nobody has used for some time. A cluster remembers 100,000, for 14 days each.

    A later producer of a removed name does not fence an earlier one that is still alive. A Spark batch that was
    interrupted is written again as a whole when the names of its query were removed. Names that begin with
    spark-batches/ hide Spark's open batches, and are removed only with a --prefix that begins so.
    """
    found = run_question(
        bootstrap_servers,
        timeout,
        lambda admin: admin.forget_producer_names(prefix=prefix, unused_seconds=unused_for, dry_run=True),
    )
    if found.count and not dry_run:
        if not yes:
            print(
                f"{counted(found.count, 'name')} of {found.left_count} unused for {format_duration(unused_for)}",
                file=sys.stderr,
            )
        confirm(f"Remove {counted(found.count, 'name')} of producers?", is_agreed=yes)
        found = run_admin(
            bootstrap_servers,
            timeout,
            lambda admin: admin.forget_producer_names(prefix=prefix, unused_seconds=unused_for),
        )
    if output is Output.JSON:
        print_json(
            {
                **dataclasses.asdict(found),
                "names": [dataclasses.asdict(name) for name in found.names],
                "dry_run": dry_run,
            }
        )
        return
    for name in found.names[:_SHOWN_MAX] if dry_run else ():
        print(f"{name.name}  epoch {name.epoch}, unused for {format_duration(round(name.unused_seconds))}")
    if dry_run and found.count > _SHOWN_MAX:
        print(f"... and {found.count - _SHOWN_MAX} more")
    verb = "would be removed" if dry_run else "removed"
    print(f"{counted(found.count, 'name')} {verb}, {found.left_count} of at most {found.limit} in use")
