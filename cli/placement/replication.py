"""``raftmq topic alter --replication-factor``: another number of replicas for each partition of a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.options import confirm
from raftmq.cli.output import Output, counted, print_json, print_table
from raftmq.cli.placement.moves_text import PLAN_COLUMNS, more_than_shown, moves_json, plan_rows
from raftmq.cli.placement.placed import replicated_look
from raftmq.cli.placement.waiting import HINT, wait_until_over

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.move_descriptions import ReplicationChange


def change_replication(
    topic: str,
    replication_factor: int,
    *,
    dry_run: bool,
    wait: bool,
    yes: bool,
    bootstrap_servers: str,
    timeout: float,
    output: Output,
) -> None:
    """Run the command. Fewer replicas are less safety, so they need a confirmation."""

    async def plan(admin: Admin) -> tuple[int, ReplicationChange]:
        now = (await admin.describe_topic(topic)).replication_factor
        return now, await admin.set_replication_factor(topic, replication_factor, dry_run=True)

    if dry_run or not yes:
        now, planned = run_question(bootstrap_servers, timeout, plan)
        if dry_run:
            _print_plan(planned, output)
            return
        if replication_factor < now:
            _confirm_fewer(planned, now)

    async def change(admin: Admin) -> ReplicationChange:
        changed = await admin.set_replication_factor(topic, replication_factor)
        if wait:
            what = f"changing the replication factor of {topic} to {replication_factor}"
            await wait_until_over(what, replicated_look(admin, topic, replication_factor))
        return changed

    changed = run_admin(bootstrap_servers, timeout, change)
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "result": "altered" if wait else "changing",
                "replication_factor": replication_factor,
                "move_count": changed.move_count,
            }
        )
    elif wait:
        print(f"topic {topic} altered: replication factor {replication_factor}, all replicas in sync")
    else:
        print(f"topic {topic} gets replication factor {replication_factor}: {HINT}")


def _print_plan(planned: ReplicationChange, output: Output) -> None:
    if output is Output.JSON:
        print_json(
            {
                "topic": planned.topic,
                "result": "planned",
                "replication_factor": planned.replication_factor,
                "move_count": planned.move_count,
                "moves": moves_json(planned.moves),
            }
        )
        return
    if planned.moves:
        print_table(PLAN_COLUMNS, plan_rows(planned.moves))
        print(more_than_shown(planned.move_count, len(planned.moves)))
    print(
        f"replication factor {planned.replication_factor} of topic {planned.topic}: "
        f"{counted(planned.move_count, 'partition')} to change"
    )


def _confirm_fewer(planned: ReplicationChange, now: int) -> None:
    topic, wanted = planned.topic, planned.replication_factor
    print(
        f"topic {topic}: replication factor {now}, {counted(planned.move_count, 'partition')} to change",
        file=sys.stderr,
    )
    confirm(f"Keep only {counted(wanted, 'replica')} of each partition of topic {topic}?", is_agreed=False)
