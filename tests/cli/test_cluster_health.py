"""Problems and exit codes of `cluster status`: a script must never take a degraded cluster for a healthy one."""

from dataclasses import asdict, replace

import pytest
from raftmq.cli.cluster import behind_of, print_cluster, status_json
from raftmq.cli.cluster_health import exit_code, problems_of
from raftmq.cli.exit_codes import ExitCode
from raftmq.cli.restart_plan import Interruption
from raftmq.client.admin.cluster_health import BrokerHealth, ClusterHealth, PartitionNames
from raftmq.client.admin.descriptions import BrokerDescription, ClusterDescription
from raftmq.client.admin.move_descriptions import StuckReplica
from raftmq.types import TopicPartition

NONE = PartitionNames(0, ())
SOME = PartitionNames(12, tuple(TopicPartition("orders", number) for number in range(12)))
STUCK = tuple(StuckReplica("orders", number, 3, "down", "go") for number in range(2))
NOTHING = Interruption(0, metadata=False)
WELL = BrokerHealth((), NONE, NONE, NONE)


def broker(broker_id: int, health: BrokerHealth | None = WELL, *, is_connected: bool = True) -> BrokerDescription:
    address = f"host-{broker_id}:9400"
    return BrokerDescription(broker_id, address, "h", "", "1", "active", "", "", True, is_connected, 1, 1, 2, health)


def cluster(*brokers: BrokerDescription, **health: object) -> ClusterDescription:
    whole = ClusterHealth(leaderless=NONE, unknown=NONE, metadata_voters_behind=(), is_metadata_led=True)
    return ClusterDescription(
        "c", 1, 1, 1, 1, brokers or (broker(1), broker(2)), 1, 12, 0, 2, 2, replace(whole, **health)
    )


def test_racks_are_shown_where_a_broker_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_cluster(cluster(), [], NOTHING)
    assert "rack" not in capsys.readouterr().out
    print_cluster(cluster(broker(1), replace(broker(2), rack="r2")), [], NOTHING)
    head, first, second = capsys.readouterr().out.splitlines()[2:5]
    assert head.split()[3] == "rack"
    assert (first.split()[3], second.split()[3]) == ("-", "r2")


def test_brokers_of_an_older_version_are_named_when_the_level_is_raised() -> None:
    """A script that raises the level after half of an upgrade must not take the old level for the new one."""
    newer, older = (replace(broker(1), feature_level_max=3), replace(broker(2), feature_level_max=2))
    assert behind_of(cluster(newer, older), 2) == "feature level 3 waits for a newer version on broker 2"
    assert behind_of(cluster(newer, older), 3) == ""
    many = (newer, *(broker(number) for number in range(2, 14)))
    assert behind_of(cluster(*many), 2).endswith("broker 10, broker 11 and 2 more")
    assert behind_of(cluster(), 2) == ""


def test_a_healthy_cluster_is_success() -> None:
    assert problems_of(cluster()) == []
    assert exit_code([]) is ExitCode.OK


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (cluster(is_metadata_led=False), "leads the metadata"),
        (cluster(leaderless=SOME), "12 partitions (orders/0, orders/1"),
        (cluster(unknown=SOME), "does not answer"),
    ],
)
def test_unserved_metadata_or_partitions_are_an_outage(described: ClusterDescription, words: str) -> None:
    (problem,) = problems_of(described)
    assert words in problem.sentence
    assert exit_code([problem]) is ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (cluster(metadata_voters_behind=(2, 3)), "broker 2, 3"),
        (
            cluster(stuck=STUCK, stuck_count=2),
            "2 new replicas (orders/0, orders/1) cannot come up: down. Advice: go",
        ),
        (cluster(stuck_count=7), "7 further new replicas cannot come up"),
        (cluster(broker(1), broker(2, is_connected=False)), "broker 2 is not connected"),
        (cluster(broker(1), broker(2, None)), "broker 2 is connected but does not answer"),
        (cluster(broker(1, replace(WELL, not_ready=("disk_reserve: 5 MB free",)))), "disk_reserve: 5 MB free"),
        (
            cluster(broker(1, replace(WELL, under_replicated=SOME))),
            "and 2 more) with fewer replicas in sync than wanted",
        ),
        (cluster(broker(1, replace(WELL, not_served=PartitionNames(1, SOME.first[:1])))), "1 partition (orders/0)"),
        (cluster(broker(1, replace(WELL, warnings=("reconciler fails",)))), "broker 1 warns: reconciler fails"),
        (cluster(broker(1, replace(WELL, quarantined=SOME))), "damaged replicas of 12 partitions"),
    ],
)
def test_a_problem_without_an_outage_has_its_own_exit_code(described: ClusterDescription, words: str) -> None:
    (problem,) = problems_of(described)
    assert words in problem.sentence
    assert exit_code([problem]) is ExitCode.BAD_DATA


