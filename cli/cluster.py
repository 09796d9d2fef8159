"""``raftmq cluster``: form and show the cluster, empty and remove brokers, balance them, and permit the features of a new version."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli import formation, producer_names, restart_plan
from raftmq.cli.admin_calls import run_admin, run_question
from raftmq.cli.cluster_health import Problem, exit_code, problems_of
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import (
    COUNT_MAX,
    DEFAULT_TIMEOUT,
    BootstrapOption,
    TimeoutOption,
    YesOption,
    confirm,
)
from raftmq.cli.output import Json, Output, OutputOption, counted, print_json, print_table, some_of
from raftmq.cli.placement import balancing, drain, recovery
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP
from raftmq.errors import UnknownBrokerError

if TYPE_CHECKING:
    from raftmq.cli.restart_plan import Interruption
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import BrokerDescription, BrokerRemoval, ClusterDescription
    from raftmq.client.admin.recovery import LostPartitions

app = typer.Typer(
    help="Show the cluster, drain and remove brokers, balance, upgrade.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq cluster status",
        "raftmq cluster drain 3",
        "raftmq cluster remove 3",
        "raftmq cluster rebalance --dry-run",
        "raftmq cluster raise-level",
    ),
)


@app.callback()
def group() -> None:
    """Show the cluster, drain and remove brokers, balance, upgrade."""


app.command(
    "init",
    short_help="Form a cluster of brokers that wait for one.",
    epilog=examples("raftmq cluster init -b one:9400,two:9400,three:9400"),
)(reported(formation.init))


@app.command(
    "status",
    short_help="Show the brokers and their problems.",
    epilog=examples("raftmq cluster status", "raftmq cluster status -o json | jq '.problems'"),
)
@reported_question
def status(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the brokers and their problems. Each broker is asked for its health.

    Exit code 3 means an outage: a partition or the metadata has no leader that answers. Exit code 6 means that
    everything is served but one more failure may change that: a broker is not connected, does not answer or is not
    ready, or a replica is damaged, not served or behind. Exit code 0 means that there are no problems, and that the
    next broker may be restarted: see raftmq cluster restart-plan. The command then names the things that a restart
    interrupts nevertheless: partitions with one or two replicas, and changes of topics while the metadata has fewer
    than 3 voters. With --output json, may_restart_next is true only if it interrupts nothing.
    """
    cluster, interruption = run_admin(bootstrap_servers, timeout, _ask_status)
    problems = problems_of(cluster)
    if output is Output.JSON:
        print_json(status_json(cluster, problems, interruption))
    else:
        print_cluster(cluster, problems, interruption)
    if problems:
        raise SystemExit(exit_code(problems))


async def _ask_status(admin: Admin) -> tuple[ClusterDescription, Interruption | None]:
    """Return the cluster, and the things that a restart interrupts. None while there are problems: they come first."""
    cluster = await admin.describe_cluster(ask_brokers=True)
    if problems_of(cluster):
        return cluster, None
    return cluster, restart_plan.interruption_of(cluster, await admin.list_topics())


