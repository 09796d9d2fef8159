"""``raftmq group``: list, describe, reset and delete consumer groups, and remove their members."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.completion import complete_group, complete_topic
from raftmq.cli.durations import format_duration
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import print_error, reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    BootstrapOption,
    TimeoutOption,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json, print_table
from raftmq.cli.times import parse_time_ms
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import GroupNotEmptyError

if TYPE_CHECKING:
    from raftmq.client.admin.group_admin import GroupDescription, GroupMemberDescription, GroupOffset, OffsetChange
    from raftmq.types import TopicPartition

app = typer.Typer(
    help="Show consumer groups and change their offsets.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq group list", "raftmq group describe audit", "raftmq group reset-offsets audit --to-time 15m"
    ),
)

OFFSET_COLUMNS = ("topic", "partition", "committed", "end", "lag", "lag time", "member")
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP", help="The consumer group's name.", show_default=False, autocompletion=complete_group
    ),
]


@app.command("list", epilog=examples("raftmq group list", "raftmq group list -o json | jq '.[].group'"))
@reported_question
def list_groups(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List all consumer groups with their lag.

    They have or had members, or have committed offsets.
    """
    groups = run_admin(bootstrap_servers, timeout, lambda admin: admin.list_groups())
    if output is Output.JSON:
        print_json([asdict(group) | {"assignor": group.assignor or None} for group in groups])
    else:
        rows = [
            (
                one.group,
                one.state,
                one.members,
                one.assignor,
                one.partitions,
                "?" if one.lag_records is None else one.lag_records,
            )
            for one in groups
        ]
        print_table(("group", "state", "members", "assignor", "partitions", "lag"), rows)


