"""List the pages of the API reference, and the public names on each. tests/house/test_docs_pages.py compares them with the package."""

from __future__ import annotations

from typing import NamedTuple


class ApiPage(NamedTuple):
    """One page of the API reference."""

    title: str
    introduction: str
    names: tuple[str, ...]
    """Full names of classes, or of modules whose members are all shown."""


API_PAGES = {
    "producer": ApiPage(
        "Producer",
        "Write records. The [tutorial](../../guides/tutorial.md) begins with a producer.",
        (
            "raftmq.Producer",
            "raftmq.Delivery",
            "raftmq.BulkDelivery",
            "raftmq.AppendedSpan",
            "raftmq.FailedRecords",
            "raftmq.Partitioner",
            "raftmq.ProducerMetrics",
        ),
    ),
    "consumer": ApiPage(
        "Consumer",
        "Read records, alone or as a member of a group. [Delivery](../../guides/delivery.md) has the guarantees.",
        ("raftmq.Consumer", "raftmq.RebalanceListener", "raftmq.OffsetAndTimestamp", "raftmq.ConsumerMetrics"),
    ),
    "records": ApiPage(
        "Records",
        "Records, their places and their acknowledgements.",
        ("raftmq.Record", "raftmq.QueueRecord", "raftmq.RecordMetadata", "raftmq.TopicPartition"),
    ),
    "worker": ApiPage(
        "Worker and Transformer",
        "Call a function for each record: [workers](../../guides/workers.md), [transformers](../../guides/transforming.md).",
        (
            "raftmq.Worker",
            "raftmq.Transformer",
            "raftmq.Output",
            "raftmq.Attempt",
            "raftmq.Retry",
            "raftmq.Reject",
            "raftmq.HandlerFailure",
            "raftmq.WorkerMetrics",
        ),
    ),
    "queue": ApiPage(
        "Queue",
        "Put, lease and settle messages: [queues](../../guides/queues.md).",
        (
            "raftmq.Queue",
            "raftmq.Message",
            "raftmq.NewMessage",
            "raftmq.PutResult",
            "raftmq.BrowsedMessage",
            "raftmq.QueueStats",
            "raftmq.MessageCounts",
            "raftmq.DwellTimes",
            "raftmq.QueueJob",
        ),
    ),
    "admin": ApiPage(
        "Admin",
        "Create and change topics, groups, schedules and brokers: [operations](../../guides/operations.md).",
        (
            "raftmq.Admin",
            "raftmq.NewTopic",
            "raftmq.TopicDescription",
            "raftmq.PartitionDescription",
            "raftmq.ScheduleDescription",
            "raftmq.GroupListing",
            "raftmq.GroupDescription",
            "raftmq.GroupMemberDescription",
            "raftmq.GroupOffset",
            "raftmq.OffsetChange",
            "raftmq.ClusterDescription",
            "raftmq.BrokerDescription",
            "raftmq.ClusterHealth",
            "raftmq.BrokerHealth",
            "raftmq.PartitionState",
            "raftmq.PartitionNames",
            "raftmq.BalancingSettings",
            "raftmq.RebalancePlan",
            "raftmq.PartitionMove",
            "raftmq.MovesDescription",
            "raftmq.GivenUpMove",
            "raftmq.StuckReplica",
            "raftmq.LeaderTransfer",
            "raftmq.ReplicationChange",
            "raftmq.BrokerDrain",
            "raftmq.BrokerRemoval",
            "raftmq.LostPartitions",
            "raftmq.LostPartition",
            "raftmq.ReplicaKnowledge",
            "raftmq.PartitionRecovery",
            "raftmq.ProducerNameDescription",
            "raftmq.ForgottenNames",
        ),
    ),
    "errors": ApiPage(
        "Errors",
        "Every exception. [The table](../errors.md) has their codes and remedies.",
        ("raftmq.errors",),
    ),
    "serializers": ApiPage("Serializers", "Turn values into bytes and back.", ("raftmq.serializers",)),
    "sync": ApiPage(
        "Without asyncio",
        "The same classes for code without an event loop.",
        (
            "raftmq.sync",
            "raftmq.sync.Producer",
            "raftmq.sync.Delivery",
            "raftmq.sync.BulkDelivery",
            "raftmq.sync.Consumer",
            "raftmq.sync.RebalanceListener",
            "raftmq.sync.Queue",
            "raftmq.sync.Message",
            "raftmq.sync.Admin",
        ),
    ),
    "testing": ApiPage(
        "Clusters for tests",
        "Start real brokers in a test, and use taskiq.",
        ("raftmq.testing", "raftmq.taskiq"),
    ),
}
"""By the name of the page."""

ELSEWHERE = {"Outcome": "raftmq.errors", "RaftMQError": "raftmq.errors"}
"""Public names that a page shows as part of their module."""


def path_of(name: str) -> str:
    """Return the path of a page in the site's sources."""
    return f"docs/reference/api/{name}.md"


def source_of(page: ApiPage) -> str:
    """Return the page as markdown for mkdocstrings."""
    modules = {name for name in page.names if name.rpartition(".")[2].islower()}
    sections = []
    for name in page.names:
        members = "" if name not in modules else "\n    options:\n      show_root_toc_entry: false"
        if name == "raftmq.sync":
            members += "\n      members: false"
        sections.append(f"::: {name}{members}")
    return f"# {page.title}\n\n{page.introduction}\n\n" + "\n\n".join(sections) + "\n"