def test_outages_come_first_and_the_text_shows_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    described = cluster(broker(1), broker(2, is_connected=False), is_metadata_led=False)
    problems = problems_of(described)
    assert [problem.is_outage for problem in problems] == [True, False]
    assert exit_code(problems) is ExitCode.UNAVAILABLE
    print_cluster(described, problems, None)
    text = capsys.readouterr().out
    assert "OUTAGE: no broker that answered leads the metadata" in text
    assert "warning: broker 2 is not connected" in text
    assert "active, not connected" in text
    assert "leader" not in text.split("\n\n")[1].splitlines()[1], "a former leader is not shown as leading"


@pytest.mark.parametrize(
    ("described", "line"),
    [
        (
            cluster(),
            "1 topic, 12 partitions, none without a leader, all replicas in sync: the next broker may be restarted",
        ),
        (cluster(unknown=SOME), "1 topic, 12 partitions, 12 without a leader that answers"),
        (cluster(broker(1, is_connected=False)), "1 topic, 12 partitions, none without a leader that answers"),
    ],
)
def test_the_line_of_totals_agrees_with_the_outages(
    described: ClusterDescription, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = problems_of(described)
    print_cluster(described, problems, None if problems else NOTHING)
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("interruption", "words"),
    [
        (Interruption(3, metadata=False), "3 partitions with one or two replicas"),
        (Interruption(0, metadata=True), "changes of topics and groups"),
        (Interruption(1, metadata=True), "1 partition with one or two replicas and changes of topics and groups"),
    ],
)
def test_a_restart_that_interrupts_something_is_not_free(
    interruption: Interruption, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is wrong, and waiting does not help: the exit code is 0."""
    print_cluster(cluster(), [], interruption)
    lines = capsys.readouterr().out.splitlines()
    assert "1 topic, 12 partitions, none without a leader, all replicas in sync" in lines
    assert lines[-1] == f"a restart of a broker interrupts {words}: see raftmq cluster restart-plan"
    shown = status_json(cluster(), [], interruption)
    assert shown["may_restart_next"] is False
    assert shown["restart_interrupts"] == asdict(interruption)
    assert status_json(cluster(), [], NOTHING)["may_restart_next"] is True


def test_json_gives_the_numbers_of_the_text() -> None:
    """One broker still believed in two dead leaders: the text said 12 without a leader, and JSON none."""
    described = cluster(unknown=SOME, is_metadata_led=False)
    shown = status_json(described, problems_of(described), None)
    assert (shown["partitions_without_leader"], shown["metadata_leader_broker_id"]) == (12, 0)
    assert (shown["may_restart_next"], shown["restart_interrupts"]) == (False, None)
    unasked = replace(described, health=None, partitions_without_leader=3)
    assert status_json(unasked, [], NOTHING)["partitions_without_leader"] == 3
    assert status_json(cluster(), [], NOTHING)["metadata_leader_broker_id"] == 1