@app.command(
    "describe",
    short_help="Show a consumer group's members and offsets.",
    epilog=examples("raftmq group describe audit", "raftmq group describe audit -o json | jq '.offsets[].lag_records'"),
)
@reported_question
def describe(
    group: GroupArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a consumer group's members and its progress in each partition: unread records, and the age of the oldest
    one.
    """
    found = run_admin(bootstrap_servers, timeout, lambda admin: admin.describe_group(group))
    if output is Output.JSON:
        print_json(description_json(found))
        return
    print(f"group {found.group}: {found.state or 'without members'}, {counted(len(found.members), 'member')}")
    if found.members:
        print()
        heads = ("member", "instance", "client", "subscription", "partitions", "session")
        print_table(heads, [member_row(member) for member in found.members])
    print()
    print_table(OFFSET_COLUMNS, [offset_row(one) for one in found.offsets])
    warn_of_missing_partitions(found)


def warn_of_missing_partitions(found: GroupDescription) -> None:
    """Say on standard error if the offsets of some partitions are not known."""
    if found.is_partial:
        print_error(
            f"the leaders of some partitions do not answer: offsets of group {found.group} there are not listed"
        )


def member_row(member: GroupMemberDescription) -> tuple[object, ...]:
    """Format a member as a table row."""
    subscription = " ".join(member.topics) or f"/{member.pattern}/"
    session = format_duration(round(member.session_left_seconds))
    return (
        member.member_id,
        member.instance_id,
        member.client_id,
        subscription,
        len(member.partitions),
        session,
    )


def offset_row(one: GroupOffset) -> tuple[object, ...]:
    """Format a partition as a table row. A dash means nothing committed. A question mark means that the value could not
    be read.
    """
    topic, number = one.partition
    if one.error is not None:
        return topic, number, "?", "?", "?", "?", one.member_id
    committed = "-" if one.offset is None else one.offset
    lag = "-" if one.lag_records is None else one.lag_records
    age = "-" if one.lag_seconds is None else format_duration(round(one.lag_seconds))
    return topic, number, committed, one.end_offset, lag, age, one.member_id


def description_json(found: GroupDescription) -> Json:
    """Convert a consumer group to one JSON document."""
    members: list[Json] = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id or None,
            "client_id": member.client_id,
            "rack": member.rack or None,
            "topics": list(member.topics),
            "pattern": member.pattern or None,
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in member.partitions],
            "session_left_seconds": member.session_left_seconds,
        }
        for member in found.members
    ]
    offsets: list[Json] = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "committed": one.offset,
            "log_start_offset": one.log_start_offset if one.error is None else None,
            "end_offset": one.end_offset if one.error is None else None,
            "lag_records": one.lag_records,
            "lag_seconds": one.lag_seconds,
            "member_id": one.member_id or None,
            "note": one.note,
            "error": str(one.error.args[0]) if one.error is not None else None,
        }
        for one in found.offsets
    ]
    state = found.state or None
    return {
        "group": found.group,
        "state": state,
        "assignor": found.assignor or None,
        "members": members,
        "offsets": offsets,
        "is_partial": found.is_partial,
    }


@app.command(
    "reset-offsets",
    short_help="Move a consumer group to other offsets.",
    epilog=examples(
        "raftmq group reset-offsets audit --to-earliest --dry-run",
        "raftmq group reset-offsets audit --to-time 15m --topic orders",
        "raftmq group reset-offsets audit --to-offset orders:0=1200 --yes",
    ),
)
@reported
def reset_offsets(
    group: GroupArgument,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Move to the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Move after the newest record.")] = False,
    to_time: Annotated[
        int | None,
        typer.Option(
            "--to-time",
            parser=parse_time_ms,
            metavar="TIME",
            help="Move to the first record with a timestamp at or after a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            parser=WholeNumber(-OFFSET_MAX, OFFSET_MAX),
            metavar="RECORDS",
            help="Shift by this many records (negative: back), clamped to the log.",
        ),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset",
            metavar="TOPIC:PARTITION=OFFSET",
            help="Move a partition to this offset, the next one to read. Repeat it for several partitions.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            autocompletion=complete_topic,
            help="Move only in this topic. Repeat it for several topics. Default: all topics in which the group has offsets or to which it subscribes.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="Move only this partition of --topic. Repeat it for several partitions.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    fence_members: Annotated[
        bool,
        typer.Option(
            "--fence-members", help="Move the group although it has members. They restart at the new offsets."
        ),
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move a consumer group to other offsets. Records are then read again, or skipped.

    The group must have no members, unless --fence-members is given. Shows the changes, then asks for confirmation.
    """
    targets = (to_earliest, to_latest, to_time is not None, shift_by is not None, bool(to_offset))
    if sum(targets) != 1:
        raise typer.BadParameter(
            "give exactly one of --to-earliest, --to-latest, --to-time, --shift-by and --to-offset"
        )
    for option, is_given in (("--topic", topic), ("--partition", partition)):
        if to_offset and is_given:
            raise typer.BadParameter(
                "do not combine it with --to-offset, which names the partitions", param_hint=option
            )
    if partition and len(topic or ()) != 1:
        raise typer.BadParameter("give exactly one --topic with it", param_hint="--partition")
    from raftmq.types import TopicPartition

    offsets = parse_offsets(to_offset)
    names = [TopicPartition(topic[0], number) for number in partition] if topic and partition else []
    place: Literal["earliest", "latest"] | None = "earliest" if to_earliest else "latest" if to_latest else None

    is_question = dry_run or not yes
    changes = (run_question if is_question else run_admin)(
        bootstrap_servers,
        timeout,
        lambda admin: admin.reset_group_offsets(
            group,
            to=place,
            time_ms=to_time,
            shift=shift_by,
            offsets=offsets or None,
            topics=() if names else topic or (),
            partitions=names,
            dry_run=is_question,
            fence_members=fence_members,
        ),
    )
    if not dry_run and not yes and changes:
        if not fence_members and any(change.before is not None for change in changes):
            check_no_members(run_question(bootstrap_servers, timeout, lambda admin: admin.describe_group(group)))
        print_changes(changes, sys.stderr)
        confirm(f"Reset the offsets of group {group}?", is_agreed=False)
        agreed = {change.partition: change.after for change in changes}
        changes = run_admin(
            bootstrap_servers,
            timeout,
            lambda admin: admin.reset_group_offsets(group, offsets=agreed, fence_members=fence_members),
        )
    if output is Output.JSON:
        print_json([
            {"topic": c.partition.topic, "partition": c.partition.partition, "before": c.before, "after": c.after}
            for c in changes
        ])  # fmt: skip
    else:
        print_changes(changes, sys.stdout)


def check_no_members(found: GroupDescription) -> None:
    """Raise `GroupNotEmptyError` before asking for confirmation, as the cluster would afterwards."""
    if found.members:
        raise GroupNotEmptyError(f"group {found.group} has {counted(len(found.members), 'member')}")


def print_changes(changes: list[OffsetChange], file: TextIO) -> None:
    """Print each partition's offset before and after the change."""
    rows = [(c.partition.topic, c.partition.partition, "-" if c.before is None else c.before, c.after) for c in changes]
    print_table(("topic", "partition", "before", "after"), rows, file)


def parse_offsets(texts: list[str] | None) -> dict[TopicPartition, int]:
    """Parse ``TOPIC:PARTITION=OFFSET`` options. Anything else is a usage error."""
    from raftmq.types import TopicPartition

    offsets: dict[TopicPartition, int] = {}
    for text in texts or ():
        name, _, offset = text.partition("=")
        topic, _, number = name.rpartition(":")
        is_valid = topic and all(part.isascii() and part.isdigit() for part in (number, offset))
        if not is_valid or int(number) > COUNT_MAX or int(offset) > OFFSET_MAX:
            raise typer.BadParameter(f"{text!r} is not TOPIC:PARTITION=OFFSET", param_hint="--to-offset")
        partition = TopicPartition(topic, int(number))
        if partition in offsets:
            raise typer.BadParameter(f"{name} is given more than once", param_hint="--to-offset")
        offsets[partition] = int(offset)
    return offsets


@app.command("delete", epilog=examples("raftmq group delete audit", "raftmq group delete audit --yes"))
@reported
def delete(
    group: GroupArgument,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete an empty consumer group and its offsets."""
    if not yes:
        found = run_question(bootstrap_servers, timeout, lambda admin: admin.describe_group(group))
        check_no_members(found)
        print_table(OFFSET_COLUMNS, [offset_row(one) for one in found.offsets], sys.stderr)
        warn_of_missing_partitions(found)
    confirm(f"Delete group {group} and its offsets?", is_agreed=yes)
    partitions = run_admin(bootstrap_servers, timeout, lambda admin: admin.delete_group(group))
    if output is Output.JSON:
        print_json({"group": group, "result": "deleted", "partitions": partitions})
    else:
        print(f"group {group} deleted: offsets of {counted(partitions, 'partition')} removed")


@app.command(
    "remove-member",
    short_help="End a member's session.",
    epilog=examples("raftmq group remove-member audit --instance worker-3"),
)
@reported
def remove_member(
    group: GroupArgument,
    member: Annotated[str, typer.Option("--member", "-m", metavar="ID", help="Id of the member.")] = "",
    instance: Annotated[str, typer.Option("--instance", "-i", metavar="ID", help="Instance id of the member.")] = "",
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """End a member's session as if it had left. The other members get its partitions. A member that still runs joins
    again.
    """
    if bool(member) == bool(instance):
        raise typer.BadParameter("give either --member or --instance")
    run_admin(
        bootstrap_servers,
        timeout,
        lambda admin: admin.remove_group_member(group, member_id=member, instance_id=instance),
    )
    if output is Output.JSON:
        print_json({"group": group, "member_id": member or None, "instance_id": instance or None, "result": "removed"})
    else:
        print(f"member {member or instance} removed from group {group}")
