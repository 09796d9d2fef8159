"""The metadata group's commands and their results: msgspec structs, tagged, encoded as MessagePack.

New fields are appended with defaults; a tag is never reused. Proposers validate; apply decides again what may have
changed meanwhile and answers with a result, never an error.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True):
    """Base of all metadata commands."""


class InitializeCluster(Command, frozen=True, tag="init"):
    """First command of a cluster's life, proposed once by the bootstrapping node. Replica 1 of group 0 is its own."""

    cluster_id: str
    feature_level: int


class RegisterNode(Command, frozen=True, tag="node+"):
    """A node joins, or comes back with other addresses. `uuid` is its identity; the same uuid keeps its node id.

    A new uuid gets the wanted `node_id` if that is free (0: the next free one) and a new metadata replica id.
    Result: `NodeRegistered`, or `Rejected` (node id taken by another uuid that is not lost, uuid removed for ever).
    """

    uuid: str
    node_id: int
    client_address: str
    peer_address: str
    http_address: str
    host: str
    rack: str
    version: str
    feature_level_max: int


class SetMetadataMembership(Command, frozen=True, tag="meta-members"):
    """The controller's desired voters of group 0 (replica ids); the leader reconciles towards it. Others are learners."""

    voters: tuple[int, ...]
    expected_revision: int


class PartitionPlan(msgspec.Struct, frozen=True, array_like=True):
    """Where a new partition's replicas go: node ids, the first one preferred as leader."""

    node_ids: tuple[int, ...]


class CreateTopic(Command, frozen=True, tag="topic+"):
    """Result: `TopicCreated` or `Rejected` (TOPIC_ALREADY_EXISTS, unknown node in a plan)."""

    name: str
    kind: str
    """"log" or, later, "queue"."""
    replication_factor: int
    config: dict[str, str]
    partitions: tuple[PartitionPlan, ...]


class AddPartitions(Command, frozen=True, tag="partitions+"):
    """Appends partitions; `expected_count` guards against two concurrent calls. Result `TopicCreated` or `Rejected`."""

    topic_id: int
    expected_count: int
    partitions: tuple[PartitionPlan, ...]


class AlterTopicConfig(Command, frozen=True, tag="topic~"):
    """Sets (or with None removes) configuration keys. Result `Done` or `Rejected`."""

    topic_id: int
    changes: dict[str, str | None]


class DeleteTopic(Command, frozen=True, tag="topic-"):
    """Result `Done` or `Rejected` (UNKNOWN_TOPIC)."""

    topic_id: int


class AllocateProducerIds(Command, frozen=True, tag="pid-block"):
    """Result `ProducerIdBlock`."""

    count: int


class InitNamedProducer(Command, frozen=True, tag="pid-name"):
    """Without `epoch`: the name's epoch rises by one and fences its predecessor. With: same epoch, same id again; a lower
    one is `Rejected` FENCED; a higher one is taken. Result `ProducerInitialized`."""

    name: str
    epoch: int | None


class RemoveReplica(Command, frozen=True, tag="replica-"):
    """Reserved for the controller: a replica reported gone from its group's applied configuration is retired."""

    group_id: int
    replica_id: int


class SetReplicas(Command, frozen=True, tag="replicas="):
    """Desired replicas of a partition, as node ids; nodes that have none yet get new replica ids. Guarded by revision."""

    group_id: int
    node_ids: tuple[int, ...]
    expected_revision: int


MetadataCommand = (
    InitializeCluster
    | RegisterNode
    | SetMetadataMembership
    | CreateTopic
    | AddPartitions
    | AlterTopicConfig
    | DeleteTopic
    | AllocateProducerIds
    | InitNamedProducer
    | RemoveReplica
    | SetReplicas
)


class Done(msgspec.Struct, frozen=True):
    """Applied. `revision` is the metadata revision that includes it (the entry's log index)."""

    revision: int


class Rejected(msgspec.Struct, frozen=True):
    """Definitely not applied. `code` is an `ErrorCode` number of the client protocol."""

    code: int
    message: str


class NodeRegistered(msgspec.Struct, frozen=True):
    """Result of RegisterNode."""

    revision: int
    node_id: int
    metadata_replica_id: int


class TopicCreated(msgspec.Struct, frozen=True):
    """Result of CreateTopic and AddPartitions."""

    revision: int
    topic_id: int


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """Ids first .. first+count-1 belong to the asker."""

    revision: int
    first: int
    count: int


class ProducerInitialized(msgspec.Struct, frozen=True):
    """Result of InitNamedProducer."""

    revision: int
    producer_id: int
    epoch: int