@app.command(
    "nodes",
    short_help="List the brokers with their addresses.",
    epilog=examples("raftmq cluster nodes", "raftmq cluster nodes -o json | jq '.[].address'"),
)
@reported_question
def nodes(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the brokers with their addresses, hosts, versions and states, as one broker knows them.

    Problems do not change the exit code: see raftmq cluster status.
    """
    cluster = run_admin(bootstrap_servers, timeout, lambda admin: admin.describe_cluster())
    if output is Output.JSON:
        print_json([broker_json(broker) for broker in cluster.brokers])
        return
    print_table(
        ("broker", "address", "peers", "http", "host", "rack", "version", "level", "state"),
        [
            (
                broker.broker_id,
                broker.address,
                broker.peer_address,
                broker.http_address,
                broker.host,
                broker.rack or "-",
                broker.version,
                broker.feature_level_max,
                broker.state if broker.is_connected else f"{broker.state}, not connected",
            )
            for broker in cluster.brokers
        ],
    )


app.command(
    "restart-plan",
    short_help="Show the order for restarting all brokers.",
    epilog=examples("raftmq cluster restart-plan", "raftmq cluster restart-plan -o json | jq '.restarts[].address'"),
)(reported_question(restart_plan.show))
app.command(
    "drain",
    short_help="Empty a broker, so that it can be removed.",
    epilog=examples(
        "raftmq cluster drain 3 --dry-run", "raftmq cluster drain 3", "raftmq cluster drain 3 --no-wait -o json"
    ),
)(drain.drain)
app.command("undrain", short_help="End the draining of a broker.", epilog=examples("raftmq cluster undrain 3"))(
    drain.undrain
)
app.command(
    "rebalance",
    short_help="Give all brokers equal shares.",
    epilog=examples(
        "raftmq cluster rebalance --dry-run", "raftmq cluster rebalance", "raftmq cluster rebalance --leaders-only"
    ),
)(balancing.rebalance)
app.command(
    "moves",
    short_help="Show the partitions that move now.",
    epilog=examples("raftmq cluster moves", "raftmq cluster moves -o json | jq '.waiting_count'"),
)(balancing.moves)
app.command(
    "balancing",
    short_help="Change how replicas are moved, or pause it.",
    epilog=examples(
        "raftmq cluster balancing",
        "raftmq cluster balancing --no-auto",
        "raftmq cluster balancing --auto --moves 8",
    ),
)(balancing.balancing)
app.command(
    "recover",
    short_help="List partitions without a majority.",
    epilog=examples("raftmq cluster recover", "raftmq cluster recover -o json | jq '.partitions[].replicas'"),
)(recovery.lost)


app.command(
    "forget-names",
    short_help="Remove unused names of producers.",
    epilog=examples(
        "raftmq cluster forget-names --dry-run",
        "raftmq cluster forget-names --prefix spark-task/ --unused-for 2d --yes",
    ),
)(producer_names.forget_names)


@app.command(
    "remove",
    short_help="Remove a broker permanently.",
    epilog=examples("raftmq cluster remove 3", "raftmq cluster remove 3 --force --yes"),
)
@reported
def remove(
    broker_id: Annotated[
        int,
        typer.Argument(
            metavar="BROKER_ID", parser=WholeNumber(1, COUNT_MAX), help="Id of the broker.", show_default=False
        ),
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Remove a dead broker that still holds replicas. They are rebuilt elsewhere."),
    ] = False,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove a broker permanently. Its data directory is refused from then on.

    The command shows the broker's replicas, then asks for confirmation. A running broker must be empty: see raftmq
    cluster drain. A dead broker that still holds replicas needs --force: first make sure that it stays stopped. Records
    that only it has are given up. The command names the partitions that have no majority within reach, before it asks
    and after the removal.
    """
    given_up = " and give up the data on it" if force else ""
    if not yes:
        for line in run_question(bootstrap_servers, timeout, lambda admin: _preview(admin, broker_id, force=force)):
            print(line, file=sys.stderr)
    confirm(f"Remove broker {broker_id} permanently{given_up}?", is_agreed=yes)
    removal = run_admin(bootstrap_servers, timeout, lambda admin: admin.remove_broker(broker_id, force=force))
    if output is Output.JSON:
        print_json(
            {
                "broker_id": removal.broker_id,
                "replica_count": removal.replica_count,
                "without_majority_count": removal.without_majority_count,
                "without_majority": [
                    {"topic": topic, "partition": partition} for topic, partition in removal.without_majority
                ],
            }
        )
    else:
        print_removal(removal)


async def _preview(admin: Admin, broker_id: int, *, force: bool) -> list[str]:
    """Return sentences about a broker before its removal. Raises `UnknownBrokerError`."""
    lines = [preview_of(await admin.describe_cluster(ask_brokers=True), broker_id)]
    if force:
        lines += lost_with(await admin.list_lost_partitions(), broker_id)
    return lines


@app.command(
    "raise-level",
    short_help="Permit the features of a new version, after all brokers run it.",
    epilog=examples("raftmq cluster raise-level", "raftmq cluster raise-level --level 2 --yes"),
)
@reported
def raise_level(
    level: Annotated[
        int | None,
        typer.Option(
            "--level",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="N",
            help="New feature level. Default: the highest that every broker supports.",
        ),
    ] = None,
    yes: YesOption = False,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Permit the features of a new version, after all brokers run it. This cannot be undone.

    Brokers of an older version are refused from then on. The command shows the feature level of the cluster, then asks
    for confirmation.
    """
    if not yes:
        cluster = run_question(bootstrap_servers, timeout, lambda admin: admin.describe_cluster())
        print(level_of(cluster), file=sys.stderr)
    to = f" to {level}" if level is not None else ""
    confirm(f"Raise the feature level{to} permanently?", is_agreed=yes)
    reached, later = run_admin(bootstrap_servers, timeout, lambda admin: _raise_level(admin, level))
    if later:
        print(later, file=sys.stderr)
    if output is Output.JSON:
        print_json({"feature_level": reached})
    else:
        print(f"the cluster is at feature level {reached}")


async def _raise_level(admin: Admin, level: int | None) -> tuple[int, str]:
    """Raise the feature level. Return the reached one. If none was given, also name the brokers that keep the cluster from a higher one."""
    if level is not None:
        return await admin.raise_feature_level(level), ""
    cluster = await admin.describe_cluster()
    reached = await admin.raise_feature_level()
    return reached, behind_of(cluster, reached)


def behind_of(cluster: ClusterDescription, level: int) -> str:
    """Name the brokers that keep the cluster from a level above this one that others support. Empty if no broker supports one."""
    highest = max(broker.feature_level_max for broker in cluster.brokers)
    if highest <= level:
        return ""
    behind = [f"broker {broker.broker_id}" for broker in cluster.brokers if broker.feature_level_max < highest]
    return f"feature level {highest} waits for a newer version on {some_of(behind)}"


def broker_json(broker: BrokerDescription) -> dict[str, Json]:
    """Return a broker for programs."""
    fields = dataclasses.asdict(broker)
    document: dict[str, Json] = {
        "id": fields.pop("broker_id"),
        "state": fields.pop("state"),
        "replicas": fields.pop("replica_count"),
        "leaders": fields.pop("leader_count"),
    }
    return document | fields


def level_of(cluster: ClusterDescription) -> str:
    """Describe the feature level of a cluster and the highest possible one."""
    level, highest = cluster.feature_level, cluster.feature_level_max
    return f"feature level {level}{f', its brokers support {highest}' if highest > level else ''}"


def preview_of(cluster: ClusterDescription, broker_id: int) -> str:
    """Describe a broker before its removal. Raises `UnknownBrokerError`."""
    broker = next((broker for broker in cluster.brokers if broker.broker_id == broker_id), None)
    if broker is None:
        others = ", ".join(str(broker.broker_id) for broker in cluster.brokers)
        raise UnknownBrokerError(f"there is no broker {broker_id}; there are {others}")
    held = f"{counted(broker.replica_count, 'replica')}, leads {counted(broker.leader_count, 'partition')}"
    return f"broker {broker_id} at {broker.address}: {_state(broker)}, {held}"


def lost_with(found: LostPartitions, broker_id: int) -> list[str]:
    """Return sentences about the partitions without a majority that have a replica on a broker which is about to be given up."""
    lost = [one for one in found.partitions if any(replica.broker_id == broker_id for replica in one.replicas)]
    if not lost:
        return []
    names = [f"{one.topic}/{one.partition}" for one in lost]
    least = "at least " if found.count > len(found.partitions) else ""
    has, them = ("has", "it") if len(names) == 1 else ("have", "them")
    return [
        f"{least}{counted(len(names), 'partition')} with a replica on it {has} no majority of replicas within reach: {some_of(names)}",
        f"acknowledged records of {them} that only broker {broker_id} has are given up for good: start it instead if it has its data",
    ]


def print_removal(removal: BrokerRemoval) -> None:
    """Print the result of a removal and its consequences."""
    print(f"broker {removal.broker_id} removed")
    rebuilt = removal.replica_count - removal.without_majority_count
    if rebuilt:
        gets = "gets" if rebuilt == 1 else "get"
        print(
            f"{counted(rebuilt, 'partition')} {gets} another replica where a broker has room: see raftmq cluster status"
        )
    if removal.without_majority_count:
        names = [f"{topic}/{partition}" for topic, partition in removal.without_majority]
        is_one = removal.without_majority_count == 1
        has, stay, them = ("has", "stays", "it") if is_one else ("have", "stay", "them")
        print(
            f"{counted(removal.without_majority_count, 'partition')} {has} no majority of replicas within reach and {stay} unavailable. "
            f"Start the other brokers that hold {them}, or see raftmq cluster recover: "
            f"{some_of(names, removal.without_majority_count)}"
        )


def status_json(
    cluster: ClusterDescription, problems: list[Problem], interruption: Interruption | None
) -> dict[str, Json]:
    """Return a cluster for programs. Its numbers are those of the text, so only brokers that answered count."""
    sentences: list[Json] = [{"problem": sentence, "is_outage": is_outage} for sentence, is_outage in problems]
    brokers: list[Json] = [broker_json(broker) for broker in cluster.brokers]
    return {
        **dataclasses.asdict(cluster),
        "metadata_leader_broker_id": _metadata_leader(cluster),
        "partitions_without_leader": _without_leader_count(cluster),
        "brokers": brokers,
        "problems": sentences,
        "may_restart_next": _may_restart_next(interruption),
        "restart_interrupts": None if interruption is None else dataclasses.asdict(interruption),
    }


def print_cluster(cluster: ClusterDescription, problems: list[Problem], interruption: Interruption | None) -> None:
    """Print a cluster for people: its brokers, its totals and its problems."""
    print(f"cluster {cluster.cluster_id}, as broker {cluster.answering_broker_id} sees it\n")
    leader = _metadata_leader(cluster)
    has_racks = any(broker.rack for broker in cluster.brokers)  # without them the table fits 80 columns
    racks = ("rack",) if has_racks else ()
    print_table(
        ("broker", "address", "host", *racks, "version", "state", "metadata", "leads", "replicas"),
        [
            (
                broker.broker_id,
                broker.address,
                broker.host,
                *((broker.rack or "-",) if has_racks else ()),
                broker.version,
                _state(broker),
                "leader" if broker.broker_id == leader else "voter" if broker.is_metadata_voter else "learner",
                broker.leader_count,
                broker.replica_count,
            )
            for broker in cluster.brokers
        ],
    )
    totals = f"{counted(cluster.topic_count, 'topic')}, {counted(cluster.partition_count, 'partition')}"
    print(f"\n{totals}, {_summary(cluster, problems, interruption)}")
    hint = ": see raftmq cluster raise-level" if cluster.feature_level_max > cluster.feature_level else ""
    print(f"{level_of(cluster)}{hint}")
    if interruption:
        print(f"a restart of a broker interrupts {_interrupted(interruption)}: see raftmq cluster restart-plan")
    for problem in problems:
        print(f"{'OUTAGE' if problem.is_outage else 'warning'}: {problem.sentence}")


def _state(broker: BrokerDescription) -> str:
    if not broker.is_connected:
        return f"{broker.state}, not connected"
    if broker.health is None:
        return f"{broker.state}, no answer"
    return f"{broker.state}, not ready" if broker.health.not_ready else broker.state


def _summary(cluster: ClusterDescription, problems: list[Problem], interruption: Interruption | None) -> str:
    if not problems:
        free = ": the next broker may be restarted" if _may_restart_next(interruption) else ""
        return f"none without a leader, all replicas in sync{free}"
    answering = " that answers" if cluster.health is not None else ""
    return f"{_without_leader_count(cluster) or 'none'} without a leader{answering}"


def _may_restart_next(interruption: Interruption | None) -> bool:
    """Return whether there are no problems, and a restart interrupts nothing."""
    return interruption is not None and not interruption


def _interrupted(interruption: Interruption) -> str:
    """Describe the things that a restart interrupts."""
    count = interruption.partitions
    parts = [f"{counted(count, 'partition')} with one or two replicas"] if count else []
    return " and ".join([*parts, "changes of topics and groups"] if interruption.metadata else parts)


def _metadata_leader(cluster: ClusterDescription) -> int:
    """Return the broker that leads the metadata, or 0 if no broker that answered does."""
    return cluster.metadata_leader_broker_id if cluster.health is None or cluster.health.is_metadata_led else 0


def _without_leader_count(cluster: ClusterDescription) -> int:
    """Return the number of partitions that no broker that answered leads."""
    health = cluster.health
    return cluster.partitions_without_leader if health is None else health.leaderless.count + health.unknown.count
