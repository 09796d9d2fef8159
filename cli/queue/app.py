"""``raftmq queue``: the tree of its commands."""

from __future__ import annotations

import typer
from raftmq.cli.examples import examples
from raftmq.cli.queue import browse, changes, flow, get, jobs, put, stats

app = typer.Typer(
    help="Put, get, settle and manage messages of queue topics.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq topic create jobs --kind queue",
        "raftmq queue put jobs --value 'resize 17' --tenant acme --delay 5m",
        "raftmq queue get jobs --ack",
        "raftmq queue top jobs",
    ),
)


@app.callback()
def queue() -> None:
    """Put, get, settle and manage messages of queue topics."""


app.command(
    "put",
    short_help="Put messages from lines or options.",
    epilog=examples(
        "raftmq queue put jobs --value 'resize 17' --id resize-17 --tenant acme",
        "raftmq queue put jobs --value remind --not-before 2031-01-31T09:00:00Z",
        "printf 'one\\ntwo\\n' | raftmq queue put jobs --delay 5m --priority 10",
        "raftmq queue put jobs --format json --id-field order.id -f orders.jsonl",
        "raftmq queue put copy --format messages --file messages.jsonl",
    ),
)(put.put)
app.command(
    "get",
    short_help="Lease messages and print them.",
    epilog=examples(
        "raftmq queue get jobs",
        "raftmq queue get jobs --ack --wait 30s",
        "raftmq queue get jobs -n 10 --lease 5m --tenant acme -o json | jq -r .token",
        "raftmq queue get jobs --key order-17 --tenant acme",
    ),
)(get.get)
app.command(
    "settle",
    short_help="Settle leased messages by their tokens.",
    epilog=examples(
        "raftmq queue settle jobs 12-0-341-1",
        "raftmq queue settle jobs 12-0-341-1 --release --delay 5m --error busy",
        "raftmq queue settle jobs 12-0-341-1 --reject --error 'no such address'",
        "raftmq queue settle jobs 12-0-341-1 --renew --lease 10m --progress half",
    ),
)(get.settle)
app.command(
    "peek",
    short_help="Show ready messages with their values.",
    epilog=examples("raftmq queue peek jobs", "raftmq queue peek jobs -n 1 -o json | jq -r .value"),
)(browse.peek)
app.command(
    "browse",
    short_help="Show messages without leasing them.",
    epilog=examples(
        "raftmq queue browse jobs --state dead",
        "raftmq queue browse jobs --tenant acme --enqueued-before 1h",
        "raftmq queue browse jobs --values -o json > messages.jsonl",
    ),
)(browse.browse)
app.command(
    "stats",
    short_help="Show messages by state and tenant, and totals.",
    epilog=examples("raftmq queue stats jobs", "raftmq queue stats jobs -o json | jq .ready"),
)(stats.stats)
app.command(
    "top",
    short_help="Show states, tenants and rates, live.",
    epilog=examples(
        "raftmq queue top jobs",
        "raftmq queue top jobs --interval 500ms --tenants 20",
        "raftmq queue top jobs --once -o json | jq .per_second",
    ),
)(stats.top)
app.command(
    "move",
    short_help="Change a message's due time or priority.",
    epilog=examples(
        "raftmq queue move jobs remind-5 --delay 0s",
        "raftmq queue move jobs --partition 0 --sequence 341 --priority -10",
        "raftmq queue move jobs remind-5 --not-before 2031-01-31T09:00:00Z",
    ),
)(changes.move)
app.command(
    "cancel",
    short_help="Delete a waiting or dead message.",
    epilog=examples("raftmq queue cancel jobs remind-5", "raftmq queue cancel jobs --sequence 341 --version 2"),
)(changes.cancel)
app.command(
    "redrive",
    short_help="Make dead messages ready again.",
    epilog=examples(
        "raftmq queue redrive jobs remind-5",
        "raftmq queue redrive jobs --tenant acme --rate 100/s",
        "raftmq queue redrive jobs --died-before 1h --yes",
    ),
)(changes.redrive)
app.command(
    "purge",
    short_help="Delete many messages permanently.",
    epilog=examples(
        "raftmq queue purge jobs --state dead --enqueued-before 7d",
        "raftmq queue purge jobs --tenant acme --yes",
        "raftmq queue purge jobs",
    ),
)(changes.purge)
app.command(
    "jobs",
    short_help="Show purges and redrives, or stop them.",
    epilog=examples("raftmq queue jobs jobs", "raftmq queue jobs jobs --cancel 0-7"),
)(jobs.jobs)
app.command(
    "pause",
    short_help="Stop delivery of a topic or tenant.",
    epilog=examples("raftmq queue pause jobs", "raftmq queue pause jobs --tenant acme --for 10m"),
)(flow.pause)
app.command(
    "resume",
    short_help="Continue delivery of a topic or tenant.",
    epilog=examples("raftmq queue resume jobs", "raftmq queue resume jobs --tenant acme"),
)(flow.resume)
app.command(
    "clock",
    short_help="Show queue clocks, or step them forward.",
    epilog=examples("raftmq queue clock jobs", "raftmq queue clock jobs --step"),
)(flow.clock)
