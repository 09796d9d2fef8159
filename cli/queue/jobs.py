"""``raftmq queue jobs``: show the purges and redrives of a queue topic, or stop them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.admin_calls import as_question
from raftmq.cli.exit_codes import reported
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, TopicArgument
from raftmq.cli.output import Output, OutputOption, counted, print_json, print_table
from raftmq.cli.queue.calls import run_queue
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import Outcome, RaftMQError

if TYPE_CHECKING:
    from raftmq.client.queue.job_view import QueueJob
    from raftmq.client.queue.queue import Queue


@reported
def jobs(
    topic: TopicArgument,
    cancel: Annotated[
        list[str] | None,
        typer.Option("--cancel", metavar="ID", help="Stop this job, as the list names it. Repeat it for several jobs."),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the purges and redrives of a queue topic, those under way and those that ended recently, or stop them.

    Each partition has a job of its own. A job that is stopped leaves the other messages as they are. Messages that it
    has deleted or redriven remain so.
    """
    if cancel:
        run_queue(topic, bootstrap_servers, timeout, lambda queue: _cancel_all(queue, cancel, output))
        return

    async def ask(queue: Queue[bytes]) -> list[QueueJob]:
        return await queue.jobs()

    with as_question():
        found = run_queue(topic, bootstrap_servers, timeout, ask)
    if output is Output.JSON:
        print_json([
            {
                "topic": topic, "id": job.id, "partition": job.partition, "kind": job.kind, "done": job.done_count,
                "is_finished": job.is_finished,
            }
            for job in found
        ])  # fmt: skip
        return
    print_table(
        ("job", "kind", "messages", "state"),
        [(job.id, job.kind, job.done_count, "finished" if job.is_finished else "running") for job in found],
    )


async def _cancel_all(queue: Queue[bytes], jobs: list[str], output: Output) -> None:
    """Stop jobs one after the other, and print each. After the first, an error has the outcome UNKNOWN."""
    for number, job in enumerate(jobs):
        try:
            count = await queue.cancel_job(job)
        except RaftMQError as error:
            if number:
                error.outcome = Outcome.UNKNOWN  # the jobs before it are cancelled
            raise
        if output is Output.JSON:
            print_json({"topic": queue.topic, "id": job, "result": "cancelled", "done": count})
        else:
            print(f"job {job} cancelled after {counted(count, 'message')}")
