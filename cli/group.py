"""``raftmq group``: list, describe, reset and delete consumer groups, and remove their members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from raftmq.cli.ask import ask
from raftmq.cli.completion import complete_group, complete_topic
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    OFFSET_MAX,
    BootstrapOption,
    TimeoutOption,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, print_json, print_table
from raftmq.cli.times import parse_time_ms
from raftmq.types import TopicPartition

if TYPE_CHECKING:
    from raftmq.client.group_admin import GroupDescription, GroupMemberDescription, GroupOffset, OffsetChange

app = typer.Typer(
    help="List, describe and delete consumer groups; reset their offsets; remove members.", no_args_is_help=True
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False, autocompletion=complete_group)
]


@app.command("list")
@reported_question
def list_groups(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the groups that have, or lately had, members."""
    groups = ask(bootstrap_servers, timeout, lambda admin: admin.list_groups())
    if output is Output.JSON:
        print_json([
            {"group": g.group, "state": g.state, "members": g.members, "assignor": g.assignor or None} for g in groups
        ])  # fmt: skip
    else:
        rows = [(group.group, group.state, group.members, group.assignor) for group in groups]
        print_table(("group", "state", "members", "assignor"), rows)


@app.command("describe")
@reported_question
def describe(
    group: GroupArgument,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a group's members, and how far it is in each partition: records not yet read, and the age of the oldest."""
    found = ask(bootstrap_servers, timeout, lambda admin: admin.describe_group(group))
    if output is Output.JSON:
        print_json(description_json(found))
        return
    print(f"group {found.group}: {found.state or 'without members'}, {len(found.members)} members")
    if found.members:
        print()
        heads = ("member", "instance", "client", "subscription", "partitions", "session s")
        print_table(heads, [member_row(member) for member in found.members])
    print()
    columns = ("topic", "partition", "committed", "end", "lag", "lag s", "member")
    print_table(columns, [offset_row(one) for one in found.offsets])


def member_row(member: GroupMemberDescription) -> tuple[object, ...]:
    """A member in a table."""
    subscription = " ".join(member.topics) or f"/{member.pattern}/"
    seconds = f"{member.session_left_seconds:.0f}"
    return (
        member.member_id,
        member.instance_id,
        member.client_id,
        subscription,
        len(member.partitions),
        seconds,
    )


def offset_row(one: GroupOffset) -> tuple[object, ...]:
    """A partition in a table; a dash where nothing was committed, a question mark where nobody could say."""
    topic, number = one.partition
    if one.error is not None:
        return topic, number, "?", "?", "?", "?", one.member_id
    committed = "-" if one.offset is None else one.offset
    lag = "-" if one.lag_records is None else one.lag_records
    age = "-" if one.lag_seconds is None else f"{one.lag_seconds:.0f}"
    return topic, number, committed, one.end_offset, lag, age, one.member_id


def description_json(found: GroupDescription) -> Json:
    """A group as one document."""
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
    }


@app.command("reset-offsets")
@reported
def reset_offsets(
    group: GroupArgument,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the newest record.")] = False,
    to_time: Annotated[
        int | None,
        typer.Option(
            "--to-time",
            parser=parse_time_ms,
            metavar="TIME",
            help="To the first record appended at or after a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="RECORDS", help="So many records on, or (negative) back; at most to an end."
        ),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset",
            metavar="TOPIC:PARTITION=OFFSET",
            help="To this offset, the next to read; may be given several times.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            autocompletion=complete_topic,
            help="Only this topic, all of its partitions; may be given several times. Default: all that the group has to do with.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            min=0,
            max=COUNT_MAX,
            help="Only this partition of --topic; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    fence_members: Annotated[
        bool,
        typer.Option("--fence-members", help="Also while the group has members: they begin again at the new offsets."),
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let a group go on elsewhere: records are read again, or skipped. It must have no members, or see --fence-members."""
    targets = (to_earliest, to_latest, to_time is not None, shift_by is not None, bool(to_offset))
    if sum(targets) != 1:
        raise typer.BadParameter("give one of --to-earliest, --to-latest, --to-time, --shift-by and --to-offset")
    if partition and len(topic or ()) != 1:
        raise typer.BadParameter("give one --topic with it", param_hint="--partition")
    if to_offset and topic:
        raise typer.BadParameter("--to-offset names its partitions itself", param_hint="--topic")
    offsets = parse_offsets(to_offset)
    names = [TopicPartition(topic[0], number) for number in partition] if topic and partition else []
    place: Literal["earliest", "latest"] | None = "earliest" if to_earliest else "latest" if to_latest else None

    def run(*, is_dry: bool) -> list[OffsetChange]:
        return ask(
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
                dry_run=is_dry,
                fence_members=fence_members,
            ),
        )

    confirm(f"Reset the offsets of group {group}?", is_agreed=yes or dry_run)
    changes = run(is_dry=dry_run)
    if output is Output.JSON:
        print_json([
            {"topic": c.partition.topic, "partition": c.partition.partition, "before": c.before, "after": c.after}
            for c in changes
        ])  # fmt: skip
    else:
        rows = [
            (c.partition.topic, c.partition.partition, "-" if c.before is None else c.before, c.after) for c in changes
        ]
        print_table(("topic", "partition", "before", "after"), rows)


def parse_offsets(texts: list[str] | None) -> dict[TopicPartition, int]:
    """``TOPIC:PARTITION=OFFSET`` options; anything else is a usage error."""
    offsets: dict[TopicPartition, int] = {}
    for text in texts or ():
        name, _, offset = text.partition("=")
        topic, _, number = name.rpartition(":")
        is_valid = topic and all(part.isascii() and part.isdigit() for part in (number, offset))
        if not is_valid or int(number) > COUNT_MAX or int(offset) > OFFSET_MAX:
            raise typer.BadParameter(f"{text!r} is not TOPIC:PARTITION=OFFSET", param_hint="--to-offset")
        offsets[TopicPartition(topic, int(number))] = int(offset)
    return offsets


@app.command("delete")
@reported
def delete(
    group: GroupArgument,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Forget a group without members, and its offsets."""
    confirm(f"Delete group {group} and its offsets?", is_agreed=yes)
    partitions = ask(bootstrap_servers, timeout, lambda admin: admin.delete_group(group))
    if output is Output.JSON:
        print_json({"group": group, "result": "deleted", "partitions": partitions})
    else:
        print(f"group {group} deleted: offsets of {partitions} partitions forgotten")


@app.command("remove-member")
@reported
def remove_member(
    group: GroupArgument,
    member: Annotated[str, typer.Option("--member", "-m", metavar="ID", help="Its member id.")] = "",
    instance: Annotated[str, typer.Option("--instance", "-i", metavar="ID", help="Its instance id.")] = "",
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """End a member's session, as if it had left: the others get its partitions. One that still runs joins again."""
    if bool(member) == bool(instance):
        raise typer.BadParameter("give --member or --instance")
    ask(
        bootstrap_servers,
        timeout,
        lambda admin: admin.remove_group_member(group, member_id=member, instance_id=instance),
    )
    if output is Output.JSON:
        print_json({"group": group, "member_id": member or None, "instance_id": instance or None, "result": "removed"})
    else:
        print(f"member {member or instance} removed from group {group}")
