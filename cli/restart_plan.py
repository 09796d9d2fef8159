"""``raftmq cluster restart-plan``: the order in which to restart all brokers, and the partitions that cannot be used in the meantime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from raftmq.cli.admin_calls import run_admin
from raftmq.cli.cluster_health import exit_code, problems_of
from raftmq.cli.options import DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption
from raftmq.cli.output import Output, OutputOption, counted, print_json, print_table
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin
    from raftmq.client.admin.descriptions import ClusterDescription, TopicDescription

FEW_REPLICAS = 2
"""A group with so few replicas has no majority while one of them is down."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart of one broker."""

    broker_id: int
    address: str
    host: str
    rack: str
    metadata: str
    """`leader`, `voter` or `learner`."""
    leader_count: int
    unavailable_partitions: int
    """Partitions that nobody can write or read until the broker is back: they have one or two replicas."""
    is_metadata_unavailable: bool
    """Whether topics and groups cannot be changed in the meantime."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """The things that cannot be used while one broker or another restarts, because they have one or two replicas."""

    partitions: int
    metadata: bool
    """Whether topics and groups cannot be changed."""

    def __bool__(self) -> bool:
        return self.partitions > 0 or self.metadata


def interruption_of(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> Interruption:
    """Return the things that the restart of one broker or another interrupts, although nothing is wrong."""
    replica_counts = (len(partition.replica_brokers) for topic in topics for partition in topic.partitions)
    voters = sum(broker.is_metadata_voter for broker in cluster.brokers)
    return Interruption(sum(count <= FEW_REPLICAS for count in replica_counts), voters <= FEW_REPLICAS)


def restart_plan(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> list[Restart]:
    """Return one restart after the other: rack by rack, brokers without a vote on metadata first, and the metadata leader last.

    Each restart of the metadata leader is an election. As the last one it is the only one that is restarted as the leader.
    """
    partitions = [partition.replica_brokers for topic in topics for partition in topic.partitions]
    voters = sum(broker.is_metadata_voter for broker in cluster.brokers)
    leader = cluster.metadata_leader_broker_id
    restarts = [
        Restart(
            broker.broker_id,
            broker.address,
            broker.host,
            broker.rack,
            "leader" if broker.broker_id == leader else "voter" if broker.is_metadata_voter else "learner",
            broker.leader_count,
            sum(len(replicas) <= FEW_REPLICAS and broker.broker_id in replicas for replicas in partitions),
            broker.is_metadata_voter and voters <= FEW_REPLICAS,
        )
        for broker in cluster.brokers
    ]
    order = {"learner": 0, "voter": 1, "leader": 2}
    return sorted(restarts, key=lambda one: (order[one.metadata] == 2, one.rack, order[one.metadata], one.broker_id))


def show(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the order in which to restart all brokers, for an upgrade or a change of their configuration.

    Restart one broker, wait until raftmq cluster status ends with exit code 0, and take the next one. The command
    itself ends with the exit code of raftmq cluster status: do not begin while that is not 0.
    """

    async def ask(admin: Admin) -> tuple[ClusterDescription, list[TopicDescription]]:
        return await admin.describe_cluster(ask_brokers=True), await admin.list_topics()

    cluster, topics = run_admin(bootstrap_servers, timeout, ask)
    restarts, problems = restart_plan(cluster, topics), problems_of(cluster)
    if output is Output.JSON:
        print_json({"restarts": [asdict(one) for one in restarts], "problems": [one.sentence for one in problems]})
    else:
        _print(restarts)
        for problem in problems:
            print(f"do not begin yet: {problem.sentence}")
    if problems:
        raise SystemExit(exit_code(problems))


def _print(restarts: list[Restart]) -> None:
    print_table(
        ("step", "broker", "address", "host", "rack", "metadata", "leads"),
        [
            (step, one.broker_id, one.address, one.host, one.rack or "-", one.metadata, one.leader_count)
            for step, one in enumerate(restarts, 1)
        ],
    )
    print("\nStop a broker with SIGTERM, start it again, and wait until raftmq cluster status ends with 0.")
    for one in restarts:
        if one.unavailable_partitions:
            print(
                f"warning: {counted(one.unavailable_partitions, 'partition')} with one or two replicas cannot be used while broker "
                f"{one.broker_id} restarts"
            )
    if any(one.is_metadata_unavailable for one in restarts):
        print(
            "warning: topics and groups cannot be changed while a broker restarts: the metadata has fewer than 3 voters"
        )
