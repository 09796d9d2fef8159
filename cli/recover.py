"""``raftmq recover``: revive a cluster that has lost the majority of its metadata, at stopped brokers."""

from __future__ import annotations

import os
import shlex
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import CommandError, ExitCode, reported
from raftmq.cli.options import YesOption, confirm
from raftmq.cli.output import Output, OutputOption, counted, print_json
from raftmq.cli.placement.moves_text import brokers

if TYPE_CHECKING:
    from raftmq.broker.cluster.metadata_recovery import StoredMetadata

app = typer.Typer(
    help="Revive a cluster that has lost its metadata's majority.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq recover metadata /var/lib/raftmq",
        "raftmq recover metadata /var/lib/raftmq --unsafe",
        "raftmq recover rejoin /var/lib/raftmq --unsafe",
    ),
)

DirectoryArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIRECTORY", readable=False, help="The data directory of a stopped broker.", show_default=False
    ),
]
UnsafeOption = Annotated[bool, typer.Option("--unsafe", help="Accept the loss. Without it, nothing is changed.")]


@app.callback()
def group() -> None:
    """Revive a cluster that has lost its metadata's majority."""


@app.command(
    "metadata",
    short_help="Make a stopped broker the only metadata voter.",
    epilog=examples("raftmq recover metadata /var/lib/raftmq", "raftmq recover metadata /var/lib/raftmq --unsafe"),
)
@reported
def metadata(
    data_dir: DirectoryArgument,
    unsafe: UnsafeOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a stopped broker the only voter of a new metadata group, under a new cluster id.

    Without --unsafe the command only shows the metadata of the directory: of all surviving brokers, use the one
    with the highest term, and among these the highest index. Changes of metadata that it lacks are lost: topics, moves,
    consumer groups. Stop all brokers of the cluster first. Run the command as the user of the broker, which cannot open
    files of another one: it is refused to any other. See the guide to lost majorities.
    """
    _check_user(data_dir, "metadata", unsafe=unsafe)
    found = _read(data_dir)
    if not unsafe:
        _print(found, output, "stored")
        return
    _agree(
        found,
        "changes of metadata that this broker lacks are lost, even acknowledged ones",
        "the cluster gets a new id, and its other brokers must be told: raftmq recover rejoin",
        question=f"Make broker {found.broker_id} the only metadata voter of a new cluster?",
        is_agreed=yes,
    )

    from raftmq.broker.cluster.metadata_recovery import MetadataRecoveryError, recover_metadata

    try:
        made = recover_metadata(data_dir, lambda: uuid.uuid4().hex, time.time_ns() // 1_000_000)
    except MetadataRecoveryError as error:
        raise CommandError(str(error), ExitCode.REJECTED) from None
    _print(made, output, "recovered")


@app.command(
    "rejoin",
    short_help="Let a stopped broker join the recovered cluster.",
    epilog=examples("raftmq recover rejoin /var/lib/raftmq --unsafe"),
)
@reported
def rejoin(
    data_dir: DirectoryArgument,
    unsafe: UnsafeOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let a stopped broker leave its old cluster, so that it can join the recovered one with its partitions' data.

    Start it afterwards with --join and the peer address of the recovered broker. It refuses to start with --bootstrap,
    which would form another cluster beside the data of its partitions. Its own metadata is given up: it is moved to trash/ and
    deleted ten minutes later. Run the command as the user of the broker, which cannot open files of another one: it is
    refused to any other.
    """
    _check_user(data_dir, "rejoin", unsafe=unsafe)
    found = _read(data_dir, may_be_lost=True)
    if not unsafe:
        _print(found, output, "stored")
        return
    _agree(
        found,
        "its metadata is given up: never do this at the only broker that has it",
        question=f"Let broker {found.broker_id} leave cluster {found.cluster_id}?",
        is_agreed=yes,
    )

    from raftmq.broker.cluster.metadata_recovery import MetadataRecoveryError, leave_cluster

    try:
        left = leave_cluster(data_dir)
    except MetadataRecoveryError as error:
        raise CommandError(str(error), ExitCode.REJECTED) from None
    _print(left, output, "left")


def _check_user(data_dir: Path, command: str, *, unsafe: bool) -> None:
    """Refuse to run as another user than the broker, which could not open the files that `--unsafe` creates."""
    try:
        owner = (data_dir / "node.mdb").stat().st_uid
    except OSError:
        return  # reading says more
    if not hasattr(os, "geteuid") or owner == os.geteuid():
        return
    user = _user_name(owner)
    options = " --unsafe" if unsafe else ""
    raise CommandError(
        f"{data_dir} belongs to user {user}, whose broker could not open the files that user {_user_name(os.geteuid())} creates: "
        f"run sudo -u {shlex.quote(user)} raftmq recover {command} {shlex.quote(str(data_dir))}{options}",
        ExitCode.REJECTED,
    )


def _user_name(user_id: int) -> str:
    """Return the name of a user, or its number as sudo takes it."""
    try:
        import pwd

        return pwd.getpwuid(user_id).pw_name
    except (ImportError, KeyError):
        return f"#{user_id}"


def _read(data_dir: Path, *, may_be_lost: bool = False) -> StoredMetadata:
    from raftmq.broker.cluster.metadata_recovery import MetadataRecoveryError, read_metadata
    from raftmq.storage.doctor import NoDataDirectoryError

    try:
        return read_metadata(data_dir, may_be_lost=may_be_lost)
    except NoDataDirectoryError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    except MetadataRecoveryError as error:
        raise CommandError(str(error), ExitCode.REJECTED) from None


def _agree(found: StoredMetadata, *warnings: str, question: str, is_agreed: bool) -> None:
    """Show the metadata and the warnings, and ask, unless the user agreed by an option."""
    if not is_agreed:
        for line in (*_lines(found), *warnings):
            print(line, file=sys.stderr)
    confirm(question, is_agreed=is_agreed)


def _lines(found: StoredMetadata) -> list[str]:
    name = f"{found.data_dir}: broker {found.broker_id} of cluster {found.cluster_id}"
    if found.problem:
        return [name, f"its metadata is lost: {found.problem}"]
    topics, partitions = counted(found.topic_count, "topic"), counted(found.partition_count, "partition")
    return [
        name,
        f"its metadata ends at term {found.term}, index {found.last_index}, with {topics} and {partitions}",
        f"metadata voters: {brokers(found.voters) or 'none'}, other brokers: {brokers(found.other_brokers) or 'none'}",
    ]


def _print(found: StoredMetadata, output: Output, result: str) -> None:
    if output is Output.JSON:
        print_json(
            {
                "result": result,
                "data_dir": str(found.data_dir),
                "cluster_id": found.cluster_id,
                "broker_id": found.broker_id,
                "term": found.term,
                "last_index": found.last_index,
                "voters": list(found.voters),
                "other_brokers": list(found.other_brokers),
                "topic_count": found.topic_count,
                "partition_count": found.partition_count,
                "problem": found.problem,
            }
        )
        return
    if result == "recovered":
        print(f"broker {found.broker_id} is the only metadata voter of the new cluster {found.cluster_id}: start it")
        others = brokers(found.other_brokers)
        print(
            f"on each other broker that survives (of {others or 'none'}): raftmq recover rejoin, then start with --join and the peer address of this one, without --bootstrap"
        )
    elif result == "left":
        print(
            f"broker {found.broker_id} left cluster {found.cluster_id}: start it with --join and the peer address of the recovered broker, without --bootstrap"
        )
    else:
        for line in _lines(found):
            print(line)
