"""The problems of a cluster: sentences for people and programs, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.exit_codes import ExitCode
from raftmq.cli.output import counted, some_of
from raftmq.cli.placement.moves_text import stuck_of

if TYPE_CHECKING:
    from raftmq.client.admin.cluster_health import BrokerHealth, PartitionNames
    from raftmq.client.admin.descriptions import BrokerDescription, ClusterDescription


class Problem(NamedTuple):
    """Describe one problem."""

    sentence: str
    is_outage: bool
    """Whether data is not served now. Otherwise one more failure may cause that."""


def problems_of(cluster: ClusterDescription) -> list[Problem]:
    """Return all problems, outages first. `cluster` was described with ``ask_brokers``."""
    return sorted(_problems(cluster), key=lambda problem: not problem.is_outage)


def exit_code(problems: list[Problem]) -> ExitCode:
    """Return UNAVAILABLE for an outage, BAD_DATA for another problem, and OK when there is none."""
    if not problems:
        return ExitCode.OK
    return ExitCode.UNAVAILABLE if any(problem.is_outage for problem in problems) else ExitCode.BAD_DATA


def _problems(cluster: ClusterDescription) -> Iterator[Problem]:
    health = cluster.health
    if health is not None:
        if not health.is_metadata_led:
            yield Problem(
                "no broker that answered leads the metadata: topics and groups cannot be changed", is_outage=True
            )
        if health.leaderless.count:
            yield Problem(f"{_named(health.leaderless)} without a leader", is_outage=True)
        if health.unknown.count:
            yield Problem(f"{_named(health.unknown)} whose leader does not answer", is_outage=True)
        if health.metadata_voters_behind:
            brokers = ", ".join(map(str, health.metadata_voters_behind))
            yield Problem(f"the metadata replica on broker {brokers} is behind", is_outage=False)
        yield from (Problem(sentence, is_outage=False) for sentence in stuck_of(health.stuck, health.stuck_count))
    for broker in cluster.brokers:
        yield from _problems_of_broker(broker)


def _problems_of_broker(broker: BrokerDescription) -> Iterator[Problem]:
    if not broker.is_connected:
        yield Problem(f"broker {broker.broker_id} is not connected", is_outage=False)
    elif broker.health is None:
        yield Problem(f"broker {broker.broker_id} is connected but does not answer", is_outage=False)
    else:
        yield from (Problem(sentence, is_outage=False) for sentence in _sentences(broker.broker_id, broker.health))


def _sentences(broker_id: int, health: BrokerHealth) -> Iterator[str]:
    for reason in health.not_ready:
        yield f"broker {broker_id} is not ready: {reason}"
    if health.quarantined.count:
        yield f"broker {broker_id} has damaged replicas of {_named(health.quarantined)}"
    if health.not_served.count:
        yield f"broker {broker_id} does not serve its replicas of {_named(health.not_served)}"
    for warning in health.warnings:
        yield f"broker {broker_id} warns: {warning}"
    if health.under_replicated.count:
        yield f"broker {broker_id} leads {_named(health.under_replicated)} with fewer replicas in sync than wanted"


def _named(partitions: PartitionNames) -> str:
    names = [f"{topic}/{number}" for topic, number in partitions.first]
    return f"{counted(partitions.count, 'partition')} ({some_of(names, partitions.count)})"
